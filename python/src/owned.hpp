#pragma once
// An object of the library whose calls answer with a Result, shared by threads that take turns.

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"
#include "forks.hpp"
#include "turn.hpp"
#include "waiter.hpp"

namespace rollring::python {

template <class T>
struct Owned {
    Turns turns;
    std::optional<T> object;
    const char* what;  // "this publisher"

    // `hurry` ends the slice of who waits with the turn, where the object can do that.
    explicit Owned(const char* name, void (T::*hurry)() = nullptr)
        : turns([this, hurry] {
              if (hurry != nullptr && object) ((*object).*hurry)();
          }),
          what(name) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        if (turns.inherited()) leave_undestroyed(object);
    }

    void check() const {
        turns.check(what);
        if (!object) raise("closed", std::string(what) + " is closed");
    }
    // Without one: it was closed, or is of the process that forked this one.
    [[nodiscard]] bool gone() const { return turns.inherited() || !object; }

    // The answer of use(object), made in this thread's turn: no Python code may run in it.
    template <class Use>
    auto in_turn(Use use) {
        check();
        std::optional<decltype(use(*object))> answer;
        {
            const Turn turn(turns);
            if (object) answer.emplace(use(*object));
        }
        if (!answer) raise("closed", std::string(what) + " is closed");
        return std::move(*answer);
    }
    // The object, taken out in this thread's turn, after last().
    template <class Last>
    std::optional<T> take(Last last) {
        const Turn turn(turns);
        last();
        return std::exchange(object, std::nullopt);
    }
    // One slice of a wait.
    template <class Step>
    Result<void> slice(const Step& step, Deadline until) {
        turns.lock_for_wait();
        const std::scoped_lock turn(std::adopt_lock, turns);
        if (!object) return refused(Errc::aborted, std::string(what) + " is closed");
        return step(*object, until);
    }
};

// What is over when the step says something else than timed_out, or when the time is over: it is
// called again and again, in slices, between which other threads have their turn.
template <class T>
class Waits {
  public:
    using Step = std::function<Result<void>(T&, Deadline)>;

    // Now: without the GIL, and signals are seen. Or later, for an event loop: fd() is readable
    // once it is over; outcome() then raises what there is to raise.
    void run(Owned<T>& owned, std::optional<double> timeout, bool later, Step step) {
        owned.check();
        const Deadline deadline = deadline_of(timeout);
        if (later) return begin(owned, deadline, std::move(step));
        constexpr std::int64_t slice_ns = 50'000'000;
        while (true) {
            const Deadline end = Deadline::after_ns(slice_ns);
            auto answer = [&] {
                const Released released;
                return owned.slice(step, deadline.at_ns <= end.at_ns ? deadline : end);
            }();
            if (!answer) owned.check();  // closed by another thread?
            if (answer || answer.error().code != Errc::timed_out || deadline.passed()) {
                return value_or_raise(std::move(answer));
            }
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
    }
    int fd() {
        if (!waiter_) waiter_ = Waiter::make();
        return waiter_->fd();
    }
    void outcome(const Owned<T>& owned) {
        auto answer = std::exchange(outcome_, {});
        if (!answer) owned.check();  // closed meanwhile?
        value_or_raise(std::move(answer));
    }
    // Nothing goes on any more when it returns.
    void cancel() {
        if (!waiter_) return;
        waiter_->cancel();
        const Released released;
        waiter_->finish();
    }

  private:
    void begin(Owned<T>& owned, Deadline deadline, Step step) {
        fd();
        cancel();  // one that was left by a loop that is closed
        outcome_ = {};
        waiter_->begin(
            [this, &owned, step = std::move(step)](Deadline until) {
                outcome_ = owned.slice(step, until);
                return outcome_ || outcome_.error().code != Errc::timed_out;
            },
            deadline);
    }
    Result<void> outcome_;
    Waiter::Ptr waiter_;  // the last member: its thread ends before what it uses
};

}  // namespace rollring::python
