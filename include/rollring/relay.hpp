#pragma once
// Experimental: the calls of a relay, a process that reads a ring of its node and sends its records
// into the ring of another node, or a weight channel's versions into another channel
// (rollring.integrations.ray). All other programs need none of them.
//
// Thread and process safety are those of the object that a call is given. In a forked child a call
// writes nothing.
//
// A place is a credit for one group: Producer::open_group() takes it, and the group's end at
// the stash, Producer::cancel_group() or Producer::close() gives it back.

#include <cstddef>
#include <cstdint>
#include <span>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/version.hpp"
#include "rollring/weights.hpp"

namespace rollring {

// Places that outlive a producer, for a relay that records them (ProducerOptions::keep_for), and
// places that are taken in advance.
class ROLLRING_API RelayProducer {
  public:
    // RingStat::ring_id of the ring that the producer writes to. After a ring is re-created, its
    // name refers to the new one.
    [[nodiscard]] static std::uint64_t ring_id(const Producer& producer);

    // Whether the producer holds a place for this group: it was taken here, and no record of the
    // group is committed.
    [[nodiscard]] static bool holds_place(const Producer& producer, const GroupKey& key);
    // Restores a predecessor's place without waiting; call it before the first send. Others could
    // take the place meanwhile, so the bounds may be exceeded by that number.
    static void inherit_place(Producer& producer, const GroupKey& key, const GroupPlan& plan);

    // Spare places let a relay accept the records of a new group without a wait. A stand-in is a
    // key that no group has. A spare place is granted only while places() is plenty (no producer
    // waits, and less than half of the bounds is taken). Return it by cancel_group() once places()
    // is scarce.
    enum class Places { not_asked_for, plenty, scarce };
    [[nodiscard]] static Places places(const Producer& producer);
    [[nodiscard]] static bool take_spare_place(Producer& producer, const GroupKey& stand_in,
                                               const GroupPlan& plan);
    // Gives the stand-in's place to the group. False, without an effect, if the group needs none:
    // it is open, or has one.
    static bool pass_place(Producer& producer, const GroupKey& stand_in, const GroupKey& key);

    // Leaves out a number of the producer's sequence, for a record that cannot be sent any more:
    // those behind it keep theirs. The consumer counts it as lost.
    static void lose_record(Producer& producer);
};

class ROLLRING_API RelayConsumer {
  public:
    // Bounds the groups that producers of this ring may have open at once; without this call there
    // is no bound. A group counts until its first record is released or the group is cancelled, as
    // at a stash with a bound. A group that is open at the other node is unknown here, and needs a
    // place.
    static void bound_groups(Consumer& consumer, std::uint64_t places);
    // The number of groups that count against the bound.
    [[nodiscard]] static std::uint64_t announced_groups(const Consumer& consumer);
};

// A version that comes part by part from a channel with the same packing
// (PublisherOptions::handed_on). Errors, in addition: those of every call of a Transaction.
class ROLLRING_API RelayTransaction {
  public:
    // Returns the next part's memory in its slot, with its checksums if there are any, for the
    // caller to fill. Several may be lent at once. It replaces put() for a whole version.
    // Errors: timed_out (names the subscriber that holds slots; may be called again).
    static Result<std::span<std::byte>> lend_part(Transaction& transaction, Deadline deadline);
    // Hands the oldest lent part to subscribers: all writes to it must be complete. Writes to lent
    // parts must end before abort(), too.
    static Result<void> part_written(Transaction& transaction);
};

class ROLLRING_API RelaySubscriber {
  public:
    // The largest size of a part, without checksums: a publisher of the same tensors with this as
    // its slot_bytes has the same parts. unsupported: with PayloadMemory::direct a part is the
    // trainer's memory, which is not handed on.
    [[nodiscard]] static Result<std::uint64_t> part_bytes(const Subscriber& subscriber);
};

}  // namespace rollring
