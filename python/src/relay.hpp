#pragma once
// rollring.relay: a ring's records as parcels, and parcels into a ring (extras/relay).

#include "nb.hpp"

namespace rollring::python {

void bind_outbox(nb::module_& module);
void bind_inbox(nb::module_& module);

}  // namespace rollring::python
