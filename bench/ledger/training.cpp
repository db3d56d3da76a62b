#include "ledger/training.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string_view>

#include "ledger/disk.hpp"
#include "rollring/stash.hpp"

namespace bench {
namespace {

constexpr std::int64_t patience_ms = 30'000;

struct Written {
    std::int64_t bytes = 0;
    std::int64_t calls = 0;

    // By all threads of this process. The kernel counts bytes by system call here, whichever way
    // they take to the disk.
    static Written now(Board& board) {
        std::ifstream file("/proc/self/io");
        Written found;
        std::string name;
        std::int64_t value = 0;
        while (file >> name >> value) {
            if (name == "wchar:") found.bytes = value;
            if (name == "syscw:") found.calls = value;
        }
        if (name.empty()) board.give_up("no /proc/self/io");
        return found;
    }
};

// The time of the timed records, and the bytes that were written meanwhile.
class StepClock {
  public:
    StepClock(Board& board, const Plan& plan) : board_(&board), plan_(plan) {}
    [[nodiscard]] bool done() const { return done_ >= plan_.total(); }
    void count(std::uint64_t records) {
        const bool warm = done_ >= plan_.warmup;
        done_ += records;
        if (!warm && done_ >= plan_.warmup) {
            written_ = Written::now(*board_);
            began_ns_ = now_ns();
        }
        if (!done()) return;
        board_->figures[0] = now_ns() - began_ns_;
        const Written all = Written::now(*board_);
        board_->figures[1] = all.bytes - written_.bytes;
        board_->figures[2] = all.calls - written_.calls;
    }

  private:
    Board* board_;
    Plan plan_;
    std::uint64_t done_ = 0;
    std::int64_t began_ns_ = 0;
    Written written_;
};

}  // namespace

std::uint32_t groups_of_batch(std::uint64_t batch_tokens, std::uint32_t n_tokens) {
    const std::uint64_t group = std::uint64_t{n_tokens} * training_group;
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, batch_tokens / group));
}

std::uint64_t whole_batches(const Training& training, std::uint64_t records) {
    const std::uint64_t batch = std::uint64_t{training.batch_groups} * training_group;
    return (records / batch + 1) * batch;
}

rollring::RingOptions ring_of(const Training& training, const std::filesystem::path& ledger) {
    rollring::RingOptions wanted{.lanes = 1, .lane_bytes = training.lane_bytes};
    if (!training.durable) return wanted;
    wanted.ledger_dir = ledger.string();
    wanted.ledger_bytes = training.ledger_bytes;
    wanted.durable = *training.durable;
    return wanted;
}

void send_member(Sender& sender, const Source& source, std::uint64_t sequence) {
    char name[24];
    const auto end = fmt::format_to(name, "{}", sequence / training_group);
    rollring::Draft draft(std::string_view(name, static_cast<std::size_t>(end - name)));
    draft.meta.repetition_id = static_cast<std::uint32_t>(sequence % training_group);
    draft.meta.reward = static_cast<double>(sequence % training_group);
    fill(draft, source[sequence]);
    sender.push(draft);
}

void send_groups(const std::string& ring, Board& board, const Plan& plan) {
    Sender sender(board, ring);
    const Source source(plan.n_tokens);
    board.meet();
    for (std::uint64_t i = 0; i < plan.total(); i++) send_member(sender, source, i);
}

void take_groups(const Training& training, const std::string& ring, Board& board,
                 const Plan& plan) {
    const rollring::StashOptions wanted{
        .group_size = training_group,
        .batch = rollring::BatchTarget::groups(training.batch_groups)};
    auto stash =
        must(board, rollring::Stash::open(ring, wanted, {.spin = std::chrono::microseconds(1000)}));
    board.meet();
    StepClock clock(board, plan);
    rollring::Batch batch;
    std::uint64_t unsettled = 0;
    for (std::int64_t step = 0; !clock.done(); step++) {
        const auto got = stash->next(batch, rollring::Deadline::after_ms(patience_ms));
        if (got != rollring::NextBatch::batch) {
            board.give_up("no batch within 30 s: " + stash->waits_for());
        }
        for (const rollring::Sequence& sequence : batch.sequences()) check(board, sequence.view);
        const std::uint64_t records = batch.sequences().size();
        must(board, batch.ack(step));
        unsettled += records * plan.record_bytes();
        if (unsettled >= training.ledger_bytes / checkpoints_of_bound) {
            must(board, stash->checkpointed(step));
            unsettled = 0;
        }
        clock.count(records);
    }
}

Trained train(const Training& training, const Plan& plan, const Cpus& cpus) {
    const ScratchFolder folder(training.directory);
    const ScratchRing ring(ring_of(training, folder.path() / "ledger"));
    const Measured run = measure(
        {"ledger", [&](Board& board, const Plan& given) { send_groups(ring.name(), board, given); },
         [&](Board& board, const Plan& given) {
             take_groups(training, ring.name(), board, given);
         }},
        plan, cpus);
    if (interrupted()) return {};
    return {.tokens_per_s = run.tokens_per_s,
            .written_bytes = static_cast<double>(run.figures[1]),
            .writes = static_cast<double>(run.figures[2]),
            .seconds = static_cast<double>(run.figures[0]) / 1e9};
}

}  // namespace bench
