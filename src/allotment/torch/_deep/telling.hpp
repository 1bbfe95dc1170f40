/* What PyTorch's own allocator tells others about its work: profiler, gauges, GPU trace, observers of failures. */
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/Gauge.h>

#include <cstdlib>

#include "upcalls.hpp"

namespace allotment {
namespace {

/* The bytes of a device that the gauge of reserved memory was last told. */
std::atomic<int64_t> told_reserved[ALLOTMENT_DEVICES_MOST];

/* Of several changes inside of one call, the gauges are told the last. */
void tell_reserved(DeviceIndex device, int64_t reserved) {
    if (C10_LIKELY(told_reserved[device].load(std::memory_order_relaxed) == reserved)) return;
    told_reserved[device].store(reserved, std::memory_order_relaxed);
    STATIC_GAUGE(pytorch.CUDACachingAllocator.reserved_bytes).record(reserved);
}

void tell_reserved(DeviceIndex device) {
    int64_t allocated = 0, reserved = 0;
    points->gauges(device, &allocated, &reserved);
    tell_reserved(device, reserved);
}

/* A block of `size` bytes was handed out, or taken back: then it is negative. */
void tell_of_block(DeviceIndex device, void* address, int64_t size, bool profiled) {
    int64_t allocated = 0, reserved = 0;
    points->gauges(device, &allocated, &reserved);
    tell_reserved(device, reserved);
    STATIC_GAUGE(pytorch.CUDACachingAllocator.allocated_bytes).record(allocated);
    if (C10_UNLIKELY(profiled)) {
        c10::reportMemoryUsageToProfiler(
            address, size, static_cast<size_t>(allocated), static_cast<size_t>(reserved),
            c10::Device(c10::DeviceType::CUDA, device));
    }
}

void tell_of_request(DeviceIndex device, void* address) {
    const bool profiled = c10::memoryProfilingEnabled();
    const int64_t size = C10_UNLIKELY(profiled) ? static_cast<int64_t>(points->block_size(device, address)) : 0;
    tell_of_block(device, address, size, profiled);
    const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interpreter != nullptr)) {
        (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
    }
}

/* Whether requests go straight to the device, which PyTorch then lets complain itself. */
bool is_uncached() {
    static const bool forced = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return forced || !points->is_enabled();
}

[[noreturn]] void out_of_memory(DeviceIndex device, size_t size) {
    points->take_failure(device);
    if (thrown_inside) fail();
    if (points->failure()->kind == ALLOTMENT_OUT_OF_MEMORY && (size >> 60) == 0 && is_uncached()) {
        C10_CUDA_CHECK(cudaErrorMemoryAllocation);
    }
    const allotment_failure failure = *points->failure();
    const std::string text = failure.text == nullptr ? "" : failure.text;
    if (failure.kind == ALLOTMENT_OUT_OF_MEMORY && (size >> 60) == 0) {
        c10::reportOutOfMemoryToProfiler(
            static_cast<int64_t>(failure.rounded), failure.allocated, failure.reserved,
            c10::Device(c10::DeviceType::CUDA, device));
        std::vector<OutOfMemoryObserver> observers;
        {
            std::shared_lock<std::shared_mutex> guard(listeners().mutex);
            observers = listeners().observers;
        }
        for (const auto& observer : observers) {
            observer(device, failure.segment, failure.most, failure.device_free);
        }
        C10_THROW_ERROR(OutOfMemoryError, text);
    }
#if TORCH_HAS_REJECTIONS
    if (failure.kind == ALLOTMENT_REJECTED) {
        std::vector<OomRejectionObserver> observers;
        {
            std::shared_lock<std::shared_mutex> guard(listeners().mutex);
            observers = listeners().rejection_observers;
        }
        for (const auto& observer : observers) observer(device, size, failure.allocated, failure.most);
    }
#endif
    if (failure.kind == ALLOTMENT_OUT_OF_MEMORY || failure.kind == ALLOTMENT_REJECTED) {
        C10_THROW_ERROR(OutOfMemoryError, text);
    }
    C10_THROW_ERROR(Error, text);
}

}
}
