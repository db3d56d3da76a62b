#pragma once
// An object of the library, shared by threads that take turns, and by everything that it has lent
// to Python.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"
#include "turn.hpp"
#include "waiter.hpp"

namespace rollring::python {

template <class T>
struct Owned {
    Turns turns;
    std::unique_ptr<T> object;
    const char* what;      // "this publisher"
    bool closing = false;  // callers see it as closed: it stays for its loans

    // `hurry` ends the slice of a thread that waits with the lock, if the object supports that.
    explicit Owned(const char* name, void (T::*hurry)() = nullptr)
        : turns([this, hurry] {
              if (hurry != nullptr && object) ((*object).*hurry)();
          }),
          what(name) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        // A child's copy is left as it is: another thread may have been using it at the fork.
        if (turns.inherited()) static_cast<void>(object.release());
    }

    void hold(T made) { object = std::make_unique<T>(std::move(made)); }
    void check() const {
        turns.check(what);
        if (!usable()) raise_closed();
    }
    // Closed, not opened yet, or inherited through a fork.
    [[nodiscard]] bool gone() const { return turns.inherited() || !usable(); }

    // The result of use(object), called with the lock: no Python code may run in it.
    template <class Use>
    auto in_turn(Use use) {
        check();
        std::optional<decltype(use(*object))> answer;
        {
            const Turn turn(turns);
            if (usable()) answer.emplace(use(*object));
        }
        if (!answer) raise_closed();
        return std::move(*answer);
    }
    // The same for a call that may wait for a disk: without the GIL.
    template <class Use>
    auto in_waiting_turn(Use use) {
        check();
        std::optional<decltype(use(*object))> answer;
        {
            const Turn turn(turns);
            if (usable()) {
                turns.calm(true);
                {
                    const Released released;
                    answer.emplace(use(*object));
                }
                turns.calm(false);
            }
        }
        if (!answer) raise_closed();
        return std::move(*answer);
    }
    // Takes the object out with the lock, after last().
    template <class Last>
    std::unique_ptr<T> take(Last last) {
        const Turn turn(turns);
        last();
        return std::move(object);
    }
    // One slice of a wait.
    template <class Step>
    Result<void> slice(const Step& step, Deadline until) {
        return turns.in_wait([&]() -> Result<void> {
            if (!usable()) return refused(Errc::aborted, std::string(what) + " is closed");
            return step(*object, until);
        });
    }

  private:
    [[nodiscard]] bool usable() const { return object != nullptr && !closing; }
    [[noreturn]] void raise_closed() const { raise("closed", std::string(what) + " is closed"); }
};

// Repeats a step until it returns another answer than timed_out, or until the deadline: in slices,
// between which other threads take turns.
template <class T>
class Waits {
  public:
    using Step = std::function<Result<void>(T&, Deadline)>;

    // Now: without the GIL, and signals are handled. Or later, for an event loop: fd() is readable
    // once it is over, and outcome() then raises any error.
    void run(Owned<T>& owned, std::optional<double> timeout, bool later, Step step) {
        owned.check();
        const Deadline deadline = deadline_of(timeout);
        if (later) return begin(owned, deadline, std::move(step));
        value_or_raise(in_slices(
            deadline, [&](Deadline slice) { return owned.slice(step, slice); },
            [&](const Result<void>& answer) {
                if (!answer) owned.check();  // closed by another thread?
                return !answer && answer.error().code == Errc::timed_out;
            }));
    }
    int fd() { return waiter_.fd(); }
    void outcome(const Owned<T>& owned) {
        auto answer = std::exchange(outcome_, {});
        if (!answer) owned.check();  // closed meanwhile?
        value_or_raise(std::move(answer));
    }
    // When it returns, nothing is running any more.
    void cancel() {
        waiter_.cancel();
        waiter_.finish();
    }

  private:
    void begin(Owned<T>& owned, Deadline deadline, Step step) {
        fd();
        cancel();  // a wait that a closed loop has left
        outcome_ = {};
        waiter_.begin(
            [this, &owned, step = std::move(step)](Deadline until) {
                outcome_ = owned.slice(step, until);
                return outcome_ || outcome_.error().code != Errc::timed_out;
            },
            deadline);
    }
    Result<void> outcome_;
    LoopWaiter waiter_;  // the last member: its thread ends before the objects that it uses
};

}  // namespace rollring::python
