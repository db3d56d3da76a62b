#pragma once
// GPU memory by tag, which torch's allocator takes its memory from.

#include "nb.hpp"

namespace rollring::python {

void bind_domain(nb::module_& module);

}  // namespace rollring::python
