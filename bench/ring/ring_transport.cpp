#include "ring/ring_transport.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "ring/records.hpp"
#include "rollring/consumer.hpp"
#include "rollring/tap.hpp"

namespace bench {
namespace {

void fill_experts(rollring::Draft& draft, const Slice& slice, const Experts& experts) {
    draft.add({.column = static_cast<std::uint16_t>(rollring::Std::routed_experts),
               .dtype = rollring::dtype_of<std::uint16_t>(),
               .shape = {static_cast<std::uint32_t>(slice.token_ids.size()), experts.layers,
                         experts.k, 0},
               .dims = 3,
               .data = slice.experts.data()});
}

void produce(const std::string& name, Board& board, const Plan& plan) {
    Sender sender(board, name);
    const Source source(plan.n_tokens, plan.experts);
    board.meet();
    for (std::uint64_t i = 0; i < plan.total(); i++) {
        rollring::Draft draft("bench-instance");
        draft.meta.repetition_id = static_cast<std::uint32_t>(i);
        fill(draft, source[i]);
        if (plan.experts.layers != 0) fill_experts(draft, source[i], plan.experts);
        sender.push(draft, plan.batch == 1 || (i + 1) % plan.batch == 0);
    }
    sender.producer().flush();
    const rollring::ProducerStats stats = sender.producer().stats();
    board.figures[1] = static_cast<std::int64_t>(stats.laps_soft);
    board.figures[2] = static_cast<std::int64_t>(stats.laps_full);
    board.figures[3] = static_cast<std::int64_t>(stats.waits);
    board.figures[4] = static_cast<std::int64_t>(stats.bytes / stats.records);
}

void consume(const std::string& name, bool sleeping, Board& board, const Plan& plan) {
    rollring::Consumer consumer = must(board, rollring::Consumer::open(name));
    Meter meter(board, plan);
    board.meet();
    rollring::Record record;
    while (!meter.done()) {
        const rollring::Poll got = sleeping
                                       ? consumer.wait(record, rollring::Deadline::after_ms(10'000))
                                       : consumer.poll(record);
        if (got == rollring::Poll::empty) {
            relax();
            continue;
        }
        if (got != rollring::Poll::record) board.give_up("no record within 10 s");
        std::uint64_t sum = sum_record(record.view);
        if (plan.experts.layers != 0) {
            const auto experts = record.view.values<std::uint16_t>(rollring::Std::routed_experts);
            sum += sum_words(experts.data(), experts.size_bytes());
        }
        const std::uint64_t sent = sum_sent(record.view);
        const std::uint64_t sequence = record.sequence;
        consumer.release(record.ref);
        meter.record(sequence, sum, sent);
    }
}

// Processes that tap a ring, until this object ends; no CPU is theirs alone.
class Taps {
  public:
    Taps(const std::string& name, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; i++) {
            const pid_t pid = fork();
            if (pid == 0) look(name);
            if (pid < 0) fail("cannot fork a tap");
            pids_.push_back(pid);
        }
    }
    Taps(const Taps&) = delete;
    Taps& operator=(const Taps&) = delete;
    ~Taps() {
        for (const pid_t pid : pids_) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
    }

  private:
    [[noreturn]] static void look(const std::string& name) {
        constexpr unsigned gap_us = 100'000;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        auto tap = rollring::Tap::attach(name);
        rollring::TapRecord record;
        while (tap) {
            while (tap->poll(record) == rollring::TapPoll::record) continue;
            usleep(gap_us);
        }
        _exit(1);
    }
    std::vector<pid_t> pids_;
};

}  // namespace

Measured measure_ring(const RingTransport& transport, const Plan& plan, const Cpus& cpus) {
    const ScratchRing ring({.lanes = transport.lanes,
                            .lane_bytes = transport.lane_bytes,
                            .soft_bytes = transport.soft_bytes});
    const Taps taps(ring.name(), transport.taps);
    return measure(
        {"rollring", [&](Board& board, const Plan& work) { produce(ring.name(), board, work); },
         [&](Board& board, const Plan& work) {
             consume(ring.name(), transport.sleeping, board, work);
         }},
        plan, cpus);
}

}  // namespace bench
