#pragma once
// Threads take turns at an object of the library, which one thread at a time may use.
//
// Nobody waits for a turn with the GIL held, for a turn may last as long as a slice of a wait; and
// nobody waits for the GIL with a turn. Who waits for something to come stands back for those who
// have something to do: they claim the turn, which ends its slice where it can be ended, and holds
// off the next one.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "errors.hpp"
#include "forks.hpp"
#include "released.hpp"
#include "rollring/time.hpp"

namespace rollring::python {

class Turns {
  public:
    // `hurry`, with the GIL held, ends the slice of who waits with the turn.
    explicit Turns(std::function<void()> hurry = {}) : hurry_(std::move(hurry)) {}

    [[nodiscard]] bool inherited() const { return forks_ != fork_number(); }
    void check(const char* what) const {
        if (inherited()) {
            raise("forked",
                  std::string(what) + " belongs to the parent process: open another one here");
        }
    }
    // In the order in which they ask: who waits holds `next_`.
    void lock() {
        const std::scoped_lock next(next_);
        now_.lock();
    }
    bool try_lock() {
        const std::unique_lock next(next_, std::try_to_lock);
        return next.owns_lock() && now_.try_lock();
    }
    void unlock() { now_.unlock(); }
    // For a slice of a wait: once nobody claims the turn.
    void lock_for_wait() {
        {
            std::unique_lock claims(claims_mutex_);
            unclaimed_.wait(claims, [this] { return claims_ == 0; });
        }
        lock();
    }
    // With the GIL held.
    void claim() {
        {
            const std::scoped_lock claims(claims_mutex_);
            claims_++;
        }
        if (hurry_) hurry_();
    }
    void drop_claim() {
        const std::scoped_lock claims(claims_mutex_);
        if (--claims_ == 0) unclaimed_.notify_all();
    }

  private:
    std::function<void()> hurry_;
    std::mutex claims_mutex_;
    std::condition_variable unclaimed_;
    int claims_ = 0;
    std::uint64_t forks_ = fork_number();
    std::mutex next_;
    std::mutex now_;
};

// With the GIL held before and after. No Python code may run within: it could ask for a turn, too.
class Turn {
  public:
    explicit Turn(Turns& turns) : turns_(turns) {
        if (turns.try_lock()) return;
        turns.claim();
        do {
            const Released released;
            const std::scoped_lock until_then(turns);
        } while (!turns.try_lock());
        turns.drop_claim();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { turns_.unlock(); }

  private:
    Turns& turns_;
};

// Seconds as Python gives them: None is for ever.
inline Deadline deadline_of(std::optional<double> timeout) {
    if (!timeout) return Deadline::never();
    if (!(*timeout > 0)) return Deadline::now();
    if (*timeout > 1e9) return Deadline::never();
    return Deadline::after_ns(static_cast<std::int64_t>(*timeout * 1e9));
}

// Runs step(deadline) until it says something else than `waiting`, or the deadline is over: without
// the GIL, and with the turn, in slices, between which signals are seen and other threads have
// their turn. Returns step's answer.
template <class Step>
auto in_slices(Turns& turns, Deadline deadline, Step step, decltype(step(deadline)) waiting) {
    constexpr std::int64_t slice_ns = 50'000'000;
    while (true) {
        const Deadline slice = Deadline::after_ns(slice_ns);
        const bool last = deadline.at_ns <= slice.at_ns;
        auto answer = waiting;
        {
            Released released;
            turns.lock_for_wait();
            const std::scoped_lock turn(std::adopt_lock, turns);
            answer = step(last ? deadline : slice);
        }
        if (answer != waiting || deadline.passed()) return answer;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

}  // namespace rollring::python
