// Many processes create, attach to and die on one name: one creator wins, a leftover of a killed
// one is replaced, and a live ring is never unlinked.
//
//   creation_race [--rounds N] [--seed N]

#include <unistd.h>
#include <atomic>

#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "support/in_child.hpp"
#include "support/load.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint32_t racers = 8;

struct Racer {
    std::atomic<std::uint32_t> won;
    std::atomic<std::uint64_t> made_id;      // ring_id of the ring that it made
    std::atomic<std::uint64_t> attached_id;  // and of the one that it attached to
    std::atomic<std::uint64_t> pushed;
};
struct Board {
    std::atomic<std::uint32_t> ready;
    std::atomic<std::uint32_t> go;
    Racer racer[racers];
};

struct Sums {
    std::uint64_t rounds = 0;
    std::uint64_t kills = 0;
    std::uint64_t won = 0;
    std::uint64_t leftovers = 0;  // half-made objects that stood in the way
    std::uint64_t won_by_killed = 0;
    std::uint64_t attached = 0;
};

std::uint64_t id_of(const std::string& ring) {
    const auto stat = stat_ring(ring);
    require(stat.has_value(), "stat: {}", stat ? "" : stat.error().to_string());
    return stat->ring_id;
}

int race(Board& board, std::uint32_t index, const std::string& ring, const RingOptions& options) {
    Racer& self = board.racer[index];
    board.ready++;
    while (board.go.load() == 0) std::this_thread::yield();
    const auto made = create_ring(ring, options);
    require(made || made.error().code == Errc::already_exists, "{}",
            made ? "" : made.error().to_string());
    self.won = made ? 1 : 0;
    if (made) self.made_id = id_of(ring);
    auto producer = Producer::open(ring, {.attach_timeout = std::chrono::milliseconds(20'000)});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    self.attached_id = id_of(ring);
    Load load;
    require(load.push(*producer, index, 0) == Push::ok, "push");
    self.pushed = 1;
    return 0;
}

// A creator on its own, killed in the middle. True if it left half a ring behind.
bool leave_half_made(const std::string& ring, const RingOptions& options, Dice& dice) {
    const Shared<Board> board;
    const pid_t pid = start_child([&] {
        board->ready = 1;
        while (board->go.load() == 0) continue;
        return create_ring(ring, options).has_value() ? 0 : 1;
    });
    while (board->ready.load() == 0) std::this_thread::yield();
    board->go = 1;
    // It strikes as soon as the name can be seen, or a little later.
    const std::string path = fmt::format("/dev/shm/rollring.{}.{}", getuid(), ring);
    while (access(path.c_str(), F_OK) != 0) continue;
    for (std::uint64_t spins = dice.below(2000); spins > 0; spins--)
        std::atomic_signal_fence(std::memory_order_seq_cst);
    kill(pid, SIGKILL);
    require(collect(pid) != 1, "a creator without a rival lost");
    const RingDiagnosis found = diagnose_ring(ring);
    if (found.health == RingHealth::unfinished) return true;
    require(remove_ring(ring).has_value(), "remove");
    return false;
}

// Some of the racers die at random moments of the first half millisecond.
void run_round(Dice& dice, Sums& sums) {
    const std::string ring = scratch_name("race");
    const RingOptions options{.lanes = racers, .lane_bytes = 16 << 10, .journal_records = 16};
    if (sums.rounds % 2 == 0) {
        int attempts = 0;
        while (attempts++ < 1000 && !leave_half_made(ring, options, dice)) continue;
        sums.leftovers += attempts < 1000 ? 1 : 0;
    }
    const Shared<Board> board;
    std::vector<pid_t> pids;
    pids.reserve(racers);
    for (std::uint32_t i = 0; i < racers; i++) {
        pids.push_back(start_child([&] { return race(*board.operator->(), i, ring, options); }));
    }
    while (board->ready.load() < racers) continue;
    board->go = 1;
    std::vector<bool> killed(racers);
    // Half of the rounds strike while the name is being made, half of them later.
    const std::uint64_t reach_ns = dice.below(2) == 0 ? 30'000 : 200'000;
    for (std::uint64_t left = dice.below(racers); left > 0; left--) {
        const std::int64_t until_ns =
            monotonic_ns() + static_cast<std::int64_t>(dice.below(reach_ns));
        while (monotonic_ns() < until_ns) continue;
        const std::size_t victim = dice.below(racers);
        kill(pids[victim], SIGKILL);
        killed[victim] = true;
    }
    std::uint32_t winners = 0;
    bool winner_known = false;
    for (std::uint32_t i = 0; i < racers; i++) {
        const int status = collect(pids[i]);
        require(status == 0 || (killed[i] && status == 128 + SIGKILL), "racer {}: status {}", i,
                status);
        sums.kills += status == 0 ? 0 : 1;
        winners += board->racer[i].won.load();
        winner_known |= board->racer[i].won.load() != 0;
    }
    require(winners <= 1, "{} creators won", winners);
    if (!winner_known) {
        // A killed one may have won unseen, or left something unfinished: either is fine.
        const auto made = create_ring(ring, options);
        require(made || made.error().code == Errc::already_exists, "{}",
                made ? "" : made.error().to_string());
        sums.won_by_killed += made ? 0 : 1;
    }
    const std::uint64_t id = id_of(ring);
    std::uint64_t pushed = 0;
    for (const Racer& racer : board->racer) {
        require(racer.made_id.load() == 0 || racer.made_id.load() == id, "the ring was replaced");
        require(racer.attached_id.load() == 0 || racer.attached_id.load() == id,
                "one attached to another ring");
        sums.attached += racer.attached_id.load() != 0 ? 1 : 0;
        pushed += racer.pushed.load();
    }
    auto consumer = Consumer::open(ring, {.attach_timeout = {}});
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Record record;
    std::uint64_t got = 0;
    while (consumer->poll(record) == Poll::record) {
        Load::verify(record);
        consumer->release(record.ref);
        got++;
    }
    require(got >= pushed, "{} records were committed, {} arrived", pushed, got);
    require(remove_ring(ring, true).has_value(), "remove");
    sums.won += winners;
    sums.rounds++;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    const std::uint64_t rounds = option(arguments, "--rounds", 500);
    fmt::print("creation_race --seed {} --rounds {}\n", seed, rounds);
    Dice dice{seed};
    Sums sums;
    try {
        while (sums.rounds < rounds) run_round(dice, sums);
        fmt::print(
            "rounds={} racers={} kills={} won={} won_by_a_killed_one={} half_made={} "
            "attached={} leftovers={}\n",
            sums.rounds, racers, sums.kills, sums.won, sums.won_by_killed, sums.leftovers,
            sums.attached, leftovers());
        require(sums.leftovers >= rounds / 3, "only {} leftovers in the way", sums.leftovers);
        require(sums.kills >= rounds / 2, "only {} kills", sums.kills);
        require(sums.attached >= rounds * 3, "only {} attached", sums.attached);
        require(leftovers() == 0, "{} leftovers", leftovers());
    } catch (const std::exception& failure) {
        static_cast<void>(std::fflush(stdout));
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        return 1;
    }
    return 0;
}
