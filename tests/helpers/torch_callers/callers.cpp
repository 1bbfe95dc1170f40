/* Calls the plug-in's functions as PyTorch does: by address, with its C++ types, ready for its exceptions. */
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

#include "c10.hpp"

struct CUstream_st;
using Stream = CUstream_st*;
using PoolId = std::pair<unsigned long long, unsigned long long>;

enum Outcome { FINE, OUT_OF_MEMORY, FAILED };

template <typename Call> static int attempt(char* text, Call call) {
    try {
        call();
        return FINE;
    } catch (const c10::OutOfMemoryError& error) {
        std::strncpy(text, error.what(), 1023);
        return OUT_OF_MEMORY;
    } catch (const std::exception& error) {
        std::strncpy(text, error.what(), 1023);
        return FAILED;
    }
}

extern "C" {

int call_allocate(void* (*allocate)(std::size_t, int, Stream), std::size_t size, int device, Stream stream,
                  void** address, char* text) {
    return attempt(text, [&] { *address = std::function<void*(std::size_t, int, Stream)>(allocate)(size, device, stream); });
}

int call_base(void* (*base)(void*, std::size_t*), void* address, std::size_t* size, void** found, char* text) {
    return attempt(text, [&] { *found = base(address, size); });
}

int call_record_stream(void (*record)(void*, Stream), void* address, Stream stream, char* text) {
    return attempt(text, [&] { record(address, stream); });
}

int call_fraction(void (*set)(double, int), double fraction, int device, char* text) {
    return attempt(text, [&] { set(fraction, device); });
}

int call_reset(void (*reset)(), char* text) {
    return attempt(text, [&] { reset(); });
}

/* `asked` counts; the function object carries state, as PyTorch's does. */
int call_begin(void (*begin)(int, PoolId, std::function<bool(Stream)>), int device, unsigned long long first,
               unsigned long long second, Stream accepted, int* asked, char* text) {
    return attempt(text, [&] {
        begin(device, PoolId(first, second), [accepted, asked](Stream stream) { ++*asked; return stream == accepted; });
    });
}

int call_with_pool(void (*function)(int, PoolId), int device, unsigned long long first, unsigned long long second,
                   char* text) {
    return attempt(text, [&] { function(device, PoolId(first, second)); });
}

}
