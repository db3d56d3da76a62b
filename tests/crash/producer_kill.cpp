// Producers killed at random moments: their committed records arrive, once, whole and in order;
// their lane is free again; the others go on.

#include <algorithm>

#include "random_kill.hpp"
#include "support/arrivals.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t alive_at_once = 4;  // as many as there are lanes

class ProducerKill {
  public:
    ProducerKill(std::uint64_t seed, std::uint64_t kills)
        : dice_{seed},
          kills_wanted_(kills),
          ring_("producers",
                {.lanes = alive_at_once, .lane_bytes = 128 << 10, .soft_bytes = 32768}),
          arrivals_(ring_.name(), dice_) {}

    void run() {
        for (std::size_t& stream : running_) stream = arrivals_.start();
        std::int64_t next_ns = monotonic_ns();
        while (kills_ < kills_wanted_) {
            arrivals_.turn();
            if (monotonic_ns() < next_ns) continue;
            std::size_t& victim = running_[dice_.below(alive_at_once)];
            strike(victim);
            victim = arrivals_.start();
            next_ns =
                monotonic_ns() + 1'000'000 + static_cast<std::int64_t>(dice_.below(4'000'000));
        }
        for (const std::size_t stream : running_) strike(stream);
        arrivals_.finish();
        report();
    }

  private:
    void strike(std::size_t stream) {
        require(arrivals_.strike(stream), "producer {} ended by itself", stream);
        kills_++;
        const Life& life = arrivals_.life(stream);
        struck_at_work_ += life.attempted.load() > 0 ? 1 : 0;
        struck_in_push_ += life.attempted.load() > life.committed.load() ? 1 : 0;
    }

    void report() {
        std::int64_t open_ns = 0;
        for (std::size_t i = 0; i < arrivals_.streams(); i++) {
            open_ns = std::max(open_ns, arrivals_.life(i).open_ns.load());
        }
        const auto stat = stat_ring(ring_.name());
        std::uint64_t laps_soft = 0;
        std::uint64_t laps_full = 0;
        std::uint64_t jumps = 0;
        for (const LaneStat& lane : stat->lanes) {
            laps_soft += lane.laps_soft;
            laps_full += lane.laps_full;
            jumps += lane.jumps;
        }
        fmt::print(
            "producers: kills={} at_work={} in_push={} joined={} records={} laps_soft={} "
            "laps_full={} jumps={} longest_survivor_gap_ms={:.1f} longest_open_ms={:.1f}\n",
            kills_, struck_at_work_, struck_in_push_, arrivals_.joined(), arrivals_.records(),
            laps_soft, laps_full, jumps, static_cast<double>(arrivals_.longest_gap_ns()) / 1e6,
            static_cast<double>(open_ns) / 1e6);
        require(kills_ >= kills_wanted_, "only {} kills", kills_);
        require(struck_at_work_ >= kills_ / 4, "only {} kills struck at work", struck_at_work_);
        require(struck_in_push_ >= kills_ / 20, "only {} kills struck a push", struck_in_push_);
        require(arrivals_.records() >= kills_ * 5, "only {} records", arrivals_.records());
        require(laps_soft > 0 && laps_full > 0 && jumps > 0, "the lanes were not worked hard");
    }

    Dice dice_;
    std::uint64_t kills_wanted_;
    ScratchRing ring_;
    Arrivals arrivals_;
    std::size_t running_[alive_at_once]{};  // streams
    std::uint64_t kills_ = 0;
    std::uint64_t struck_at_work_ = 0;
    std::uint64_t struck_in_push_ = 0;
};

}  // namespace

void kill_producers(std::uint64_t seed, std::uint64_t kills) {
    ProducerKill(seed, kills).run();
}

}  // namespace rollring::test
