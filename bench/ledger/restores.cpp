#include "ledger/restores.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "ledger/disk.hpp"
#include "ring/records.hpp"
#include "rollring/extras/ledger.hpp"
#include "rollring/stash.hpp"

namespace bench {
namespace {

constexpr std::int64_t restored_patience_ms = 10'000;

// The ring that a restore makes.
class RestoredRing {
  public:
    RestoredRing() : name_("bench-" + std::to_string(getpid()) + "-restored") {}
    RestoredRing(const RestoredRing&) = delete;
    RestoredRing& operator=(const RestoredRing&) = delete;
    ~RestoredRing() { static_cast<void>(rollring::remove_ring(name_, true)); }
    [[nodiscard]] const std::string& name() const { return name_; }

  private:
    std::string name_;
};

void send_back(Board& board, const std::filesystem::path& ledger, const std::string& ring) {
    board.meet();
    const std::int64_t began_ns = now_ns();
    board.figures[1] = began_ns;
    auto restore = must(board, rollring::LedgerRestore::begin(ledger, ring));
    board.figures[2] = now_ns() - began_ns;
    while (must(board, restore.send(rollring::Deadline::after_ms(restored_patience_ms)))) {
    }
}

// By a trainer that writes no ledger: it would first read all of the files itself.
void read_back(const Training& training, Board& board, const std::string& ring, const Plan& plan) {
    const rollring::StashOptions wanted{
        .group_size = training_group,
        .batch = rollring::BatchTarget::groups(training.batch_groups),
        .advanced = {.ledger = false}};
    board.meet();
    auto opened = rollring::Stash::open(ring, wanted);
    while (!opened && opened.error().code == rollring::Errc::not_found) {
        usleep(500);
        opened = rollring::Stash::open(ring, wanted);
    }
    const auto stash = must(board, std::move(opened));
    rollring::Batch batch;
    std::uint64_t read = 0;
    for (std::int64_t step = stash->last_acked_step() + 1; read < plan.total(); step++) {
        if (stash->next(batch, rollring::Deadline::after_ms(restored_patience_ms)) !=
            rollring::NextBatch::batch) {
            board.give_up("no restored batch within 10 s");
        }
        for (const rollring::Sequence& sequence : batch.sequences()) check(board, sequence.view);
        read += batch.sequences().size();
        must(board, batch.ack(step));
    }
    board.figures[0] = now_ns() - board.figures[1];
}

}  // namespace

void fill_ledger(const Training& training, const Plan& plan, const std::filesystem::path& ledger,
                 const Cpus& cpus) {
    const ScratchRing ring(ring_of(training, ledger));
    measure(
        {"ledger", [&](Board& board, const Plan& given) { send_groups(ring.name(), board, given); },
         [&](Board& board, const Plan& given) {
             take_groups(training, ring.name(), board, given);
         }},
        plan, cpus);
    // The death of a machine leaves the last file without its index.
    std::filesystem::path last = files_of_ledger(ledger).back();
    std::filesystem::remove(last.replace_extension(".index"));
}

std::vector<std::filesystem::path> files_of_ledger(const std::filesystem::path& ledger) {
    std::vector<std::filesystem::path> files;
    for (const auto& one : std::filesystem::directory_iterator(ledger)) {
        if (one.path().extension() == ".ledger") files.push_back(one.path());
    }
    std::ranges::sort(files);
    return files;
}

Restored restore(const Training& training, const std::filesystem::path& ledger, const Plan& plan,
                 const Cpus& cpus) {
    leave_page_cache(files_of_ledger(ledger));
    const RestoredRing ring;
    const SharedBytes memory(sizeof(Board));
    Board& board = *memory.at<Board>();
    const std::string problem = run_pair(
        cpus, board, [&](Board& shared) { send_back(shared, ledger, ring.name()); },
        [&](Board& shared) { read_back(training, shared, ring.name(), plan); });
    if (problem == "interrupted") return {};
    if (!problem.empty()) fail("restore: " + problem);
    return {.seconds = static_cast<double>(board.figures[0]) / 1e9,
            .begin_seconds = static_cast<double>(board.figures[2]) / 1e9};
}

}  // namespace bench
