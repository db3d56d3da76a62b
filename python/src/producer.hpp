#pragma once
// Producer and Reservation for rollring/_producer.py.

#include "nb.hpp"

namespace rollring::python {

void bind_producer(nb::module_& module);

}  // namespace rollring::python
