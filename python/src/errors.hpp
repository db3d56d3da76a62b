#pragma once
// rollring's errors as Python exceptions: the class by the code, with the message unchanged.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

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

// "an integer from 0 to 65535": the values that Python may give for a T.
template <class T>
std::string kind_of() {
    if constexpr (std::is_same_v<T, bool>) {
        return "True or False";
    } else if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(std::int64_t)) {
        using Limits = std::numeric_limits<T>;
        return "an integer from " + std::to_string(Limits::min()) + " to " +
               std::to_string(Limits::max());
    } else if constexpr (std::is_integral_v<T>) {
        return std::is_signed_v<T> ? "an integer" : "an integer, 0 or more";
    } else if constexpr (std::is_floating_point_v<T>) {
        return "a float";
    } else if constexpr (std::is_same_v<T, std::string>) {
        return "text";
    } else if constexpr (requires { typename T::value_type; }) {
        return kind_of<typename T::value_type>();  // an optional
    } else {
        return std::is_same_v<T, nb::dict> ? "a dict" : "a list";
    }
}

// A suggestion for an unknown name: ": did you mean group_size?", or nothing if no name is close.
std::string did_you_mean(std::string_view given, const nb::list& known);

}  // namespace rollring::python
