#pragma once
// The rollout side: takes a lane of a ring and puts trajectories into it.
//
// One thread at a time per Producer; any number of Producers per process. A Producer is inert in a
// forked child. If its process dies, everything committed still arrives and the lane becomes free.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

// Most runs set only `name`, and `max_records` if the ring has a Consumer and no Stash. The order
// of the fields is stable, for designated initialisers.
struct ProducerOptions {
    std::string name = {};  // up to 39 bytes, shown by `rollring stat`; default: the program
    std::chrono::nanoseconds attach_timeout =
        std::chrono::seconds(10);  // for the ring to appear and a lane to be free
    std::chrono::nanoseconds spin =
        std::chrono::microseconds(20);  // before sleeping; 0 on a single CPU
    Checksum checksum = Checksum::none;
    // Calls wait while the ring holds this many records that were sent and not released; 0: no
    // bound. The records of all producers count. If all producers set the same number, the ring
    // never holds more, even if some are killed. For a Consumer; a Stash bounds its groups itself.
    // A reservation counts from reserve() on; if it is abandoned, the next call reuses its credit.
    std::uint64_t max_records = 0;
    // If set and this process dies, the lane is kept for the next producer with the same text, once
    // the consumer has read all sent records. After open(), last() tells how far the predecessor
    // got: a producer that logs the positions of its records before each flush() learns from it
    // which were sent. One producer at a time for the same text. close() gives the lane up.
    std::string keep_for = {};
    Purpose purpose = Purpose::records;  // of the ring; open() refuses one of another purpose
};

enum class [[nodiscard]] Push {
    ok,
    timed_out,   // no room, or no place for a new group, by the deadline: the record was not taken
    too_large,   // larger than a lane, or its group larger than the ring
    bad_record,  // breaks the schema: see problem()
    closed,      // this producer was closed or forked away, its lane quarantined, its ring removed
    not_reserved,  // Reservation::commit(): it was committed, or a later call has taken its room
};
ROLLRING_API std::string_view name(Push push);

// The facts about a group that are known before its generation. For a fact of 0 the ring uses its
// own: the stash's group_size, and the lengths of recent records.
struct GroupPlan {
    std::uint32_t group_size = 0;    // members; 0: as many as the stash expects
    std::uint64_t record_bytes = 0;  // of its longest record
};

struct ProducerStats {
    std::uint64_t records;  // committed by this producer
    std::uint64_t tokens;
    std::uint64_t bytes;  // in the lane, frames and padding included
    std::uint64_t waits;  // times it had to wait for room
    std::uint64_t paces;  // times it gave a consumer that was behind some time to catch up
    std::uint64_t laps_soft;
    std::uint64_t laps_full;
    std::uint64_t jumps;
    std::uint64_t lane_bytes;  // size of this producer's lane
};

class Reservation;

class ROLLRING_API Producer {
  public:
    // Waits for the ring and for a free lane, then reserves the lane's memory.
    static Result<Producer> open(std::string_view ring, const ProducerOptions& options = {});

    Producer(Producer&&) noexcept;
    Producer& operator=(Producer&&) noexcept;
    ~Producer();  // closes

    // Encodes the draft straight into the lane and makes it visible. Waits for room until the
    // deadline. After Push::ok the record survives this process. Pacing: with room left it still
    // waits up to 4 ms, mostly asleep, if the consumer reads but lags by more than the soft wrap,
    // or by more than this lane's part of the cache where several are busy, so that both sides stay
    // in cache. No pacing with an expired deadline or a spin of 0.
    Push push(const Draft& draft, Deadline deadline);

    // The same, but the record becomes visible with the next flush(), push() or wait for room: this
    // saves one atomic store per record.
    Push push_later(const Draft& draft, Deadline deadline);
    void flush();

    // Takes a place for a group before any of it is generated, so that rollouts which the trainer
    // cannot take yet are not begun. push() does the same with the first member of a group: where a
    // stash bounds its open groups, a new one waits for a place, and a member of an open group
    // never does. Push::ok at once if the group is open already, or if the consumer forms none.
    // Until a trainer attaches, the ring's initial bounds apply. Push::timed_out if no place was
    // free by the deadline. A place is taken until the group is over at the stash, or given back by
    // cancel_group() or when this producer closes. With a plan the room for the group is known from
    // the start: Push::too_large at once if the whole ring has less.
    Push open_group(std::string_view instance_id, std::uint64_t visit, Deadline deadline,
                    const GroupPlan& plan = {});
    // Like open_group(), but never waits; false is not a refusal, it means "send another group
    // first". For a caller that holds records of several groups.
    [[nodiscard]] bool may_send(std::string_view instance_id, std::uint64_t visit,
                                const GroupPlan& plan = {});

    // Gives back the place of a group that will not be begun. False if there is none: it was not
    // opened here, or a record of it is committed and the place is the stash's by now.
    bool cancel_group(std::string_view instance_id, std::uint64_t visit);
    bool cancel_group(const GroupKey& key);

    // Reserves room for a draft whose columns may have null data, to be filled in place.
    Push reserve(const Draft& draft, Deadline deadline, Reservation& reservation);

    // Sends the pending records and gives the lane back. The consumer sees a normal end.
    void close();

    // Why the last call did not return Push::ok, for people.
    [[nodiscard]] std::string problem() const;
    [[nodiscard]] const Schema& schema() const;
    [[nodiscard]] std::uint32_t lane() const;
    [[nodiscard]] ProducerStats stats() const;
    // Position of the latest committed record. `lines` is 0 if there is none; the first one will
    // lie at this position or later.
    [[nodiscard]] RecordRef last() const;
    [[nodiscard]] bool consumer_alive() const;
    // With a ledger (RingOptions::ledger_dir): so many of this producer's records, from the first
    // on, are durable, or were dropped by the stash. The death of the machine takes the others. 0
    // without a ledger.
    [[nodiscard]] std::uint64_t durable_records() const;

  private:
    friend class Reservation;
    friend class RelayProducer;
    struct ROLLRING_LOCAL Impl;
    struct ROLLRING_LOCAL LetGo {
        void operator()(Impl* impl) const noexcept;
    };
    using Shared = std::unique_ptr<Impl, LetGo>;  // the producer's and each reservation's
    explicit Producer(std::unique_ptr<Impl> impl);
    Shared impl_;
};

// Room for one record, to be written in place. Abandoned unless committed. Valid until its Producer
// next looks for room or closes; the Producer may be moved meanwhile. Afterwards commit() fails,
// and the other calls do nothing. Memory from values() and bytes() is not reused while this object
// lives, even if the Producer is gone.
class ROLLRING_API Reservation {
  public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();

    // The elements of a column that the draft declared; empty if it did not, or has another dtype.
    template <class T>
    [[nodiscard]] std::span<T> values(Std column) const {
        const auto found = bytes(static_cast<std::uint16_t>(column), dtype_of<T>());
        return {reinterpret_cast<T*>(found.data()), found.size() / sizeof(T)};
    }
    [[nodiscard]] std::span<std::byte> bytes(std::uint16_t column, DType dtype) const;

    // Fewer tokens than reserved for: per-token columns are cut to `n_tokens` rows and moved up.
    void shrink(std::uint32_t n_tokens);

    // Sets the outcome after the room was reserved. False, and nothing is set, if n_prompt exceeds
    // the number of tokens, or the reservation has no room (any more).
    bool set(const RolloutOutcome& outcome);

    // The record as the consumer will see it.
    [[nodiscard]] TrajectoryView view() const;

    // Makes it visible (now, or with the next flush()). Push::ok: the record survives this process,
    // after commit_later() once it was flushed. Push::closed: the producer was closed, destroyed or
    // forked away. Push::not_reserved: there is nothing (any more) to commit. Push::bad_record: the
    // column policy_version has invalid runs; the record is abandoned.
    Push commit();
    Push commit_later();

  private:
    friend class Producer;
    [[nodiscard]] ROLLRING_LOCAL bool good() const;
    Push commit(bool now);
    Producer::Shared impl_;
    std::uint64_t serial_ = 0;  // of the call that made it: the next one takes its room
    std::span<std::byte> payload_;
    bool versions_named_ = false;  // by the draft or set(), not by runs written into the column
};

}  // namespace rollring
