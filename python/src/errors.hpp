#pragma once
// rollring's errors as Python exceptions: the class by the code, with the message unchanged.

#include <string>
#include <string_view>

#include "nb.hpp"
#include "rollring/error.hpp"
#include "rollring/producer.hpp"

namespace rollring::python {

// The classes of rollring/errors.py, by the names of Errc; "" is the class for all others.
void set_error_classes(nb::dict classes);

[[noreturn]] void raise(std::string_view code, const std::string& message);
[[noreturn]] void raise(const Error& error);

template <class T>
T value_or_raise(Result<T> result) {
    if (!result) raise(result.error());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// A suggestion for an unknown name: ": did you mean group_size?", or nothing if no name is close.
std::string did_you_mean(std::string_view given, const nb::list& known);

}  // namespace rollring::python
