// The hot path in steady state: `alloc` counts calls of malloc, `run` is for strace: the system
// calls between two of getppid() are those of 200,000 records (hot_path.py).
//
//   hot_path alloc | run

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "support/process.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

std::atomic<std::uint64_t> allocations{0};

// One producer and one consumer that are never without work: `count` records of changing lengths
// through a lane that wraps, pushed in all three ways, released in order and out of it.
class Steady {
  public:
    Steady()
        : ring_("hot", {.lanes = 1, .lane_bytes = 256 << 10, .soft_bytes = 64 << 10}),
          producer_(std::move(*Producer::open(ring_.name()))),
          consumer_(std::move(*Consumer::open(ring_.name()))),
          tokens_(600) {
        std::iota(tokens_.begin(), tokens_.end(), 1);
    }

    void run(std::uint64_t count) {
        for (std::uint64_t i = 0; i < count; i += 4) {
            for (std::uint64_t k = 0; k < 4; k++) send(i + k);
            for (RecordRef& ref : held_) {
                require(consumer_.poll(record_) == Poll::record, "nothing to poll");
                sum_ += record_.view.token_ids().size();
                ref = record_.ref;
            }
            for (const int k : {0, 3, 1, 2}) consumer_.release(held_[k]);
        }
    }
    [[nodiscard]] std::uint64_t sum() const { return sum_; }

  private:
    void send(std::uint64_t number) {
        draft_.clear();
        draft_.set_text(Std::instance_id, "prompt");
        draft_.meta.repetition_id = static_cast<std::uint32_t>(number);
        draft_.set(Std::token_ids, std::span<const std::int32_t>(tokens_).first(number % 600));
        Push push = Push::closed;
        if (number % 4 == 1) {
            Reservation room;
            push = producer_.reserve(draft_, Deadline::now(), room);
            if (push == Push::ok) push = room.commit();
        } else if (number % 4 == 2) {
            push = producer_.push_later(draft_, Deadline::now());
        } else {
            push = producer_.push(draft_, Deadline::now());
        }
        require(push == Push::ok, "{}", producer_.problem());
    }

    ScratchRing ring_;
    Producer producer_;
    Consumer consumer_;
    std::vector<std::int32_t> tokens_;
    Draft draft_;
    Record record_;
    RecordRef held_[4]{};
    std::uint64_t sum_ = 0;
};

}  // namespace

// Everything that allocates ends here: operator new of libstdc++ calls malloc.
extern "C" void* __libc_malloc(std::size_t bytes);  // NOLINT: glibc's own name
extern "C" void* malloc(std::size_t bytes) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    return __libc_malloc(bytes);
}

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        Steady steady;
        if (arguments.at(0) == "run") {
            steady.run(10'000);
            getppid();
            steady.run(200'000);
            getppid();
            return 0;
        }
        require(allocations.load() > 0, "malloc is not counted");
        steady.run(10'000);
        const std::uint64_t before = allocations.load();
        steady.run(100'000);
        const std::uint64_t after = allocations.load();
        fmt::print("records=100000 allocations={} tokens={}\n", after - before, steady.sum());
        return after == before ? 0 : 1;
    } catch (const std::exception& failure) {
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        return 1;
    }
}
