#pragma once
// The programs that the explorer runs: one producer, one consumer, one lane; with a plan that says
// how long the records are, how the consumer gives them back, who may be killed and how they wait.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "platform.hpp"

namespace model {

enum class Policy {
    in_order,  // each record at once
    newest,    // hold some, give the newest back first
    any,       // hold some, give any back: a choice
    journal,   // hold some, give them back as one journalled set
    pin,       // hold as much as Plan::pin_lines, from the oldest on; release when it likes to
};

struct Plan {
    const char* name = "";
    Bounds bounds{};
    std::uint64_t lines = 8;
    std::uint64_t soft_lines = 2;
    std::vector<std::uint64_t> later_soft_lines{};  // a choice behind each record; none: no change
    std::vector<std::uint64_t> starts{0};           // a choice: where in the lane the run begins
    std::vector<std::uint64_t> lengths{1, 2};       // a choice for each record, in lines
    std::size_t records = 3;
    std::vector<Policy> policies{Policy::in_order};
    std::size_t hold = 2;
    std::uint64_t pin_lines = 0;
    std::size_t batch = 1;  // records to a show()
    bool bells = false;     // sleep on futexes instead of looking again
    // Two mistakes of a caller, which the explorer must find: to ring the consumer only before the
    // last check for space (reserve() may publish a skip in it), and not to ring the producer after
    // a poll() that found nothing (it may have passed a skip).
    bool rings_too_early = false;
    bool forgets_skips = false;
    bool kill_writer = false;
    bool kill_reader = false;
};

// Thread 0 produces, thread 1 consumes.
class LaneProgram : public Program {
  public:
    explicit LaneProgram(const Plan& plan) : plan_(plan) {}

    int threads() const override { return 2; }
    void set_up() override;
    void run(int thread, int incarnation) override;
    void finish() override;
    bool killable(int thread) const override {
        return thread == 0 ? plan_.kill_writer : plan_.kill_reader;
    }
    bool could_go_on(int thread) const override;

  private:
    // The records in the consumer's hands; on its stack, gone with it.
    struct Hands {
        std::array<std::size_t, 32> held{};
        std::size_t count = 0;
        std::uint64_t rung_head = 0;  // the head that the producer was told of
        std::size_t take(std::size_t at);
    };

    void produce(int incarnation);
    void wait_for_space(Writer& writer, std::uint64_t bytes, std::uint64_t& rung_tail);
    void tell_consumer(const Writer& writer, std::uint64_t& rung_tail);
    void tell_producer(const Reader& reader, Hands& hands);
    void consume(int incarnation);
    bool next(Reader& reader, Frame& frame, Hands& hands);
    void after_delivery(Reader& reader, Hands& hands);
    void give_back_one(Reader& reader, Hands& hands);
    void give_back_set(Reader& reader, Hands& hands);
    [[nodiscard]] bool all_read(const Reader& reader) const;
    [[nodiscard]] std::uint64_t lines_in(const Hands& hands) const;

    Plan plan_;
    std::optional<LaneMemory> lane_;
    std::optional<JournalMemory> journal_;
    std::optional<BellMemory> data_bell_;   // the consumer sleeps on it
    std::optional<BellMemory> space_bell_;  // the producer
    std::vector<std::uint64_t> lengths_;
    Policy policy_ = Policy::in_order;
    std::uint64_t wanted_bytes_ = 0;  // that the producer waits for; 0: does not wait
};

// Two lanes that hold records already, one consumer that releases sets over both of them, and may
// be killed at any point of that, of its recovery, and of the recovery after that.
class TwoLanes : public Program {
  public:
    int threads() const override { return 1; }
    void set_up() override;
    void run(int thread, int incarnation) override;
    void finish() override;
    bool killable(int) const override { return true; }

  private:
    void release_set(std::array<Reader, 2>& readers, unsigned members);

    std::array<std::optional<LaneMemory>, 2> lanes_;
    std::optional<JournalMemory> journal_;
    unsigned set_ = 0;
    bool acknowledged_ = false;
};

// A damaged lane is given up, by a consumer that may be killed while it does so, and used again.
class StartOver : public Program {
  public:
    int threads() const override { return 1; }
    void set_up() override;
    void run(int thread, int incarnation) override;
    void finish() override;
    bool killable(int) const override { return true; }

  private:
    std::optional<LaneMemory> lane_;
    std::uint64_t damage_ = 0;
};

}  // namespace model
