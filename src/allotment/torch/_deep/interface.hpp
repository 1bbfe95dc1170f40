/* The framework interface in C++, with its failures as PyTorch's exceptions. */
#pragma once

#include <c10/util/Exception.h>

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "allotment.h"
#include "contexts.hpp"
#include "framework_interface.h"

namespace allotment {
namespace {

const allotment_interface* interface = nullptr;
const allotment_bound_device* bound_devices = nullptr;

void use_interface(const allotment_interface* table) {
    interface = table;
    bound_devices = table->devices;
}

/* Never destroyed: threads may allocate and free until the process ends. */
Contexts& contexts() {
    static auto* all = new Contexts;
    return *all;
}

/* Format a message without a C++ stream. If the compiler links the C++ library statically, this library has its own
 * copy of the streams, and writing a pointer to PyTorch's would crash. */
__attribute__((format(printf, 1, 2))) std::string format(const char* form, ...) {
    char text[200];
    va_list values;
    va_start(values, form);
    std::vsnprintf(text, sizeof(text), form, values);
    va_end(values);
    return text;
}

/* An address as PyTorch's messages write it: NULL is "0". */
std::string address_text(const void* address) {
    return format("%#llx", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(address)));
}

/* An exception of PyTorch's code that the engine called. It must not pass through the engine, so it is kept until the
 * call has left the engine, and thrown again then. */
thread_local std::exception_ptr pending_exception;

[[noreturn]] void throw_failure() {
    if (pending_exception) std::rethrow_exception(std::exchange(pending_exception, nullptr));
    const allotment_failure* failure = interface->failure();
    const std::string text =
        failure->text == nullptr ? "Internal error: Allotment failed without setting an error" : failure->text;
    if (failure->kind == ALLOTMENT_OUT_OF_MEMORY || failure->kind == ALLOTMENT_REJECTED) {
        C10_THROW_ERROR(OutOfMemoryError, text);
    }
    C10_THROW_ERROR(Error, text);
}

/* `ok`: whether a function of the interface succeeded. */
void check(bool ok) {
    if (C10_UNLIKELY(!ok)) throw_failure();
}

/* NULL: PyTorch has not requested memory of this device yet. */
const allotment_entry_points* entry_points_if_bound(int device) { return bound_devices[device].entry_points; }

const allotment_entry_points* entry_points_of(int device) {
    if (C10_UNLIKELY(entry_points_if_bound(device) == nullptr)) check(interface->bind(device));
    return entry_points_if_bound(device);
}

int64_t value_of(const allotment_figure& figure) {
    int64_t value = 0;
    for (int size_class = 0; size_class < 2; ++size_class) {
        value += __atomic_load_n(&figure.ceiling[size_class], __ATOMIC_RELAXED) -
                 __atomic_load_n(&figure.room[size_class], __ATOMIC_RELAXED);
    }
    return value;
}

/* A function of the device's entry points has failed. */
[[noreturn]] void throw_failure_of(int device) {
    interface->take_failure(device);
    throw_failure();
}

}
}
