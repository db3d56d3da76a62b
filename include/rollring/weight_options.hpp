#pragma once
// The options of both ends of the weight channel (weights.hpp).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rollring/weight_delta.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring {

struct PublisherOptions {
    std::string name = "trainer";  // for people, up to 31 bytes
    // Publishers that commit together, one per GPU; each with its own rank below `ranks`.
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    Device device = Device::host();  // of all tensors
    PayloadMemory memory = PayloadMemory::automatic;
    bool allow_legacy_ipc = false;  // automatic may fall back to it where vmm is refused
    // automatic takes PayloadMemory::direct where all tensors allow it: the caller keeps its
    // promise.
    bool allow_direct = false;
    // 1 to 16; 0: two if a version fits into one slot, else four. Two processes on one GPU take
    // turns; with more slots, each can copy more parts in its turn.
    std::uint32_t slots = 0;
    std::uint64_t slot_bytes = 0;  // 0: 512 MiB, or less if a version is smaller
    bool checksums = false;        // of every tensor's published bytes, checked by subscribers
    // For relays: parts are written by RelayTransaction, tensor addresses are ignored.
    bool handed_on = false;
    std::uint32_t subscribers_max = 64;                             // at once, up to 256
    std::chrono::nanoseconds spin = std::chrono::microseconds(20);  // before a wait sleeps
    // For a trainer whose ranks have a shard each: the table of a WeightLayout (to_bytes) with the
    // boxes that this rank's tensors hold. Its memories have the names, the published dtypes and
    // the numbers of elements of tensors. The slots then hold a whole version (slot_bytes and slots
    // are chosen so), an engine that ends before it has staged a version aborts it, and engines
    // that lack the committed version get it again after each abort. With PayloadMemory::direct, on
    // all ranks or none, there are no slots, and they get it by Publisher::resend.
    std::vector<std::byte> layout = {};
};

struct SubscriberOptions {
    std::string name = "engine";  // unique on a channel: it names the subscriber in errors
    // The rank of the publisher. Not set: the publisher on the same GPU, else the only publisher of
    // a channel with one rank.
    std::optional<std::uint32_t> rank = {};
    Device device = Device::host();  // the device of the tensors, which also copies
    // True: the engine loads into the memory that it serves, so that a failure poisons the
    // subscriber. False: it loads into memory that it does not serve until adopt(), and a failure
    // leaves the old version.
    bool in_place = true;
    bool partial = false;  // `into` may lack tensors of the channel
    // The version that the engine already serves completely, from an earlier attachment; -1: none.
    // The publisher does not send it again. A version that neither the ring nor the publisher has
    // had is refused.
    std::int64_t held_version = -1;
    std::chrono::nanoseconds spin = std::chrono::microseconds(20);
    // Called about 20 times a second while attach waits. If it returns false, the wait ends as at
    // its deadline. Empty: only the deadline ends it.
    std::function<bool()> keep_waiting = {};
    // Staging::delta is for engines with tensors of their own (`into`), which no other code writes
    // to while a version is staged or can be rolled back. in_place is ignored then.
    Staging staging = Staging::copy;
    DeltaFallback delta_fallback = DeltaFallback::refuse;
    // Memory of the list; 0: a quarter of the tensors' bytes, 64 KiB at least.
    std::uint64_t delta_list_bytes = 0;
    // With Staging::delta, for an engine that serves while a version is loaded: load() keeps the
    // GPU busy for this share of the time, above 0 and up to 1, in bursts below a millisecond. The
    // exchange has the whole GPU. Has no effect on the host.
    double staging_share = 1;
    // With Staging::delta: next() ends with Errc::rollback_asked once ask_rollback() wants the
    // version to be left that the engine serves. Without it ask_rollback() is told that the engine
    // refuses.
    bool rollback_when_asked = false;
    // For an engine of a sharded trainer: the table of a WeightLayout (to_bytes) with the boxes
    // that this engine's tensors need, in memories of the names, dtypes and numbers of elements of
    // `into`, which are contiguous. It attaches to all ranks. A version stays in their slots until
    // it is committed; adopt() copies it, or exchanges the one list of Staging::delta, so that only
    // a device that fails poisons the engine. in_place and partial are ignored.
    std::vector<std::byte> layout = {};
    // With a layout and Staging::copy: load() copies the parts of ranks on other GPUs to this
    // one, into memory for these bytes (Subscriber::staging_bytes), so that adopt() copies within
    // the GPU alone. Where there is no memory for it, adopt() copies from the other GPUs
    // (Subscriber::why_not_staged).
    bool stage_remote = true;
};

}  // namespace rollring
