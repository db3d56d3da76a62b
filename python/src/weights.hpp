#pragma once
// The weight channel.

#include "nb.hpp"

namespace rollring::python {

void bind_weights(nb::module_& module);

}  // namespace rollring::python
