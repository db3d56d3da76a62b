#pragma once
// Store for rollring/extras/store.py.

#include "nb.hpp"

namespace rollring::python {

void bind_store(nb::module_& module);

}  // namespace rollring::python
