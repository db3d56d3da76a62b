#pragma once
// Simulated memory under the C++ model: each location keeps the history of its stores, each store
// that is a release carries the stores that its thread had seen, and a load may read any store that
// is not older than those that its thread has seen. A seq_cst load may not read a store older than
// the last seq_cst access of that location. Plain data carries vector clocks: an unordered pair is
// a race.
//
// Less than C++ allows: stores take effect in the order in which they run (no load buffering, and
// the modification order is the order of execution).

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "explorer.hpp"

namespace model {

inline bool acquires(std::memory_order order) {
    return order != std::memory_order_relaxed && order != std::memory_order_release;
}
inline bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}

template <class T>
class Atomic final : public Undoable {
  public:
    Atomic() : id_(world->next_location()) { history_.push_back({}); }
    Atomic(const Atomic&) = delete;
    Atomic& operator=(const Atomic&) = delete;
    ~Atomic() = default;

    // Of memory that only one side touches (a thread and its successors), other threads see
    // nothing, so no schedule needs to differ there. Checked.
    void keep_private() { private_ = true; }
    void name(const char* text) { name_ = text; }

    T load(std::memory_order order = std::memory_order_seq_cst) const {
        enter();
        View& view = world->view();
        std::uint32_t floor = view[at()];
        if (order == std::memory_order_seq_cst) floor = std::max(floor, seq_cst_floor_);
        std::uint32_t pick = last();
        if (pick > floor && world->stale_allowed()) {
            const std::uint32_t back = world->choose(pick - floor + 1, Choice::stale);
            if (back > 0) world->stale_read();
            pick -= back;
        }
        see(pick, order);
        tell("load", history_[pick].value, pick == last() ? "" : " (stale)");
        return static_cast<T>(history_[pick].value);
    }

    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
        enter();
        put(static_cast<std::uint64_t>(value), order, nullptr);
        tell("store", static_cast<std::uint64_t>(value), "");
    }

    T fetch_add(T amount, std::memory_order order = std::memory_order_seq_cst) {
        enter();
        const std::uint64_t old = history_.back().value;
        see(last(), order);
        const Message before = history_.back();
        const T sum = static_cast<T>(old) + amount;
        put(static_cast<std::uint64_t>(sum), order, &before);
        tell("add to", old, "");
        return static_cast<T>(old);
    }

    // The present content of the memory: the oracle's eye and the kernel's.
    [[nodiscard]] T now() const { return static_cast<T>(history_.back().value); }
    void reset(T value) { history_.assign(1, {static_cast<std::uint64_t>(value), {}, {}, -1}); }

    // The futex: compares with the memory's content, in one step with falling asleep.
    void sleep_while(T seen) {
        enter();
        if (now() == seen) world->sleep_on(id_);
    }
    void wake() {
        enter();
        world->wake(id_);
    }

    [[nodiscard]] bool can_undo() const override {
        return history_.size() > 1 && !seen_ && history_.back().writer == world->current();
    }
    void undo() override {
        history_.pop_back();
        seq_cst_floor_ = std::min(seq_cst_floor_, last());
        View& view = world->view();
        view[at()] = std::min(view[at()], last());
    }

  private:
    struct Message {
        std::uint64_t value;
        View view;
        Clock clock;
        int writer;
    };

    [[nodiscard]] std::size_t at() const { return static_cast<std::size_t>(id_); }
    [[nodiscard]] std::uint32_t last() const {
        return static_cast<std::uint32_t>(history_.size() - 1);
    }

    void enter() const {
        world->access_point(!private_);
        if (!private_ || world->current() < 0) return;
        if (user_ >= 0 && user_ != world->current()) world->fail("model: location is not private");
        user_ = world->current();
    }

    void see(std::uint32_t index, std::memory_order order) const {
        const Message& message = history_[index];
        View& view = world->view();
        view[at()] = std::max(view[at()], index);
        if (acquires(order)) {
            join(view, message.view);
            join(world->clock(), message.clock);
        }
        if (order == std::memory_order_seq_cst) seq_cst_floor_ = std::max(seq_cst_floor_, index);
        if (index == last() && message.writer != world->current()) seen_ = true;
    }

    void put(std::uint64_t value, std::memory_order order, const Message* before) {
        View& view = world->view();
        const auto index = static_cast<std::uint32_t>(history_.size());
        view[at()] = index;
        Message message{value, {}, {}, world->current()};
        if (releases(order)) {
            message.view = view;
            message.clock = world->clock();
        }
        message.view[at()] = index;
        if (before != nullptr) {  // a read-modify-write goes on with the release sequence
            join(message.view, before->view);
            join(message.clock, before->clock);
        }
        history_.push_back(message);
        seen_ = before != nullptr;
        if (order == std::memory_order_seq_cst) seq_cst_floor_ = index;
        world->stored(*this, releases(order));
        if (!private_) world->progress();
    }

    void tell(const char* what, std::uint64_t value, const char* note) const {
        if (!world->verbose) return;
        std::printf("  [%d] %s %s#%d = %llu%s\n", world->current(), what, name_, id_,
                    static_cast<unsigned long long>(value), note);
    }

    int id_;
    const char* name_ = "";
    bool private_ = false;
    mutable int user_ = -1;
    mutable bool seen_ = false;  // the last store was read by another thread
    mutable std::uint32_t seq_cst_floor_ = 0;
    std::vector<Message> history_;
};

// A datum without synchronisation of its own.
template <class T>
class Plain final : public Undoable {
  public:
    void write(const T& value) {
        world->access_point(false);
        race(true);
        if (world->verbose) std::printf("  [%d] write plain %p\n", world->current(), at());
        previous_ = value_;
        value_ = value;
        writer_ = world->current();
        written_ = writer_ < 0 ? 0 : world->clock()[index()];
        world->stored(*this, false);
    }
    [[nodiscard]] T read() {
        world->access_point(false);
        race(false);
        if (world->verbose) std::printf("  [%d] read plain %p\n", world->current(), at());
        if (world->current() >= 0) reads_[index()] = world->clock()[index()];
        return value_;
    }

    [[nodiscard]] bool can_undo() const override { return writer_ == world->current(); }
    void undo() override { value_ = previous_; }

  private:
    [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(world->current()); }
    [[nodiscard]] const void* at() const { return this; }

    void race(bool write) const {
        const int me = world->current();
        if (me < 0) return;
        const Clock& clock = world->clock();
        if (writer_ >= 0 && written_ > clock[static_cast<std::size_t>(writer_)]) {
            world->fail("data race: plain access against a write");
        }
        for (int i = 0; write && i < threads_max; i++) {
            const auto other = static_cast<std::size_t>(i);
            if (i != me && reads_[other] > clock[other]) world->fail("data race: write after read");
        }
    }

    T value_{};
    T previous_{};
    int writer_ = -1;
    std::uint32_t written_ = 0;
    Clock reads_{};
};

}  // namespace model
