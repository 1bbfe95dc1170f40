/* Exceptions that PyTorch's C++ code turns into the Python exceptions its users know.
 *
 * c10::OutOfMemoryError becomes torch.OutOfMemoryError. It is put together from the symbols of the library that
 * is loaded, because the package is built without PyTorch: the class adds nothing to its base but its identity,
 * so the base's constructor and the class's own virtual table make one. Where a symbol is missing (another
 * version, another build), std::runtime_error carries the same text and becomes a RuntimeError.
 */
#pragma once

#include <cstdint>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

struct CUstream_st;

namespace allotment {

/* Exactly the types of PyTorch's hooks. */
using StreamFilter = std::function<bool(CUstream_st*)>;
using PoolId = std::pair<unsigned long long, unsigned long long>;

struct SourceLocation {     /* c10::SourceLocation */
    const char* function;
    const char* file;
    std::uint32_t line;
};

inline void destroy_exception(void* error) {
    static_cast<std::exception*>(error)->~exception();
}

inline void* symbol_of(const char* library, const char* name) {
    void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle == nullptr ? nullptr : dlsym(handle, name);
}

[[noreturn]] inline void throw_out_of_memory(const std::string& text) {
    using Construct = void (*)(void*, SourceLocation, std::string);
    constexpr std::size_t room = 1024;              /* an Error has about 200 bytes */
    constexpr std::size_t before_functions = 2;     /* words of a virtual table that precede what objects point to */
    auto construct = reinterpret_cast<Construct>(symbol_of("libc10.so",
        "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
    auto functions = static_cast<void**>(symbol_of("libc10_cuda.so", "_ZTVN3c1016OutOfMemoryErrorE"));
    auto type = static_cast<std::type_info*>(symbol_of("libc10_cuda.so", "_ZTIN3c1016OutOfMemoryErrorE"));
    if (construct == nullptr || functions == nullptr || type == nullptr) {
        throw std::runtime_error(text);
    }
    void* error = abi::__cxa_allocate_exception(room);
    construct(error, SourceLocation{"malloc", "allotment", 0}, text);
    *static_cast<void***>(error) = functions + before_functions;
    abi::__cxa_throw(error, type, destroy_exception);
}

[[noreturn]] inline void throw_error(const std::string& text) {
    throw std::runtime_error(text);
}

inline StreamFilter* keep_filter(const StreamFilter& filter) {
    return new StreamFilter(filter);
}

inline bool filter_accepts(StreamFilter* filter, std::uint64_t stream) {
    return (*filter)(reinterpret_cast<CUstream_st*>(stream));
}

inline void drop_filter(StreamFilter* filter) {
    delete filter;
}

}
