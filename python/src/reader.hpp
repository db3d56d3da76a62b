#pragma once
// Reader and Share for rollring/_reader.py.

#include "nb.hpp"

namespace rollring::python {

void bind_reader(nb::module_& module);

}  // namespace rollring::python
