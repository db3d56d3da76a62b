#pragma once
// For a name that is unknown: the known one that was meant.

#include <string>
#include <string_view>

#include "nb.hpp"

namespace rollring::python {

// ": did you mean group_size?", or nothing where no name is close.
std::string did_you_mean(std::string_view given, const nb::list& known);

}  // namespace rollring::python
