#pragma once
// Sleeping until another process rings.
//
//   waiter:  seen = prepare();  look once more;  sleep(seen, ...) or cancel()
//   ringer:  store the new word;  if (must_ring()) wake
//
// `waiting` and the word that is stored form a Dekker pair: both sides store, then load the other's
// word, all seq_cst, so at least one of them sees the other. The ringer clears `waiting` before it
// changes `sequence`: a waiter that has read the old sequence is then woken or not put to sleep.
// Every sleep is bounded nevertheless, because a ringer may be killed between its two steps.

#include <atomic>
#include <cstdint>

#include "layout.hpp"
#include "rollring/time.hpp"

namespace rollring {

template <class Platform>
class BellCore {
    using Order = typename Platform::Order;
    using AtomicU32 = typename Platform::template Atomic<std::uint32_t>;

  public:
    BellCore(AtomicU32& sequence, AtomicU32& waiting) : sequence_(&sequence), waiting_(&waiting) {}

    [[nodiscard]] std::uint32_t prepare() {
        const std::uint32_t seen = sequence_->load(std::memory_order_acquire);
        waiting_->store(1, Order::bell_waiting);
        return seen;
    }
    void cancel() { waiting_->store(0, std::memory_order_relaxed); }

    [[nodiscard]] bool must_ring() {
        if (waiting_->load(Order::bell_waiting) == 0) return false;
        waiting_->store(0, std::memory_order_relaxed);
        sequence_->fetch_add(1, std::memory_order_acq_rel);
        return true;
    }

    [[nodiscard]] AtomicU32& sequence() { return *sequence_; }

  private:
    AtomicU32* sequence_;
    AtomicU32* waiting_;
};

// No sleep is longer, regardless of its deadline: a peer may die between its commit and its
// wake-up.
inline constexpr std::int64_t sleep_max_ns = 100'000'000;

// Sleeps while `word` still holds `seen`, until woken, until the deadline, or sleep_max_ns at most.
// Spurious returns happen. Works across processes (the futex is not private).
void futex_sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline);

// Wakes every process that sleeps on `word`.
void futex_wake(std::atomic<std::uint32_t>& word);

// A hint to the CPU inside a spin loop.
void spin_pause();

// Ends a wait at a bell from another thread of the waiter's process. The waiter checks between
// prepare() and its sleep; a later interruption changes the number that it sleeps on.
class Interruption {
  public:
    void raise(Bell& bell) {
        raised_.store(true, std::memory_order_release);
        bell.sequence.fetch_add(1, std::memory_order_acq_rel);
        futex_wake(bell.sequence);
    }
    [[nodiscard]] bool raised() const { return raised_.load(std::memory_order_acquire); }
    // True once for all interruptions since the last call.
    [[nodiscard]] bool take() {
        return raised_.load(std::memory_order_relaxed) &&
               raised_.exchange(false, std::memory_order_acquire);
    }

  private:
    std::atomic<bool> raised_{false};
};

// A bell for processes that store with a plain release, off the hot path: both sides swap
// `waiting`, so that one of them reads the other's word and sees everything that was stored before
// it.
inline void ring_plain(Bell& bell) {
    if (bell.waiting.exchange(0, std::memory_order_acq_rel) == 0) return;
    bell.sequence.fetch_add(1, std::memory_order_acq_rel);
    futex_wake(bell.sequence);
}

// Waits on such a bell until `look()` is true: spins for `spin`, then sleeps. False at the
// deadline. After each sleep, so every 100 ms at least, `look` is called again.
template <class Look>
[[nodiscard]] bool wait_plain(Bell& bell, std::chrono::nanoseconds spin, Deadline deadline,
                              const Look& look) {
    if (look()) return true;
    for (const Deadline end = Deadline::after(spin); !end.passed();) {
        for (int i = 0; i < 16; i++) spin_pause();
        if (look()) return true;
        if (deadline.passed()) return false;
    }
    for (;;) {
        const std::uint32_t seen = bell.sequence.load(std::memory_order_acquire);
        bell.waiting.exchange(1, std::memory_order_acq_rel);
        if (look()) return true;
        if (deadline.passed()) return false;
        futex_sleep(bell.sequence, seen, deadline);
    }
}

}  // namespace rollring
