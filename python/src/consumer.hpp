#pragma once
// Consumer and its records, copied, for rollring/extras/queue.py.

#include "nb.hpp"

namespace rollring::python {

void bind_consumer(nb::module_& module);

}  // namespace rollring::python
