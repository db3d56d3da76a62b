#pragma once
// The reader of a ring: one seat, all lanes, and release in any order, singly or as one event. A
// plain Consumer hands out its records and remembers them; a stash polls this class itself and
// keeps its own account.

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>

#include "doorbell.hpp"
#include "fault_point.hpp"
#include "producer_roster.hpp"
#include "reader_seat.hpp"
#include "ring_journal.hpp"
#include "rollring/consumer.hpp"

namespace rollring {

class ConsumerCore {
  public:
    // An announced group counts as arrived when its first record is read, when that record is
    // released, or when the owner says so (ProducerRoster::tell_claims).
    enum class Arrive { when_read, when_released, when_told };

    ConsumerCore(ReaderSeat seat, const ConsumerOptions& options, Arrive groups_arrive);
    ConsumerCore(const ConsumerCore&) = delete;
    ConsumerCore& operator=(const ConsumerCore&) = delete;

    // Recovers the state that a predecessor left.
    Result<void> start();

    // From now on, groups arrive when their records are released.
    void tell_claims_with_release() { groups_arrive_ = Arrive::when_released; }

    [[nodiscard]] ReaderSeat& seat() { return seat_; }
    [[nodiscard]] const RingMap& map() const { return seat_.map(); }
    [[nodiscard]] ReaderControl& control() const { return seat_.control(); }
    [[nodiscard]] bool usable() const { return seat_.usable(); }
    [[nodiscard]] ProducerRoster& roster() { return roster_; }
    [[nodiscard]] const ProducerRoster& roster() const { return roster_; }
    [[nodiscard]] RingJournal& journal() { return journal_; }
    [[nodiscard]] const RingJournal& journal() const { return journal_; }

    // Errc::forked in a forked child.
    [[nodiscard]] Result<void> check_usable() const;
    // Checks a step before it is stored: it must not be lower than the last one.
    [[nodiscard]] Result<void> check_step(std::int64_t step) const;
    [[nodiscard]] std::int64_t last_acked_step() const { return last_step_; }
    // Steps up to this one were acknowledged in another ring.
    void continue_after(std::int64_t step) { last_step_ = std::max(last_step_, step); }
    [[nodiscard]] std::int64_t policy_version() const { return peek(map().policy().version); }
    // The reason why it reads no more, as text.
    [[nodiscard]] std::string problem() const;

    Poll poll(Record& record);
    Poll wait(Record& record, Deadline deadline) {
        return wait(deadline, [&] { return poll(record); });
    }
    // The same with a custom poll step.
    template <class PollOnce>
    Poll wait(Deadline deadline, PollOnce poll_once);
    // Makes the current wait or the next one return timed_out; any thread may call it. The waiter
    // acknowledges it by take_interrupt().
    void interrupt();
    [[nodiscard]] bool take_interrupt() { return interruption_.take(); }

    // A held record, parsed from its bytes as they are now; see Consumer::view().
    bool view(const RecordRef& record, TrajectoryView& view) const;
    // The payload of a held record, which follows its frame.
    [[nodiscard]] const std::byte* payload(const RecordRef& record) const {
        return frame_of(record) + line_bytes;
    }
    [[nodiscard]] const std::byte* frame_of(const RecordRef& record) const {
        const Geometry& geometry = map().geometry();
        return seat_.all().data() + geometry.data_offset(record.lane) +
               record.position % geometry.capacity(record.lane);
    }
    void release(const RecordRef& record);
    // `delivered`: this process has read the records; false for a receipt, which names a
    // predecessor's.
    Result<void> release_all(std::span<const RecordRef> records, std::int64_t step, bool delivered);

    [[nodiscard]] ConsumerStats stats() const;

  private:
    Result<void> recover();
    void count(const Record& record);
    [[nodiscard]] ConsumerStats totals() const;

    ReaderSeat seat_;
    ProducerRoster roster_;
    RingJournal journal_;
    std::int64_t spin_ns_;
    Interruption interruption_;
    Arrive groups_arrive_;
    std::int64_t last_step_ = -1;  // the last acknowledged one; others may write the page
    ConsumerStats stats_{};
    ConsumerStats before_{};  // counters of the segment at start
};

template <class PollOnce>
Poll ConsumerCore::wait(Deadline deadline, PollOnce poll_once) {
    Bell& bell = map().consumer_bell();
    NativeBell core = bell_of(bell);
    std::int64_t spin_until = monotonic_ns() + spin_ns_;
    bool slept = false;
    for (;;) {
        Poll got = poll_once();
        if (got != Poll::empty) return got;
        // Only after a sleep, so that a caller that treats it as a timeout does not spin.
        if (slept && roster_.forsaken()) return Poll::closed;
        const std::int64_t now = monotonic_ns();
        if (deadline.at_ns <= now) return Poll::timed_out;
        if (now < spin_until) {
            for (int i = 0; i < 16; i++) spin_pause();
            continue;
        }
        const std::uint32_t seen = core.prepare();
        got = poll_once();
        FAULT_POINT("wait.before_sleep");
        const bool stay = !interruption_.raised();
        if (got == Poll::empty && stay) futex_sleep(bell.sequence, seen, deadline);
        core.cancel();
        if (got != Poll::empty) return got;
        if (!stay) return Poll::timed_out;
        spin_until = 0;
        slept = true;
    }
}

}  // namespace rollring
