// Goal: the rights of a lease end with it, and misuse is told and harms nothing: a second ack, a
// use after the stash is gone, a step that goes back, anything in a forked child.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "segment.hpp"
#include "support/in_child.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::freshest_pair;
using rollring::test::in_child;
using rollring::test::open_stash;
using rollring::test::patience;
using rollring::test::send;
using rollring::test::small_lanes;
using rollring::test::TestRing;

namespace {

void send_pair(Producer& producer, const std::string& prompt) {
    for (std::uint32_t i = 0; i < 2; i++) send(producer, prompt, i);
}

// All that the ring's processes share.
class Shared {
  public:
    explicit Shared(const TestRing& ring) {
        auto segment = Segment::attach(ring.name(), patience());
        REQUIRE(segment.has_value());
        auto all = segment->map(0, segment->geometry().share_seats_offset(), false);
        REQUIRE(all.has_value());
        all_.emplace(std::move(*all));
    }
    [[nodiscard]] std::vector<std::byte> bytes() const {
        return {all_->data(), all_->data() + all_->bytes()};
    }

  private:
    std::optional<Mapping> all_;
};

bool is(const Result<void>& result, Errc code) {
    return !result && result.error().code == code && !result.error().message.empty();
}

}  // namespace

TEST_CASE("lease: in a forked child a stash and its batches are inert") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    std::unique_ptr<Stash> stash = open_stash(ring, freshest_pair);
    for (const char* prompt : {"a", "b", "c"}) send_pair(producer, prompt);
    send(producer, "half", 0);
    Batch batch;
    Batch second;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(stash->next(second, patience()) == NextBatch::batch);
    const std::string receipt = batch.receipt();
    const Lease lease = batch.lease();
    CHECK(lease.holds());
    const Shared shared(ring);
    const auto before = shared.bytes();
    const int status = in_child([&] {
        // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the test is of the copy
        const Lease inherited = lease;
        if (inherited.holds() || batch.leased()) return 1;
        if (!is(batch.ack(0), Errc::forked)) return 2;
        if (!batch.receipt().empty()) return 3;
        Batch other;
        if (stash->next(other, Deadline::now()) != NextBatch::closed) return 4;
        if (stash->problem().find("fork") == std::string::npos) return 5;
        if (stash->rest(other) != NextBatch::closed) return 6;
        const auto settled = stash->settle(receipt, 0);
        if (settled || settled.error().code != Errc::forked) return 7;
        if (stash->next(batch, patience()) != NextBatch::closed) return 8;
        second.nack();
        if (!is(second.ack(0), Errc::not_leased)) return 9;
        Event event;
        if (stash->next_event(event)) return 10;
        static_cast<void>(stash->explain(10));
        static_cast<void>(stash->account());
        static_cast<void>(stash->copies());
        // As a forked worker of Python's multiprocessing ends.
        {
            const Batch gone = std::move(batch);
        }
        stash.reset();
        return shared.bytes() == before ? 0 : 11;
    });
    CHECK(status == 0);
    CHECK(shared.bytes() == before);
    // The parent's leases go on.
    CHECK(lease.holds());
    REQUIRE(batch.sequences().size() == 2);
    CHECK(batch.ack(0).has_value());
    CHECK(second.ack(1).has_value());
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.ack(2).has_value());
    CHECK(stash->account().shipped.records == 6);
    CHECK(stash->account().conserved());
}

// Destruction alone, in the order that a C++ program or a collector of garbage may choose.
TEST_CASE("lease: a forked child that only ends writes nothing") {
    for (const bool stash_first : {false, true}) {
        const TestRing ring(small_lanes);
        auto producer = ring.producer();
        std::unique_ptr<Stash> stash = open_stash(ring, freshest_pair);
        send_pair(producer, "a");
        std::optional<Batch> batch(std::in_place);
        REQUIRE(stash->next(*batch, patience()) == NextBatch::batch);
        const Shared shared(ring);
        const auto before = shared.bytes();
        const int status = in_child([&] {
            if (stash_first) stash.reset();
            batch.reset();
            stash.reset();
            return 0;
        });
        CHECK(status == 0);
        CHECK(shared.bytes() == before);
        CHECK(batch->ack(0).has_value());
    }
}

TEST_CASE("lease: a batch is acknowledged or given back once, and knows it") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    Batch batch;
    CHECK(is(batch.ack(0), Errc::not_leased));
    CHECK(batch.lease().id() == 0);
    CHECK_FALSE(batch.lease().holds());
    send_pair(producer, "a");
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    const Lease first = batch.lease();
    Batch moved = std::move(batch);
    CHECK(first.holds());
    CHECK(moved.lease().id() == first.id());
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.Move): the test is of a moved-from batch
    CHECK(is(batch.ack(0), Errc::not_leased));  // NOLINT(bugprone-use-after-move)
    moved.nack();
    CHECK_FALSE(first.holds());
    CHECK(is(moved.ack(0), Errc::not_leased));
    CHECK(moved.receipt().empty());
    REQUIRE(stash->next(moved, patience()) == NextBatch::batch);
    CHECK(moved.lease().id() != first.id());
    CHECK(moved.lease().holds());
    CHECK_FALSE(first.holds());
    const Lease second = moved.lease();
    REQUIRE(moved.ack(0).has_value());
    CHECK_FALSE(second.holds());
    CHECK(moved.groups().empty());
    CHECK(moved.sequences().empty());
    CHECK(moved.rewards().empty());
    CHECK(is(moved.ack(0), Errc::not_leased));
    moved.nack();
    CHECK(stash->account().shipped.records == 2);
    CHECK(stash->last_acked_step() == 0);
}

TEST_CASE("lease: a discarded batch is gone for good, and its records count as dropped") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    {
        const auto stash = open_stash(ring, freshest_pair);
        Batch batch;
        send_pair(producer, "a");
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        CHECK(is(batch.discard(DropReason::count), Errc::invalid_argument));
        REQUIRE(batch.discard(DropReason::stale).has_value());
        CHECK_FALSE(batch.leased());
        CHECK(is(batch.discard(DropReason::stale), Errc::not_leased));
        const StashAccount account = stash->account();
        CHECK(account.dropped[static_cast<std::size_t>(DropReason::stale)].records == 2);
        CHECK((account.shipped.records == 0 && account.leased.records == 0));
        CHECK((account.groups_dropped == 1 && account.batches == 0 && account.conserved()));
        CHECK(stash->last_acked_step() == -1);  // it was not a step
        send(producer, "a", 0);                 // the group is over: this one is late
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        CHECK(stash->account().dropped[static_cast<std::size_t>(DropReason::late)].records == 1);
    }
    const auto next = open_stash(ring, freshest_pair);
    Batch batch;
    send_pair(producer, "b");
    REQUIRE(next->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.groups().size() == 1);
    REQUIRE(batch.ack(0).has_value());
    CHECK(next->next(batch, Deadline::now()) == NextBatch::timed_out);
}

TEST_CASE("lease: a batch may outlive its stash") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    send_pair(producer, "a");
    Batch batch;
    std::span<const std::int32_t> view;
    Lease lease;
    {
        const auto stash = open_stash(ring, freshest_pair);
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        view = batch.sequences()[1].view.token_ids();
        lease = batch.lease();
    }
    CHECK_FALSE(lease.holds());
    CHECK_FALSE(batch.leased());
    CHECK(batch.sequences().empty());
    CHECK(batch.receipt().empty());
    CHECK(is(batch.ack(0), Errc::not_leased));
    // The seat is free at once, and the group is delivered again.
    const auto next = open_stash(ring, freshest_pair);
    Batch again;
    REQUIRE(next->next(again, patience()) == NextBatch::batch);
    CHECK(again.lease().id() != lease.id());
    CHECK(is(batch.ack(0), Errc::not_leased));
    CHECK(again.leased());
    REQUIRE(again.sequences().size() == 2);
    batch.nack();
    // The lease keeps the memory: a late reader reads something, and can know.
    CHECK(view[0] == 1);
    CHECK(again.ack(0).has_value());
    // Batches of one stash may be handed to another.
    send_pair(producer, "b");
    REQUIRE(next->next(batch, patience()) == NextBatch::batch);
    CHECK(batch.ack(1).has_value());
}

TEST_CASE("lease: steps do not go back") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    for (const char* prompt : {"a", "b", "c", "d"}) send_pair(producer, prompt);
    std::string receipt;
    {
        const auto stash = open_stash(ring, freshest_pair);
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        CHECK(is(batch.ack(-1), Errc::invalid_argument));
        REQUIRE(batch.leased());
        REQUIRE(batch.ack(5).has_value());
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        const auto lower = batch.ack(4);
        REQUIRE(is(lower, Errc::invalid_argument));
        CHECK(lower.error().message.find("step 4") != std::string::npos);
        CHECK(lower.error().message.find("is 5") != std::string::npos);
        REQUIRE(batch.sequences().size() == 2);
        REQUIRE(batch.ack(5).has_value());  // several batches to one step
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        receipt = batch.receipt();
        Batch later;
        REQUIRE(stash->next(later, patience()) == NextBatch::batch);
        REQUIRE(later.ack(7).has_value());
    }
    const auto stash = open_stash(ring, freshest_pair);
    CHECK(stash->settle(receipt, -1).error().code == Errc::invalid_argument);
    // One that was leased earlier and not acknowledged before a later one was.
    CHECK(*stash->settle(receipt, 6) == 2);
    CHECK(stash->last_acked_step() == 7);
    CHECK(stash->consumer().last_acked_step() == 7);
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
}

TEST_CASE("lease: policy versions are those of each sequence") {
    const TestRing ring(small_lanes);
    auto producer = ring.producer();
    const auto stash = open_stash(ring, freshest_pair);
    const std::vector<std::int32_t> ids(20, 1);
    for (std::uint32_t member = 0; member < 2; member++) {
        for (std::uint16_t subsequence = 0; subsequence < 2; subsequence++) {
            Draft draft("agent");
            draft.meta.repetition_id = member;
            draft.meta.subsequence_index = subsequence;
            draft.meta.last_subsequence = subsequence == 1;
            draft.meta.policy_version_min = 10 * member + subsequence;
            draft.meta.policy_version_max = 10 * member + subsequence;
            draft.set(Std::token_ids, ids);
            REQUIRE(producer.push(draft, patience()) == Push::ok);
        }
    }
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    const auto versions = batch.policy_versions();
    CHECK(std::vector(versions.begin(), versions.end()) == std::vector<std::int64_t>{0, 1, 10, 11});
    CHECK(batch.ack(0).has_value());
}
