/* What the engine asks of PyTorch: the framework's half of the points, a pool's own allocator, a route's filter. */
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <shared_mutex>

#include "facts.hpp"

namespace allotment {
namespace {

std::atomic<CreateContextFn> recorder{nullptr};

uint32_t gather() {
    auto record = recorder.load();
    if (record == nullptr) return 0;
    try {
        return contexts().keep(record());
    } catch (...) {
        return 0;       /* a history without this context is better than a request without memory */
    }
}

void show_frames(
    uint32_t number, void (*visit)(void* self, const char* name, const char* file, int64_t line), void* self) {
    Context context = contexts().at(number);
    auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (traceback == nullptr) return;
    try {
        auto found = torch::symbolize({traceback});
        for (auto index : found.tracebacks.at(0)) {
            const auto& frame = found.all_frames.at(index);
            visit(self, frame.funcname.c_str(), frame.filename.c_str(), static_cast<int64_t>(frame.lineno));
        }
    } catch (...) {
    }
}

struct Listeners {
    std::shared_mutex mutex;
    std::vector<AllocatorTraceTracker> trackers;
    std::vector<OutOfMemoryObserver> observers;
#if TORCH_HAS_REJECTIONS
    std::vector<OomRejectionObserver> rejection_observers;
#endif
};

Listeners& listeners() {
    static auto* all = new Listeners;
    return *all;
}

void hear(const allotment_record* record) {
    try {
        TraceEntry entry = entry_of(record);
        entry.time_.approx_t_ = c10::getApproximateTime();
        std::shared_lock<std::shared_mutex> guard(listeners().mutex);
        for (const auto& tracker : listeners().trackers) tracker(entry);
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
    }
}

int free_memory() {
    bool freed = false;
    try {
        for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
            freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        }
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
    }
    return freed;
}

uint64_t current_stream(int device) {
    try {
        return reinterpret_cast<uint64_t>(c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream());
    } catch (...) {
        return 0;       /* a stream that no graph is captured on */
    }
}

const allotment_framework framework{
    sizeof(allotment_framework), gather, show_frames, hear, free_memory, current_stream};

/* --- a pool's own allocator ----------------------------------------------------------------------------------- */

using SegmentSource = std::shared_ptr<CUDAAllocator>;

uint64_t source_allocate(void* self, size_t size, uint64_t) {
    try {
        return reinterpret_cast<uint64_t>((*static_cast<SegmentSource*>(self))->raw_alloc(size));
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
        return 0;
    }
}

void source_free(void* self, uint64_t address, size_t, uint64_t) {
    try {
        (*static_cast<SegmentSource*>(self))->raw_delete(reinterpret_cast<void*>(address));
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
    }
}

void source_drop(void* self) { delete static_cast<SegmentSource*>(self); }

/* --- a route's filter ----------------------------------------------------------------------------------------- */

using StreamFilter = std::function<bool(cudaStream_t)>;

int filter_accepts(void* self, uint64_t stream) {
    try {
        return (*static_cast<StreamFilter*>(self))(reinterpret_cast<cudaStream_t>(stream));
    } catch (...) {
        if (!thrown_inside) thrown_inside = std::current_exception();
        return 0;
    }
}

void filter_drop(void* self) { delete static_cast<StreamFilter*>(self); }

}
}
