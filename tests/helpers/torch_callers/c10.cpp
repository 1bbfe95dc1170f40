#include "c10.hpp"

namespace c10 {

Error::Error(SourceLocation, std::string text) : text_(std::move(text)) {}
const char* Error::what() const noexcept { return text_.c_str(); }

}
