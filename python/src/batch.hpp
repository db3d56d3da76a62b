#pragma once
// Batch for rollring/_batch.py.

#include <memory>

#include "leased.hpp"
#include "nb.hpp"

namespace rollring::python {

nb::object made_batch(std::shared_ptr<Leased> leased);
void bind_batch(nb::module_& module);

}  // namespace rollring::python
