// Does the explorer know the memory model? Small programs whose outcomes are known: each forbidden
// one must never show, each allowed one that the model claims to reach must.

#include <cstdio>
#include <iterator>
#include <optional>

#include "memory.hpp"

namespace model {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;
constexpr auto acq_rel = std::memory_order_acq_rel;
constexpr auto seq_cst = std::memory_order_seq_cst;

struct Shared {
    Atomic<int> x, y;
    Plain<int> datum;
    int seen0 = -1, seen1 = -1;
};

// Two threads on a Shared; `outcome` is looked for after each execution.
class Litmus : public Program {
  public:
    using Body = void (*)(Shared&, std::memory_order, std::memory_order);
    Litmus(Body first, Body second, std::memory_order store, std::memory_order load)
        : bodies_{first, second}, store_(store), load_(load) {}
    int threads() const override { return 2; }
    void set_up() override { shared_.emplace(); }
    void run(int thread, int) override { bodies_[thread](*shared_, store_, load_); }
    void finish() override {}
    bool killable(int thread) const override { return thread == 0; }

  private:
    Body bodies_[2];
    std::memory_order store_;
    std::memory_order load_;
    std::optional<Shared> shared_;
};

// Message passing: is the datum there when the flag is?
void send(Shared& s, std::memory_order store, std::memory_order) {
    s.datum.write(1);
    s.x.store(1, store);
}
void receive(Shared& s, std::memory_order, std::memory_order load) {
    if (s.x.load(load) == 1 && s.datum.read() != 1) world->fail("old datum");
}

// The Dekker pair: may both miss the other?
void both_missed(const Shared& s) {
    if (s.seen0 == 0 && s.seen1 == 0) world->fail("both missed");
}
void dekker0(Shared& s, std::memory_order store, std::memory_order load) {
    s.x.store(1, store);
    s.seen0 = s.y.load(load);
    both_missed(s);
}
void dekker1(Shared& s, std::memory_order store, std::memory_order load) {
    s.y.store(1, store);
    s.seen1 = s.x.load(load);
    both_missed(s);
}

// Coherence: a thread never sees a location go back.
void count_up(Shared& s, std::memory_order store, std::memory_order) {
    s.x.store(1, store);
    s.x.store(2, store);
}
void watch(Shared& s, std::memory_order, std::memory_order load) {
    const int first = s.x.load(load);
    if (s.x.load(load) < first) world->fail("went back");
}

// A release sequence goes on through a read-modify-write.
void send_and_add(Shared& s, std::memory_order store, std::memory_order) {
    s.datum.write(1);
    s.x.store(1, store);
    s.x.fetch_add(1, relaxed);
}
void receive_sum(Shared& s, std::memory_order, std::memory_order load) {
    if (s.x.load(load) == 2 && s.datum.read() != 1) world->fail("old datum");
}

// Killed between two stores: may the second be there without the first?
void two_stores(Shared& s, std::memory_order store, std::memory_order) {
    if (s.y.now() == 1 && s.x.now() == 0) world->fail("later store alone");
    s.x.store(1, store);
    s.y.store(1, store);
    (void)s.y.load(relaxed);  // a place to be killed at
}
void nothing(Shared&, std::memory_order, std::memory_order) {}

// A futex compares and falls asleep in one step.
void set_and_wake(Shared& s, std::memory_order store, std::memory_order) {
    s.x.store(1, store);
    s.x.wake();
}
void sleep_until_set(Shared& s, std::memory_order, std::memory_order load) {
    while (s.x.load(load) == 0) s.x.sleep_while(0);
}
void set_only(Shared& s, std::memory_order store, std::memory_order) {
    s.x.store(1, store);
}

struct Case {
    const char* name;
    Litmus::Body first, second;
    std::memory_order store, load;
    const char* outcome;  // the failure that must show; null: none may
    int crashes = 0;
};

constexpr const char* race = "data race: plain access against a write";
constexpr Case cases[] = {
    {"message, release and acquire", send, receive, release, acquire, nullptr},
    {"message, relaxed store", send, receive, relaxed, acquire, race},
    {"message, relaxed load", send, receive, release, relaxed, race},
    {"Dekker, seq_cst", dekker0, dekker1, seq_cst, seq_cst, nullptr},
    {"Dekker, release stores", dekker0, dekker1, release, seq_cst, "both missed"},
    {"Dekker, acquire loads", dekker0, dekker1, seq_cst, acquire, "both missed"},
    {"Dekker, acq_rel", dekker0, dekker1, acq_rel, acq_rel, "both missed"},
    {"coherence, relaxed", count_up, watch, relaxed, relaxed, nullptr},
    {"release sequence", send_and_add, receive_sum, release, acquire, nullptr},
    {"release sequence, relaxed head", send_and_add, receive_sum, relaxed, acquire, race},
    {"killed, release stores", two_stores, nothing, release, acquire, nullptr, 1},
    {"killed, relaxed stores", two_stores, nothing, relaxed, acquire, "later store alone", 1},
    {"sleeper is woken", set_and_wake, sleep_until_set, release, acquire, nullptr},
    {"sleeper is not woken", set_only, sleep_until_set, release, acquire, "lost wake-up"},
};

int run() {
    int wrong = 0;
    for (const Case& one : cases) {
        Litmus program(one.first, one.second, one.store, one.load);
        World explored({.preemptions = 4, .stale = 4, .crashes = one.crashes});
        explored.explore(program);
        const std::string expected = one.outcome == nullptr ? "" : one.outcome;
        const bool right = explored.failure() == expected;
        wrong += right ? 0 : 1;
        std::printf("%-32s %s after %llu executions%s\n", one.name,
                    explored.failure().empty() ? "never fails" : explored.failure().c_str(),
                    static_cast<unsigned long long>(explored.counts().executions),
                    right ? "" : ": WRONG");
    }
    std::printf("litmus %zu, wrong %d\n", std::size(cases), wrong);
    return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace model

int main() {
    return model::run();
}
