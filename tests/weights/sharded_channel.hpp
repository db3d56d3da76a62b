#pragma once
// A sharded trainer in this process, and engines of it.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "support/shard_model.hpp"

namespace rollring::test {

struct TrainerRank {
    TrainerShard shard;
    Publisher publisher;
};

struct Engine {
    EngineShard shard;
    Subscriber subscriber;
};

// All ranks of a trainer, in this process.
class Trainer {
  public:
    // `last_subscribers`: subscribers_max of the last rank.
    Trainer(const TestRing& ring, std::uint32_t ranks, std::uint32_t last_subscribers = 64)
        : ring_(ring.name()), last_subscribers_(last_subscribers), ranks_(ranks) {
        for (std::uint32_t rank = 0; rank < ranks; rank++) start(rank);
    }
    // Again, if it was there.
    void start(std::uint32_t rank) {
        ranks_[rank].reset();
        const auto ranks = static_cast<std::uint32_t>(ranks_.size());
        TrainerShard shard(rank, ranks);
        auto made =
            Publisher::create(ring_, shard.list(),
                              {.rank = rank,
                               .ranks = ranks,
                               .checksums = true,
                               .subscribers_max = rank + 1 == ranks ? last_subscribers_ : 64,
                               .layout = shard.layout()});
        REQUIRE_OK(made);
        ranks_[rank] =
            std::make_unique<TrainerRank>(TrainerRank{std::move(shard), std::move(*made)});
    }
    // Each rank in a thread of its own; the results by rank.
    std::vector<Result<void>> publish(std::int64_t version, Deadline deadline = patience()) {
        std::vector<Result<void>> results(ranks_.size());
        std::vector<std::thread> threads;
        threads.reserve(ranks_.size());
        for (std::size_t i = 0; i < ranks_.size(); i++) {
            threads.emplace_back(
                [&, i] { results[i] = publish_one(*ranks_[i], version, deadline); });
        }
        for (auto& thread : threads) thread.join();
        return results;
    }
    static Result<void> publish_one(TrainerRank& rank, std::int64_t version, Deadline deadline) {
        rank.shard.fill(version);
        auto open = rank.publisher.begin(version);
        if (!open) return std::unexpected(open.error());
        if (auto put = open->put_all(deadline); !put) return put;
        if (auto done = open->publish(); !done) return done;
        auto report = open->commit(deadline);
        if (!report) return std::unexpected(report.error());
        return {};
    }
    [[nodiscard]] TrainerRank& rank(std::size_t i) { return *ranks_[i]; }

  private:
    std::string ring_;
    std::uint32_t last_subscribers_;
    std::vector<std::unique_ptr<TrainerRank>> ranks_;
};

inline std::unique_ptr<Engine> engine_on(const TestRing& ring, std::uint32_t rank,
                                         std::uint32_t ranks, SubscriberOptions options = {}) {
    EngineShard shard(rank, ranks);
    options.name = "engine-" + std::to_string(rank);
    options.layout = shard.layout();
    auto made = Subscriber::attach(ring.name(), shard.list(), options, patience());
    REQUIRE_OK(made);
    return std::make_unique<Engine>(Engine{std::move(shard), std::move(*made)});
}

inline void require_all(const std::vector<Result<void>>& results) {
    for (const auto& one : results) REQUIRE_OK(one);
}

// A version that all ranks have put.
inline std::vector<Transaction> put_by_all(Trainer& trainer, std::size_t ranks,
                                           std::int64_t version) {
    std::vector<Transaction> open;
    for (std::size_t i = 0; i < ranks; i++) {
        trainer.rank(i).shard.fill(version);
        auto begun = trainer.rank(i).publisher.begin(version);
        REQUIRE_OK(begun);
        REQUIRE_OK(begun->put_all(patience()));
        REQUIRE_OK(begun->publish());
        open.push_back(std::move(*begun));
    }
    return open;
}

inline void commit_by_all(std::vector<Transaction>& open) {
    std::vector<std::thread> threads;
    threads.reserve(open.size());
    for (auto& one : open) threads.emplace_back([&] { CHECK(one.commit(patience())); });
    for (auto& thread : threads) thread.join();
}

inline Update staged_by(Engine& engine) {
    auto update = engine.subscriber.next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    return std::move(*update);
}

}  // namespace rollring::test
