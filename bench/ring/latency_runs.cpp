#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "ring/latency.hpp"
#include "ring/records.hpp"
#include "rollring/consumer.hpp"

namespace bench {
namespace {

constexpr std::int64_t catch_up_ns = 3'000'000;  // after the warm-up: the consumer has caught up

// When each record was due, was committed and had been read, on the clock of both sides.
class Stamps {
  public:
    Stamps(const Pace& pace, std::uint64_t warmup)
        : pace_(pace),
          warmup_(warmup),
          count_(warmup + pace.records),
          memory_(3 * count_ * sizeof(std::int64_t)) {
        if (pace.per_s == 0) return;
        std::minstd_rand random(7);
        std::exponential_distribution<double> gap(pace.per_s / 1e9);
        double at_ns = 0;
        for (std::uint64_t i = 0; i < pace.records; i++) {
            offsets_.push_back(static_cast<std::int64_t>(at_ns));
            at_ns += gap(random);
        }
    }
    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] std::uint64_t warmup() const { return warmup_; }

    // The side's own columns are written once before the run: no page fault is measured.
    void touch_sent() const { std::fill_n(column(0), 2 * count_, 0); }
    void touch_got() const { std::fill_n(column(2), count_, 0); }

    // Returns at the time at which record i is due. Never waits for the consumer.
    void wait_due(std::uint64_t i) {
        std::int64_t due_ns = now_ns();
        if (i == warmup_) start_ns_ = due_ns + catch_up_ns;
        if (i >= warmup_) {
            if (!offsets_.empty()) {
                due_ns = start_ns_ + offsets_[i - warmup_];
            } else if (pace_.gap_ns != 0) {
                due_ns = std::max(due_ns, start_ns_) + pace_.gap_ns;
            }
            while (now_ns() < due_ns) relax();
        }
        column(0)[i] = due_ns;
    }
    void sent(std::uint64_t i) const { column(1)[i] = now_ns(); }
    void got(std::uint64_t i) const { column(2)[i] = now_ns(); }

    [[nodiscard]] Measurement evaluate() const {
        Measurement found;
        for (std::uint64_t i = warmup_; i < count_; i++) {
            found.from_due.add(column(2)[i] - column(0)[i]);
            found.from_commit.add(column(2)[i] - column(1)[i]);
        }
        const auto rate = [&](const std::int64_t* times) {
            const auto taken_ns = static_cast<double>(times[count_ - 1] - times[warmup_]);
            return static_cast<double>(pace_.records) / std::max(taken_ns, 1.0) * 1e9;
        };
        found.per_s_taken = rate(column(0));
        found.per_s_read = rate(column(2));
        return found;
    }

  private:
    [[nodiscard]] std::int64_t* column(unsigned which) const {
        return memory_.at<std::int64_t>(which * count_ * sizeof(std::int64_t));
    }
    Pace pace_;
    std::uint64_t warmup_;
    std::uint64_t count_;
    SharedBytes memory_;
    std::vector<std::int64_t> offsets_;
    std::int64_t start_ns_ = 0;  // the producer's
};

template <class Write, class Commit>
void send_all(Board& board, Stamps& stamps, const Write& write, const Commit& commit) {
    stamps.touch_sent();
    board.meet();
    for (std::uint64_t i = 0; i < stamps.count(); i++) {
        stamps.wait_due(i);
        write(i);
        stamps.sent(i);
        commit(i);
    }
}

template <class Take, class Free>
void take_all(Board& board, const Stamps& stamps, const Take& take, const Free& free) {
    stamps.touch_got();
    board.meet();
    for (std::uint64_t i = 0; i < stamps.count(); i++) {
        take(i);
        stamps.got(i);
        free();
    }
}

struct Sides {
    Side producer, consumer;
};

Sides ring_sides(const std::string& name, const Pace& pace, bool asleep, Stamps& stamps) {
    const auto produce = [=, &stamps](Board& board) {
        Sender sender(board, name);
        const Source source(pace.n_tokens);
        const auto write = [&](std::uint64_t i) {
            rollring::Draft draft("latency");
            fill(draft, source[i]);
            sender.push(draft, pace.whole_push);
        };
        send_all(board, stamps, write, [&](std::uint64_t) {
            if (!pace.whole_push) sender.producer().flush();
        });
    };
    const auto consume = [=, &stamps](Board& board) {
        auto consumer = must(
            board,
            rollring::Consumer::open(name, {.spin = std::chrono::microseconds(asleep ? 0 : 20)}));
        rollring::Record record;
        const auto take = [&](std::uint64_t) {
            if (asleep) {
                const auto deadline = rollring::Deadline::after_ms(10'000);
                const auto got = consumer.wait(record, deadline);
                if (got != rollring::Poll::record) board.give_up("no record within 10 s");
            } else {
                while (consumer.poll(record) != rollring::Poll::record) relax();
            }
            check(board, record.view);
        };
        take_all(board, stamps, take, [&] { consumer.release(record.ref); });
    };
    return {produce, consume};
}

// Producers that send nothing. They live in this process, which sleeps while the sides run.
std::vector<rollring::Producer> silent_producers(const std::string& ring, std::uint32_t count) {
    std::vector<rollring::Producer> all;
    while (all.size() < count) {
        auto one = rollring::Producer::open(ring, {.name = "silent"});
        if (!one) fail(one.error().to_string());
        all.push_back(std::move(*one));
    }
    return all;
}

Sides record_sides(const BareHandoff& bare, std::uint32_t n_tokens, Stamps& stamps) {
    const auto produce = [=, &stamps](Board& board) {
        const Source source(n_tokens);
        bare.reset();
        send_all(
            board, stamps, [&](std::uint64_t i) { bare.write(i, source[i]); },
            [&](std::uint64_t i) { bare.commit(i); });
    };
    const auto consume = [=, &stamps](Board& board) {
        const auto take = [&](std::uint64_t i) {
            const auto received = bare.receive(i);
            if (received.sum != received.header.sum) board.give_up("a record's sum is wrong");
        };
        take_all(board, stamps, take, [] {});
    };
    return {produce, consume};
}

// The only word that is written and read.
struct Word {
    alignas(128) std::atomic<std::uint32_t> sent;
    alignas(128) std::atomic<std::uint32_t> asleep;
};

Sides line_sides(Word& word, Stamps& stamps) {
    const auto produce = [&](Board& board) {
        send_all(
            board, stamps, [](std::uint64_t) {},
            [&](std::uint64_t i) {
                word.sent.store(static_cast<std::uint32_t>(i + 1), std::memory_order_release);
            });
    };
    const auto consume = [&](Board& board) {
        const auto take = [&](std::uint64_t i) {
            while (word.sent.load(std::memory_order_acquire) <= i) relax();
        };
        take_all(board, stamps, take, [] {});
    };
    return {produce, consume};
}

// The time in which the kernel wakes a process, and nothing else.
Sides futex_sides(Word& word, Stamps& stamps) {
    const auto call = [&word](int what, std::uint32_t value) {
        // tidy-ok: the bare hand-off that the doorbell is compared with
        syscall(SYS_futex, &word.asleep, what, value, nullptr, nullptr, 0);  // tidy-ok: see above
    };
    const auto produce = [&, call](Board& board) {
        const auto commit = [&](std::uint64_t i) {
            word.sent.store(static_cast<std::uint32_t>(i + 1));
            if (word.asleep.load() == 0) return;
            word.asleep.store(0);  // one wake is enough, and takes effect after a while
            call(FUTEX_WAKE, 1);
        };
        send_all(board, stamps, [](std::uint64_t) {}, commit);
    };
    const auto consume = [&, call](Board& board) {
        const auto take = [&](std::uint64_t i) {
            if (word.sent.load() > i) return;
            while (true) {
                word.asleep.store(1);
                if (word.sent.load() > i) break;
                call(FUTEX_WAIT, 1);  // returns at once if the flag was cleared meanwhile
            }
            word.asleep.store(0);
        };
        take_all(board, stamps, take, [] {});
    };
    return {produce, consume};
}

void run_sides(const Sides& sides, const Cpus& cpus) {
    const SharedBytes memory(sizeof(Board));
    const auto problem = run_pair(cpus, *memory.at<Board>(), sides.producer, sides.consumer);
    if (!problem.empty() && problem != "interrupted") fail("latency: " + problem);
}

}  // namespace

Measurement measure_delays(Way way, const Pace& pace, const Cpus& cpus) {
    const std::uint64_t record_bytes = Flat::of(pace.n_tokens).bytes;
    const std::uint64_t room = std::max(std::uint64_t{4} << 20, 8 * record_bytes);
    Stamps stamps(pace, pace.warm ? 2 * room / record_bytes : 0);
    const SharedBytes memory(sizeof(Word) + alignof(Word));
    Word& word = *memory.at<Word>();
    if (way == Way::bare_line) {
        run_sides(line_sides(word, stamps), cpus);
    } else if (way == Way::bare_futex) {
        run_sides(futex_sides(word, stamps), cpus);
    } else if (way == Way::bare_record) {
        run_sides(record_sides(BareHandoff(pace.n_tokens, room), pace.n_tokens, stamps), cpus);
    } else {
        const ScratchRing ring({.lanes = pace.lanes, .lane_bytes = room});
        const auto silent = silent_producers(ring.name(), pace.lanes - 1);
        run_sides(ring_sides(ring.name(), pace, way == Way::ring_asleep, stamps), cpus);
    }
    return interrupted() ? Measurement{} : stamps.evaluate();
}

}  // namespace bench
