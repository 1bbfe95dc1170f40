/* What the engine asks of PyTorch: the framework's half of the points, a pool's own allocator, a route's filter. */
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "facts.hpp"
#include "points.hpp"

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

#if TORCH_HAS_RESERVE_CLASSES
/* The request that the calling thread makes now. */
struct Asking {
    int device = -1;
    cudaStream_t stream = nullptr;
};
thread_local Asking asking;

/* Programs put a stream in a class by a function of PyTorch's that is not part of the interface. So the class is read
 * when a request is about to ask the device for more, which is before a segment is reserved. */
void follow_reserve_class() {
    static auto* mutex = new std::mutex;
    static auto* applied = new std::map<std::pair<int, cudaStream_t>, std::pair<std::string, size_t>>;
    if (asking.device < 0) return;
    std::pair<std::string, size_t> wanted{
        c10::cuda::CUDACachingAllocator::getExpandableSegmentReserveClassForStream(asking.stream), 0};
    if (!wanted.first.empty()) {
        cudaDeviceProp properties{};
        C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, asking.device));
        const auto decision =
            c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::expandable_segments_reserve_decision(
                wanted.first, properties.totalGlobalMem);
        if (decision.class_known) wanted.second = decision.reserve_bytes.value_or(0);
    }
    {
        std::lock_guard<std::mutex> guard(*mutex);
        auto& known = (*applied)[{asking.device, asking.stream}];
        if (known == wanted) return;
        known = wanted;
    }
    expect(points->set_reserve_class(
        asking.device, reinterpret_cast<uint64_t>(asking.stream), wanted.first.c_str(), wanted.second));
}
#endif

int free_memory() {
    bool freed = false;
    try {
#if TORCH_HAS_RESERVE_CLASSES
        follow_reserve_class();
#endif
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
