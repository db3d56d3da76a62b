#pragma once
// The parts of rollring._core, each of which adds its classes to the module.

#include "nb.hpp"

namespace rollring::python {

// Consumer and its records, copied, for rollring/extras/queue.py.
void bind_consumer(nb::module_& module);
// Arrays of other packages, through DLPack.
void bind_dlpack(nb::module_& module);
// GPU memory by tag, from which torch's allocator takes its memory.
void bind_domain(nb::module_& module);
// PlainCodec: a Memory with the bytes of a tree, and the tree for such bytes.
void bind_plain(nb::module_& module);
// Parking and ParkedRollout for rollring/_parked.py; parked_list for rollring/extras/ledger.py.
void bind_parked(nb::module_& module);
// Producer and Reservation for rollring/_producer.py.
void bind_producer(nb::module_& module);
// Reader and Share for rollring/_reader.py.
void bind_reader(nb::module_& module);
// LedgerRestore and ledger_stat for rollring/extras/ledger.py.
void bind_ledger(nb::module_& module);
// RecordingWriter, Recording and RecordedBatch for rollring/extras/recording.py.
void bind_recording(nb::module_& module);
// A ring's records as parcels, and parcels into a ring (extras/relay).
void bind_outbox(nb::module_& module);
void bind_inbox(nb::module_& module);
// Both ends of a ring's requests.
void bind_requests(nb::module_& module);
// Stash for rollring/_stash.py.
void bind_stash(nb::module_& module);
// Store for rollring/extras/store.py.
void bind_store(nb::module_& module);
// Tap for rollring/tap.py.
void bind_tap(nb::module_& module);
// The weight channel.
void bind_weights(nb::module_& module);

}  // namespace rollring::python
