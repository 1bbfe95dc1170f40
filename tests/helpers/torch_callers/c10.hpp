/* As much of PyTorch's exceptions as a plug-in meets: same names, same constructor, same inheritance. */
#pragma once
#include <cstdint>
#include <exception>
#include <string>

namespace c10 {

struct SourceLocation {
    const char* function;
    const char* file;
    std::uint32_t line;
};

class __attribute__((visibility("default"))) Error : public std::exception {
    std::string text_;
public:
    Error(SourceLocation where, std::string text);
    const char* what() const noexcept override;
};

class __attribute__((visibility("default"))) OutOfMemoryError : public Error {
    using Error::Error;
};

}
