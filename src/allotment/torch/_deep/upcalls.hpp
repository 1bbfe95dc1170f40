/* Functions of PyTorch that the engine calls: the upcalls, a pool's own allocator, a route's filter. */
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "conversions.hpp"
#include "interface.hpp"

namespace allotment {
namespace {

std::atomic<CreateContextFn> recorder{nullptr};

uint32_t gather() {
    auto record = recorder.load();
    if (record == nullptr) return 0;
    try {
        return contexts().keep(record());
    } catch (...) {
        return 0;       /* recording without a context is better than failing the request */
    }
}

void show_frames(
    uint32_t number, void (*visit)(void* self, const char* name, const char* file, int64_t line), void* self) {
    Context context = contexts().at(number);
    auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get());
    if (traceback == nullptr) return;
    try {
        auto symbols = torch::symbolize({traceback});
        for (auto index : symbols.tracebacks.at(0)) {
            const auto& frame = symbols.all_frames.at(index);
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

void relay_record(const allotment_record* record) {
    try {
        TraceEntry entry = entry_of(record);
        entry.time_.approx_t_ = c10::getApproximateTime();
        std::shared_lock<std::shared_mutex> guard(listeners().mutex);
        for (const auto& tracker : listeners().trackers) tracker(entry);
    } catch (...) {
        if (!pending_exception) pending_exception = std::current_exception();
    }
}

#if TORCH_HAS_RESERVE_CLASSES
/* The calling thread's request. */
struct CurrentRequest {
    int device = -1;
    cudaStream_t stream = nullptr;
};
thread_local CurrentRequest current_request;

/* Programs set a stream's class with a free function of PyTorch's, which does not call the allocator. So the class is
 * read when the engine is about to ask the device for memory, which is before it reserves a segment. */
void follow_reserve_class() {
    static auto* mutex = new std::mutex;
    static auto* applied = new std::map<std::pair<int, cudaStream_t>, std::pair<std::string, size_t>>;
    if (current_request.device < 0) return;
    std::pair<std::string, size_t> wanted{
        c10::cuda::CUDACachingAllocator::getExpandableSegmentReserveClassForStream(current_request.stream), 0};
    if (!wanted.first.empty()) {
        cudaDeviceProp properties{};
        C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, current_request.device));
        const auto decision =
            c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::expandable_segments_reserve_decision(
                wanted.first, properties.totalGlobalMem);
        if (decision.class_known) wanted.second = decision.reserve_bytes.value_or(0);
    }
    {
        std::lock_guard<std::mutex> guard(*mutex);
        auto& known = (*applied)[{current_request.device, current_request.stream}];
        if (known == wanted) return;
        known = wanted;
    }
    check(interface->set_reserve_class(
        current_request.device, reinterpret_cast<uint64_t>(current_request.stream), wanted.first.c_str(), wanted.second));
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
        if (!pending_exception) pending_exception = std::current_exception();
    }
    return freed;
}

uint64_t current_stream(int device) {
    try {
        return reinterpret_cast<uint64_t>(c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream());
    } catch (...) {
        return 0;       /* the default stream, which is never captured */
    }
}

const allotment_upcalls upcalls{
    sizeof(allotment_upcalls), gather, show_frames, relay_record, free_memory, current_stream};

/* --- a pool's own allocator ----------------------------------------------------------------------------------- */

using SegmentSource = std::shared_ptr<CUDAAllocator>;

uint64_t source_allocate(void* self, size_t size, uint64_t) {
    try {
        return reinterpret_cast<uint64_t>((*static_cast<SegmentSource*>(self))->raw_alloc(size));
    } catch (...) {
        if (!pending_exception) pending_exception = std::current_exception();
        return 0;
    }
}

void source_free(void* self, uint64_t address, size_t, uint64_t) {
    try {
        (*static_cast<SegmentSource*>(self))->raw_delete(reinterpret_cast<void*>(address));
    } catch (...) {
        if (!pending_exception) pending_exception = std::current_exception();
    }
}

void source_drop(void* self) { delete static_cast<SegmentSource*>(self); }

/* --- a route's filter ----------------------------------------------------------------------------------------- */

using StreamFilter = std::function<bool(cudaStream_t)>;

int filter_accepts(void* self, uint64_t stream) {
    try {
        return (*static_cast<StreamFilter*>(self))(reinterpret_cast<cudaStream_t>(stream));
    } catch (...) {
        if (!pending_exception) pending_exception = std::current_exception();
        return 0;
    }
}

void filter_drop(void* self) { delete static_cast<StreamFilter*>(self); }

}
}
