#pragma once
// Store for rollring/_store.py.

#include "nb.hpp"

namespace rollring::python {

void bind_store(nb::module_& module);

}  // namespace rollring::python
