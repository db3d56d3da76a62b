#pragma once
// Options given by name. An invalid option raises an error that names it.

#include "nb.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "rollring/weights.hpp"

namespace rollring::python {

StashOptions stash_options(nb::dict given);
RingOptions ring_options(nb::dict given);
// Only the options that were given.
RingExpectation ring_expectation(nb::dict given);
PublisherOptions publisher_options(nb::dict given);
SubscriberOptions subscriber_options(nb::dict given);

}  // namespace rollring::python
