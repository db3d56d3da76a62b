#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "records.hpp"
#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "scaling.hpp"

namespace bench {
namespace {

// Several producers may share a CPU: who waits for long lets another have it.
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

void meet(Board& board, const ManyPlan& plan) {
    Patience patience;
    board.ready.fetch_add(1);
    while (board.ready.load() <= plan.producers) patience.wait();
}

using Flag = std::atomic<std::uint32_t>;

// The consumer's: a third of the time to warm up, then the timed part. Each producer's records are
// checked for sequence and sum.
class Book {
  public:
    Book(Board& board, const ManyPlan& plan)
        : board_(&board), plan_(&plan), next_(plan.producers), at_start_(plan.producers) {}

    void record(std::uint32_t producer, std::uint64_t sequence, std::uint64_t sum,
                std::uint64_t sent) {
        if (producer >= next_.size()) board_->give_up("a record of nobody");
        if (sequence != next_[producer]++) board_->give_up("a record is out of sequence");
        if (sum != sent) board_->give_up("a record's sum is not that of what was sent");
        total_++;
    }
    // True at the end. Looks at the clock: to be asked now and then.
    bool done() {
        const std::int64_t now = now_ns();
        const auto length = static_cast<std::int64_t>(plan_->seconds * 1e9);
        if (total_ == 0) return false;
        if (first_ns_ == 0) first_ns_ = now;
        if (began_ns_ == 0) {
            if (now < first_ns_ + length / 3) return false;
            began_ns_ = now;
            began_at_ = total_;
            at_start_ = next_;
            return false;
        }
        if (now < began_ns_ + length) return false;
        board_->figures[0] = now - began_ns_;
        board_->figures[1] = static_cast<std::int64_t>(total_ - began_at_);
        std::uint64_t least = ~std::uint64_t{0};
        for (std::size_t i = 0; i < next_.size(); i++) {
            least = std::min(least, next_[i] - at_start_[i]);
        }
        board_->figures[2] = static_cast<std::int64_t>(least);
        return true;
    }

  private:
    Board* board_;
    const ManyPlan* plan_;
    std::vector<std::uint64_t> next_;
    std::vector<std::uint64_t> at_start_;
    std::uint64_t total_ = 0;
    std::uint64_t began_at_ = 0;
    std::int64_t first_ns_ = 0;
    std::int64_t began_ns_ = 0;
};

void produce_ring(const std::string& name, const ManyPlan& plan, Flag& stop, Board& board) {
    auto opened = rollring::Producer::open(name, {.name = "bench"});
    if (!opened) board.give_up(opened.error().to_string());
    const Source source(plan.n_tokens);
    meet(board, plan);
    for (std::uint64_t i = 0; stop.load(std::memory_order_relaxed) == 0;) {
        const auto deadline = rollring::Deadline::after_ms(200);
        for (int k = 0; k < 64; k++) {
            const Slice& slice = source[i++];
            rollring::Draft draft("bench-instance");
            fill(draft, slice);
            const rollring::Push push = opened->push(draft, deadline);
            if (push == rollring::Push::timed_out) break;
            if (push != rollring::Push::ok) board.give_up("push: " + opened->problem());
        }
    }
}

void consume_ring(const std::string& name, const ManyPlan& plan, Flag& stop, Board& board) {
    auto opened = rollring::Consumer::open(name);
    if (!opened) board.give_up(opened.error().to_string());
    rollring::Consumer& consumer = *opened;
    Book book(board, plan);
    Patience patience;
    rollring::Record record;
    meet(board, plan);
    for (std::uint64_t turn = 0; turn % 64 != 0 || !book.done(); turn++) {
        if (consumer.poll(record) != rollring::Poll::record) {
            patience.wait();
            continue;
        }
        book.record(record.producer_lane, record.sequence, sum_record(record.view),
                    sum_sent(record.view));
        consumer.release(record.ref);
    }
    stop.store(1);
}

// Buffers of all producers, each with a flag in its first line: as the limit of `throughput`.
struct Lanes {
    explicit Lanes(const ManyPlan& plan)
        : flat(Flat::of(plan.n_tokens)),
          each(std::max<std::uint64_t>(2, plan.working_bytes / plan.producers / flat.bytes)),
          memory(plan.producers * each * flat.bytes) {}
    [[nodiscard]] std::byte* at(std::uint32_t producer, std::uint64_t sequence) const {
        return memory.data() + (producer * each + sequence % each) * flat.bytes;
    }
    struct Head {
        std::atomic<std::uint64_t> flag;  // 0 free, else sequence + 1
        FlatHeader header;
    };
    [[nodiscard]] Head& head(std::uint32_t producer, std::uint64_t sequence) const {
        return *reinterpret_cast<Head*>(at(producer, sequence));
    }
    Flat flat;
    std::uint64_t each;
    SharedBytes memory;
};

void produce_bare(const Lanes& lanes, std::uint32_t self, const ManyPlan& plan, Flag& stop,
                  Board& board) {
    const Source source(plan.n_tokens);
    Patience patience;
    meet(board, plan);
    for (std::uint64_t i = 0;; i++) {
        Lanes::Head& head = lanes.head(self, i);
        while (head.flag.load(std::memory_order_acquire) != 0) {
            if (stop.load(std::memory_order_relaxed) != 0) return;
            patience.wait();
        }
        const Slice& slice = source[i];
        lanes.flat.write(lanes.at(self, i), slice);
        head.header = {i, slice.sum, plan.n_tokens};
        head.flag.store(i + 1, std::memory_order_release);
    }
}

void consume_bare(const Lanes& lanes, const ManyPlan& plan, Flag& stop, Board& board) {
    Book book(board, plan);
    Patience patience;
    std::vector<std::uint64_t> next(plan.producers);
    meet(board, plan);
    for (std::uint64_t turn = 0; turn % 64 != 0 || !book.done(); turn++) {
        bool any = false;
        for (std::uint32_t lane = 0; lane < plan.producers; lane++) {
            Lanes::Head& head = lanes.head(lane, next[lane]);
            if (head.flag.load(std::memory_order_acquire) != next[lane] + 1) continue;
            any = true;
            const FlatHeader header = head.header;
            const std::uint64_t sum = lanes.flat.sum(lanes.at(lane, next[lane]), plan.n_tokens);
            head.flag.store(0, std::memory_order_release);
            book.record(lane, header.sequence, sum, header.sum);
            next[lane]++;
        }
        if (!any) patience.wait();
    }
    stop.store(1);
}

// The consumer has its CPU for itself; the producers share the others.
ManyMeasured run_many(const ManyPlan& plan, const Cpus& cpus, const Side& consumer,
                      const std::function<Side(std::uint32_t)>& producer) {
    std::vector<int> others = Cpus::allowed();
    if (others.size() > 1) std::erase(others, cpus.consumer);
    if (plan.producers == 1) others = {cpus.producer};
    std::vector<Task> tasks = {{cpus.consumer, consumer}};
    for (std::uint32_t i = 0; i < plan.producers; i++) {
        tasks.push_back({others[i % others.size()], producer(i)});
    }
    const SharedBytes memory(sizeof(Board));
    Board& board = *memory.at<Board>();
    // Those who share a CPU take turns by the usual rules.
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
    const std::string name = fmt::format("bench-many-{}", getpid());
    const auto made = rollring::create_ring(name, {.lanes = plan.producers,
                                                   .lane_bytes = plan.lane_bytes,
                                                   .soft_bytes = plan.soft_bytes,
                                                   .spill_bytes = 0});
    if (!made) fail(made.error().to_string());
    const SharedBytes memory(sizeof(Flag));
    Flag& stop = *memory.at<Flag>();
    const auto measured = run_many(
        plan, cpus, [&](Board& board) { consume_ring(name, plan, stop, board); },
        [&](std::uint32_t) {
            return [&](Board& board) { produce_ring(name, plan, stop, board); };
        });
    static_cast<void>(rollring::remove_ring(name, true));
    return measured;
}

ManyMeasured measure_bare_many(const ManyPlan& plan, const Cpus& cpus) {
    const Lanes lanes(plan);
    const SharedBytes memory(sizeof(Flag));
    Flag& stop = *memory.at<Flag>();
    return run_many(
        plan, cpus, [&](Board& board) { consume_bare(lanes, plan, stop, board); },
        [&](std::uint32_t self) {
            return [&, self](Board& board) { produce_bare(lanes, self, plan, stop, board); };
        });
}

}  // namespace bench
