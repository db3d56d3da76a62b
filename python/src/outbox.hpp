#pragma once
// Outbox and Inbox, for rollring/ray: a ring's records as parcels, and parcels into a ring.

#include "nb.hpp"

namespace rollring::python {

void bind_outbox(nb::module_& module);
void bind_inbox(nb::module_& module);

}  // namespace rollring::python
