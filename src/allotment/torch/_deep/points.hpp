/* The points, and their failures as PyTorch's exceptions. */
#pragma once

#include <c10/util/Exception.h>

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "allotment.h"
#include "allotment_points.h"
#include "contexts.hpp"

namespace allotment {
namespace {

const allotment_points* points = nullptr;

/* Never destroyed: threads may allocate and free until the process ends. */
Contexts& contexts() {
    static auto* all = new Contexts;
    return *all;
}

/* A message made without a C++ stream: where the compiler links the C++ library statically, this library holds another
 * copy of the streams than PyTorch's, and writing a pointer to one ends the process. */
__attribute__((format(printf, 1, 2))) std::string words(const char* form, ...) {
    char text[200];
    va_list values;
    va_start(values, form);
    std::vsnprintf(text, sizeof(text), form, values);
    va_end(values);
    return text;
}

/* What a function of others threw inside of the engine, which lets nothing through; thrown again when it is left. */
thread_local std::exception_ptr thrown_inside;

[[noreturn]] void fail() {
    if (thrown_inside) std::rethrow_exception(std::exchange(thrown_inside, nullptr));
    const allotment_failure* failure = points->failure();
    const std::string text = failure->text == nullptr ? "allotment failed without a word" : failure->text;
    if (failure->kind == ALLOTMENT_OUT_OF_MEMORY || failure->kind == ALLOTMENT_REJECTED) {
        C10_THROW_ERROR(OutOfMemoryError, text);
    }
    C10_THROW_ERROR(Error, text);
}

void expect(bool ok) {
    if (C10_UNLIKELY(!ok)) fail();
}

const allotment_entry_points* table_if_any(int device) {
    return static_cast<const allotment_entry_points*>(points->tables[device]);
}

const allotment_entry_points* table_of(int device) {
    auto* table = table_if_any(device);
    if (C10_LIKELY(table != nullptr)) return table;
    table = static_cast<const allotment_entry_points*>(points->table_of(device));
    expect(table != nullptr);
    return table;
}

[[noreturn]] void fail_of(int device) {
    points->take_failure(device);
    fail();
}

}
}
