#pragma once
// Ranks of a trainer whose shards engines read where they lie, and such engines, on fake GPUs.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "exposed_shard.hpp"
#include "fake_device.hpp"

namespace rollring::test {

struct DirectRank {
    ExposedShard shard;
    Publisher publisher;
};

struct DirectEngine {
    EngineShard shard;
    Subscriber subscriber;

    Update next() {
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        return std::move(*update);
    }
    Update stage() {
        Update update = next();
        REQUIRE_OK(update.load(patience()));
        REQUIRE_OK(update.stage(patience()));
        return update;
    }
};

// All ranks, in this process. Each version changes one of three elements.
class DirectTrainer {
  public:
    explicit DirectTrainer(std::uint32_t ranks) {
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
        for (std::uint32_t rank = 0; rank < ranks; rank++) {
            ranks_.push_back(start(rank, ranks, PayloadMemory::direct));
        }
    }
    std::unique_ptr<DirectRank> start(std::uint32_t rank, std::uint32_t ranks,
                                      PayloadMemory memory) const {
        ExposedShard shard(rank, ranks, period);
        auto made = Publisher::create(ring.name(), shard.list(),
                                      {.rank = rank,
                                       .ranks = ranks,
                                       .device = trainer_gpu,
                                       .memory = memory,
                                       .layout = shard.layout()});
        REQUIRE_OK(made);
        return std::make_unique<DirectRank>(DirectRank{std::move(shard), std::move(*made)});
    }
    [[nodiscard]] Result<Subscriber> try_attach(EngineShard& shard,
                                                SubscriberOptions options) const {
        options.layout = shard.layout();
        return Subscriber::attach(ring.name(), shard.list(), options, patience());
    }
    std::unique_ptr<DirectEngine> attach(SubscriberOptions options) const {
        EngineShard shard(0, 1, period);
        auto made = try_attach(shard, std::move(options));
        REQUIRE_OK(made);
        return std::make_unique<DirectEngine>(DirectEngine{std::move(shard), std::move(*made)});
    }
    std::vector<Transaction> put(std::int64_t version) {
        std::vector<Transaction> open;
        for (auto& rank : ranks_) {
            rank->shard.fill(version);
            auto begun = rank->publisher.begin(version);
            REQUIRE_OK(begun);
            REQUIRE_OK(begun->put_all(patience()));
            REQUIRE_OK(begun->publish());
            open.push_back(std::move(*begun));
        }
        return open;
    }
    static std::vector<Result<CommitReport>> commit(std::vector<Transaction>& open,
                                                    Deadline deadline) {
        std::vector<Result<CommitReport>> results(open.size());
        std::vector<std::thread> threads;
        threads.reserve(open.size());
        for (std::size_t i = 0; i < open.size(); i++) {
            threads.emplace_back([&, i] { results[i] = open[i].commit(deadline); });
        }
        for (auto& thread : threads) thread.join();
        return results;
    }
    static void require_committed(std::vector<Transaction>& open) {
        for (const auto& one : commit(open, patience())) REQUIRE_OK(one);
    }
    // As a trainer does once its commit has returned.
    void scribble() {
        for (auto& rank : ranks_) rank->shard.fill(1000);
    }
    // The committed version once more.
    void resend(std::int64_t version) {
        std::vector<std::thread> threads;
        threads.reserve(ranks_.size());
        for (auto& rank : ranks_) {
            rank->shard.fill(version);
            threads.emplace_back([&] { CHECK(rank->publisher.resend(patience())); });
        }
        for (auto& thread : threads) thread.join();
        scribble();
    }
    [[nodiscard]] DirectRank& rank(std::size_t i) { return *ranks_[i]; }
    void end() { ranks_.clear(); }

    static constexpr std::int64_t period = 3;
    TestRing ring;

  private:
    std::vector<std::unique_ptr<DirectRank>> ranks_;
};

}  // namespace rollring::test
