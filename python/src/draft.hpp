#pragma once
// Draft for rollring/_producer.py.

#include <memory>

#include "nb.hpp"
#include "producing.hpp"

namespace rollring::python {

nb::object made_draft(std::shared_ptr<Reserved> reserved);
void bind_draft(nb::module_& module);

}  // namespace rollring::python
