/* Informs the observers of PyTorch's allocator: profiler, gauges, GPU trace, observers of failures. */
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/Gauge.h>

#include <cstdlib>

#include "upcalls.hpp"

namespace allotment {
namespace {

/* The value that the gauge of reserved bytes has, by device. */
std::atomic<int64_t> reported_reserved[ALLOTMENT_DEVICES_MOST];

/* If one call changes the value several times, the gauge gets the last value. */
void report_reserved(DeviceIndex device, int64_t reserved) {
    if (C10_LIKELY(reported_reserved[device].load(std::memory_order_relaxed) == reserved)) return;
    reported_reserved[device].store(reserved, std::memory_order_relaxed);
    STATIC_GAUGE(pytorch.CUDACachingAllocator.reserved_bytes).record(reserved);
}

void report_reserved(DeviceIndex device) { report_reserved(device, value_of(bound_devices[device].reserved)); }

/* A block was allocated or, with a negative size, freed. pre: the device is bound */
void report_block(DeviceIndex device, void* address, int64_t size, bool profiled) {
    const int64_t allocated = value_of(bound_devices[device].allocated);
    const int64_t reserved = value_of(bound_devices[device].reserved);
    report_reserved(device, reserved);
    STATIC_GAUGE(pytorch.CUDACachingAllocator.allocated_bytes).record(allocated);
    if (C10_UNLIKELY(profiled)) {
        c10::reportMemoryUsageToProfiler(
            address, size, static_cast<size_t>(allocated), static_cast<size_t>(reserved),
            c10::Device(c10::DeviceType::CUDA, device));
    }
}

void report_allocation(DeviceIndex device, void* address) {
    const bool profiled = c10::memoryProfilingEnabled();
    const int64_t size = C10_UNLIKELY(profiled) ? static_cast<int64_t>(interface->block_size(device, address)) : 0;
    report_block(device, address, size, profiled);
    const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interpreter != nullptr)) {
        (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
    }
}

/* Whether caching is off. PyTorch then reports the device's own error. */
bool is_uncached() {
    static const bool forced = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return forced || !interface->is_enabled();
}

[[noreturn]] void out_of_memory(DeviceIndex device, size_t size) {
    interface->take_failure(device);
    if (pending_exception) throw_failure();
    if (interface->failure()->kind == ALLOTMENT_OUT_OF_MEMORY && (size >> 60) == 0 && is_uncached()) {
        C10_CUDA_CHECK(cudaErrorMemoryAllocation);
    }
    const allotment_failure failure = *interface->failure();
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
