#include "ledger/pushes.hpp"

#include <algorithm>
#include <vector>

#include "ledger/disk.hpp"
#include "ring/records.hpp"

namespace bench {
namespace {

// Fills the lane, so that none of its memory is touched for the first time while pushes are timed:
// a trainer that keeps up leaves most of it unused, and one that waits for the disk does not.
// Returns the number of records.
std::uint64_t fill_lane(Sender& sender, const Source& source, const Plan& plan) {
    std::uint64_t sent = 0;
    rollring::ProducerStats stats{};
    do {
        send_member(sender, source, sent++);
        stats = sender.producer().stats();
    } while (sent < plan.warmup && stats.bytes + 2 * (stats.bytes / sent) <= stats.lane_bytes);
    return sent;
}

void send_paced(const std::string& ring, Board& board, const Plan& plan, std::int64_t gap_ns) {
    Sender sender(board, ring);
    const Source source(plan.n_tokens);
    std::vector<std::int64_t> took_ns;
    took_ns.reserve(plan.records);
    const std::uint64_t filled = fill_lane(sender, source, plan);
    board.meet();
    std::int64_t due_ns = now_ns();
    for (std::uint64_t i = filled; i < plan.total(); i++) {
        while (now_ns() < due_ns) relax();
        const std::int64_t began_ns = now_ns();
        send_member(sender, source, i);
        const std::int64_t ended_ns = now_ns();
        if (i >= plan.warmup) took_ns.push_back(ended_ns - began_ns);
        // One that is late has no others behind it at once: that would be another load.
        due_ns = std::max(due_ns + gap_ns, ended_ns);
    }
    std::ranges::sort(took_ns);
    board.figures[3] = took_ns[took_ns.size() / 2];
    board.figures[4] = took_ns[took_ns.size() * 99 / 100];
}

}  // namespace

Pushes time_pushes(const Training& training, const Plan& plan, std::int64_t gap_ns,
                   const Cpus& cpus) {
    const ScratchFolder folder(training.directory);
    const ScratchRing ring(ring_of(training, folder.path() / "ledger"));
    const Measured run = measure(
        {"pushes",
         [&](Board& board, const Plan& given) { send_paced(ring.name(), board, given, gap_ns); },
         [&](Board& board, const Plan& given) {
             take_groups(training, ring.name(), board, given);
         }},
        plan, cpus);
    if (interrupted()) return {};
    return {.p50_ns = static_cast<double>(run.figures[3]),
            .p99_ns = static_cast<double>(run.figures[4])};
}

}  // namespace bench
