#pragma once
// Threads take turns at an object of the library, which one thread at a time may use.
//
// No thread waits for its turn with the GIL held, because a turn may last as long as a slice of a
// wait; and no thread waits for the GIL during its turn. A thread that waits for an arrival gives
// way to threads with work: they claim the turn, which ends the waiter's slice if that is possible,
// and delays its next one.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>

#include "errors.hpp"
#include "forks.hpp"
#include "released.hpp"
#include "rollring/time.hpp"

namespace rollring::python {

class Turns {
  public:
    // `hurry`, called with the GIL held, ends the slice of the thread that waits during its turn.
    explicit Turns(std::function<void()> hurry = {}) : hurry_(std::move(hurry)) {}

    [[nodiscard]] bool inherited() const { return forks_ != fork_number(); }
    void check(const char* what) const {
        if (inherited()) {
            raise("forked",
                  std::string(what) + " belongs to the parent process: open another one here");
        }
    }
    // In the order of the calls: the next thread holds `next_`.
    void lock() {
        const std::scoped_lock next(next_);
        now_.lock();
    }
    bool try_lock() {
        const std::unique_lock next(next_, std::try_to_lock);
        return next.owns_lock() && now_.try_lock();
    }
    void unlock() { now_.unlock(); }
    // Takes the turn for a slice of a wait, once no thread claims it.
    void lock_for_wait() {
        {
            std::unique_lock claims(claims_mutex_);
            unclaimed_.wait(claims, [this] { return claims_ == 0; });
        }
        lock();
    }
    // The same for use(), which is such a slice.
    template <class Use>
    auto in_wait(Use use) {
        lock_for_wait();
        const std::scoped_lock turn(std::adopt_lock, *this);
        return use();
    }
    // Requires the GIL.
    void claim() {
        {
            const std::scoped_lock claims(claims_mutex_);
            claims_++;
        }
        if (hurry_ && !calm_) hurry_();
    }
    // Requires the GIL and the turn, for a call that no claim may hurry.
    void calm(bool calm) { calm_ = calm; }
    void drop_claim() {
        const std::scoped_lock claims(claims_mutex_);
        if (--claims_ == 0) unclaimed_.notify_all();
    }

  private:
    std::function<void()> hurry_;
    bool calm_ = false;
    std::mutex claims_mutex_;
    std::condition_variable unclaimed_;
    int claims_ = 0;
    std::uint64_t forks_ = fork_number();
    std::mutex next_;
    std::mutex now_;
};

// Requires the GIL before and after. No Python code may run within: it could ask for a turn, too.
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

// From a timeout in seconds; None: no deadline.
inline Deadline deadline_of(std::optional<double> timeout) {
    if (!timeout) return Deadline::never();
    if (!(*timeout > 0)) return Deadline::now();
    if (*timeout > 1e9) return Deadline::never();
    return Deadline::after_ns(static_cast<std::int64_t>(*timeout * 1e9));
}

// The only loop that waits: calls step(deadline) without the GIL, in slices, between which signals
// are handled, as long as goes_on(answer) and until the deadline has passed. Returns the last
// answer.
template <class Step, class GoesOn>
auto in_slices(Deadline deadline, Step step, GoesOn goes_on) {
    constexpr std::int64_t slice_ns = 50'000'000;
    while (true) {
        const Deadline slice = Deadline::after_ns(slice_ns);
        auto answer = [&] {
            const Released released;
            return step(deadline.at_ns <= slice.at_ns ? deadline : slice);
        }();
        if (!goes_on(answer) || deadline.passed()) return answer;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

// The same until the answer differs from `waiting`. Each slice has the turn, and other threads take
// theirs in between.
template <class Step>
auto in_turns(Turns& turns, Deadline deadline, Step step, decltype(step(deadline)) waiting) {
    return in_slices(
        deadline, [&](Deadline slice) { return turns.in_wait([&] { return step(slice); }); },
        [&](const auto& answer) { return answer == waiting; });
}

// Calls open(patience), which itself waits that long, again while it fails with one of the codes in
// `absent`.
template <class Open>
auto opened(Deadline deadline, std::initializer_list<Errc> absent, Open open) {
    return value_or_raise(in_slices(
        deadline,
        [&](Deadline slice) {
            return open(
                std::chrono::nanoseconds(std::max<std::int64_t>(0, slice.at_ns - monotonic_ns())));
        },
        [&](const auto& made) {
            return !made && std::ranges::find(absent, made.error().code) != absent.end();
        }));
}

}  // namespace rollring::python
