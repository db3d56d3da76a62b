#pragma once
// Errors on their way out of a function.

#include <expected>
#include <string>
#include <utility>

#include "rollring/error.hpp"

namespace rollring {

inline std::unexpected<Error> failed(Errc code, int system_errno, std::string message) {
    return std::unexpected(Error{code, system_errno, std::move(message)});
}

inline std::unexpected<Error> refused(Errc code, std::string message) {
    return failed(code, 0, std::move(message));
}

}  // namespace rollring
