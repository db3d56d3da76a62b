#pragma once
// A leased batch of pairs whose lengths differ, for those who share it.

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "rollring/batch.hpp"
#include "support/pairs.hpp"

namespace rollring::test {

// Member r of group g has so many tokens.
inline std::uint64_t tokens_of(std::uint32_t group, std::uint32_t repetition) {
    return 10 + 37 * group + 5 * repetition;
}

struct PairBatch {
    explicit PairBatch(std::uint32_t groups, const RingOptions& options = small_lanes)
        : ring(options),
          stash(open_stash(
              ring,
              {.group_size = 2, .order = Order::fifo, .batch = BatchTarget::groups(groups)})) {
        auto producer = ring.producer();
        for (std::uint32_t g = 0; g < groups; g++) {
            for (std::uint32_t r = 0; r < 2; r++) {
                REQUIRE(send(producer, {.prompt = "g" + std::to_string(g),
                                        .repetition = r,
                                        .group_size = 2,
                                        .reward = g + 0.5 * r,
                                        .tokens = tokens_of(g, r)}) == Push::ok);
            }
        }
        lease();
    }
    void lease() { REQUIRE(stash->next(batch, patience()) == NextBatch::batch); }
    std::string ticket(const RankShare& share = {}) {
        const auto made = batch.ticket(share);
        REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().to_string()));
        return *made;
    }
    [[nodiscard]] Reader reader() const {
        auto made = Reader::attach(ring.name(), {.name = "rank"});
        REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().to_string()));
        return std::move(*made);
    }

    TestRing ring;
    std::unique_ptr<Stash> stash;
    Batch batch;
};

template <class T>
bool failed_with(const Result<T>& result, Errc code) {
    return !result && result.error().code == code && !result.error().message.empty();
}

// A share shows what the batch does of the same records.
inline void check_same(const Share& share, const Sequences& batch) {
    REQUIRE(share.sequences().size() == share.indices().size());
    for (std::size_t i = 0; i < share.indices().size(); i++) {
        const std::uint32_t of = share.indices()[i];
        const TrajectoryView& here = share.sequences()[i].view;
        const TrajectoryView& there = batch.sequences()[of].view;
        CHECK(here.instance_id() == there.instance_id());
        CHECK(std::ranges::equal(here.token_ids(), there.token_ids()));
        CHECK(here.meta().reward == there.meta().reward);
        CHECK(share.rewards()[i] == batch.rewards()[of]);
        CHECK(share.advantages()[i] == batch.advantages()[of]);
        CHECK(share.repetition_ids()[i] == batch.repetition_ids()[of]);
        CHECK(share.policy_versions()[i] == batch.policy_versions()[of]);
        CHECK(share.sequences()[i].member == batch.sequences()[of].member);
        CHECK(share.groups()[share.sequences()[i].group].key ==
              batch.groups()[batch.sequences()[of].group].key);
        CHECK(share.cu_seqlens()[i + 1] - share.cu_seqlens()[i] == there.n_tokens());
    }
}

}  // namespace rollring::test
