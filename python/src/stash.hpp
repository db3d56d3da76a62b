#pragma once
// Stash and Batch for rollring/_stash.py.

#include "nb.hpp"

namespace rollring::python {

void bind_stash(nb::module_& module);

}  // namespace rollring::python
