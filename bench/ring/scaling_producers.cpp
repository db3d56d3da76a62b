#include <fmt/core.h>
#include <sched.h>

#include <algorithm>

#include "ring/records.hpp"
#include "ring/scaling.hpp"
#include "rollring/consumer.hpp"

namespace bench {
namespace {

// Several producers may share a CPU: one that waits for long yields it to another.
class Patience {
  public:
    void wait() {
        if (++spins_ % 512 == 0) {
            sched_yield();
        } else {
            relax();
        }
    }

  private:
    std::uint32_t spins_ = 0;
};

using Flag = std::atomic<std::uint32_t>;

void meet(Board& board, const ManyPlan& plan) {
    Patience patience;
    board.ready.fetch_add(1);
    while (board.ready.load() <= plan.producers) patience.wait();
}

// The consumer's account: a third of the time to warm up, then the timed part. It checks sequence
// and sum of each producer's records.
class Book {
  public:
    Book(Board& board, const ManyPlan& plan)
        : board_(&board),
          length_ns_(static_cast<std::int64_t>(plan.seconds * 1e9)),
          next_(plan.producers) {}

    void record(std::uint32_t producer, std::uint64_t sequence, std::uint64_t sum,
                std::uint64_t sent) {
        if (producer >= next_.size()) board_->give_up("a record has an unknown producer");
        if (sequence != next_[producer]++) board_->give_up("a record is out of sequence");
        if (sum != sent) board_->give_up("a record's sum differs from the sum that was sent");
        if (first_ns_ == 0) first_ns_ = now_ns();
    }
    // True at the end. Reads the clock, so call it only now and then.
    bool done() {
        const std::int64_t now = now_ns();
        if (first_ns_ == 0 || now < first_ns_ + length_ns_ / 3) return false;
        if (at_start_.empty()) {
            began_ns_ = now;
            at_start_ = next_;
        }
        if (now < began_ns_ + length_ns_) return false;
        std::uint64_t least = ~std::uint64_t{0};
        std::uint64_t all = 0;
        for (std::size_t i = 0; i < next_.size(); i++) {
            least = std::min(least, next_[i] - at_start_[i]);
            all += next_[i] - at_start_[i];
        }
        board_->figures[0] = now - began_ns_;
        board_->figures[1] = static_cast<std::int64_t>(all);
        board_->figures[2] = static_cast<std::int64_t>(least);
        return true;
    }

  private:
    Board* board_;
    std::int64_t length_ns_;
    std::vector<std::uint64_t> next_;
    std::vector<std::uint64_t> at_start_;  // of the timed part
    std::int64_t first_ns_ = 0;
    std::int64_t began_ns_ = 0;
};

// The consumer's loop. look(book) reads one record, if there is one, and enters it in the book; it
// returns false if there is none.
template <class Look>
void consume(Board& board, const ManyPlan& plan, Flag& stop, const Look& look) {
    Book book(board, plan);
    Patience patience;
    meet(board, plan);
    for (std::uint64_t turn = 0; turn % 64 != 0 || !book.done(); turn++) {
        if (!look(book)) patience.wait();
    }
    stop.store(1);
}

// The consumer has a CPU of its own; the producers share the others.
ManyMeasured run_many(const ManyPlan& plan, const Cpus& cpus, const Side& consumer,
                      const std::function<void(Board&, std::uint32_t)>& producer) {
    std::vector<int> others = Cpus::allowed();
    if (others.size() > 1) std::erase(others, cpus.consumer);
    if (plan.producers == 1) others = {cpus.producer};
    std::vector<Task> tasks = {{cpus.consumer, consumer}};
    for (std::uint32_t i = 0; i < plan.producers; i++) {
        tasks.push_back({others[i % others.size()], [&, i](Board& board) { producer(board, i); }});
    }
    const SharedBytes memory(sizeof(Board));
    Board& board = *memory.at<Board>();
    // Producers that share a CPU take turns by the usual rules.
    const bool realtime = cpus.realtime && tasks.size() <= Cpus::allowed().size();
    const std::string problem = run_all(tasks, realtime, board);
    if (problem == "interrupted") return {};
    if (!problem.empty()) fail(fmt::format("{} producers: {}", plan.producers, problem));
    const auto records = static_cast<double>(board.figures[1]);
    return {records * plan.n_tokens / (static_cast<double>(board.figures[0]) / 1e9),
            static_cast<double>(board.figures[2]) * plan.producers / records};
}

}  // namespace

ManyMeasured measure_ring_many(const ManyPlan& plan, const Cpus& cpus) {
    const ScratchRing ring({.lanes = plan.producers,
                            .lane_bytes = plan.lane_bytes,
                            .soft_bytes = plan.soft_bytes,
                            .spill_bytes = 0});
    const SharedBytes memory(sizeof(Flag));
    Flag& stop = *memory.at<Flag>();
    const auto consumer = [&](Board& board) {
        auto opened = must(board, rollring::Consumer::open(ring.name()));
        rollring::Record record;
        consume(board, plan, stop, [&](Book& book) {
            if (opened.poll(record) != rollring::Poll::record) return false;
            book.record(record.producer_lane, record.sequence, sum_record(record.view),
                        sum_sent(record.view));
            opened.release(record.ref);
            return true;
        });
    };
    const auto producer = [&](Board& board, std::uint32_t) {
        auto opened = must(board, rollring::Producer::open(ring.name(), {.name = "bench"}));
        const Source source(plan.n_tokens);
        meet(board, plan);
        auto deadline = rollring::Deadline::now();
        for (std::uint64_t i = 0; stop.load(std::memory_order_relaxed) == 0; i++) {
            if (i % 64 == 0) deadline = rollring::Deadline::after_ms(200);
            rollring::Draft draft("bench-instance");
            fill(draft, source[i]);
            const rollring::Push push = opened.push(draft, deadline);
            if (push == rollring::Push::timed_out) {  // the end, or soon
                deadline = rollring::Deadline::after_ms(200);
            } else if (push != rollring::Push::ok) {
                board.give_up("push: " + opened.problem());
            }
        }
    };
    return run_many(plan, cpus, consumer, producer);
}

ManyMeasured measure_bare_many(const ManyPlan& plan, const Cpus& cpus) {
    std::vector<BareHandoff> lanes;
    lanes.reserve(plan.producers);
    for (std::uint32_t i = 0; i < plan.producers; i++) {
        lanes.emplace_back(plan.n_tokens, plan.working_bytes / plan.producers);
    }
    const SharedBytes memory(sizeof(Flag));
    Flag& stop = *memory.at<Flag>();
    const auto consumer = [&](Board& board) {
        std::vector<std::uint64_t> next(plan.producers);
        std::uint32_t lane = 0;
        consume(board, plan, stop, [&](Book& book) {
            for (std::uint32_t looked = 0; looked < plan.producers; looked++) {
                lane = (lane + 1) % plan.producers;
                if (!lanes[lane].is_there(next[lane])) continue;
                const BareHandoff::Received received = lanes[lane].receive(next[lane]++);
                book.record(lane, received.header.sequence, received.sum, received.header.sum);
                return true;
            }
            return false;
        });
    };
    const auto producer = [&](Board& board, std::uint32_t self) {
        const Source source(plan.n_tokens);
        Patience patience;
        meet(board, plan);
        for (std::uint64_t i = 0;; i++) {
            while (!lanes[self].is_free(i)) {
                if (stop.load(std::memory_order_relaxed) != 0) return;
                patience.wait();
            }
            lanes[self].write(i, source[i]);
            lanes[self].commit(i);
        }
    };
    return run_many(plan, cpus, consumer, producer);
}

}  // namespace bench
