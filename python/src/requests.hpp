#pragma once
// Both ends of a ring's requests.

#include "nb.hpp"

namespace rollring::python {

void bind_requests(nb::module_& module);

}  // namespace rollring::python
