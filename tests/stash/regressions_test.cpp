// Goal: the grouping bugs that users of other systems reported, each by name, cannot happen here.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "machine_bench.hpp"
#include "rollring/stash.hpp"

using namespace rollring;
using rollring::test::Bench;
using rollring::test::one_second;

TEST_CASE("stash: members of two prompts with consecutive indices never share a group") {
    Bench bench({.group_size = 4, .batch = BatchTarget::groups(1)});
    for (const std::uint64_t index : {1, 2, 3, 4, 5, 6, 8, 9, 10, 11}) {
        bench.send(index / 4, static_cast<std::uint32_t>(index % 4));
    }
    std::vector<std::uint64_t> shipped;
    while (bench.cut()) {
        shipped.push_back(bench.batch.groups[0].key.low);
        CHECK(bench.batch.groups[0].member_count == 4);
        bench.stash.ack(bench.batch.id, bench.now_ns);
    }
    CHECK(shipped == std::vector<std::uint64_t>{2});
}

TEST_CASE("stash: a partial group is normalised over its own members, not over a stride") {
    Bench bench({.group_size = 4,
                 .deadline = std::chrono::nanoseconds(one_second),
                 .batch = BatchTarget::groups(2)});
    for (const std::uint32_t repetition : {0, 1, 3}) bench.send(1, repetition, repetition);
    for (const std::uint32_t repetition : {0, 1, 2, 3})
        bench.send(2, repetition, 10.0 * repetition);
    bench.now_ns += 2 * one_second;
    bench.stash.tick(bench.now_ns);
    REQUIRE(bench.cut());
    REQUIRE(bench.batch.groups.size() == 2);
    CHECK(bench.batch.groups[0].member_count == 3);
    std::vector<double> rewards;
    for (const auto& member : bench.batch.members_of(bench.batch.groups[0]))
        rewards.push_back(*member.reward);
    std::vector<double> advantages(3);
    group_advantages(rewards, {}, advantages);
    const double deviation = std::sqrt(14.0 / 9.0 * 3 / 2) + 1e-4;
    CHECK(advantages[0] == doctest::Approx((0 - 4.0 / 3) / deviation));
    CHECK(advantages[1] == doctest::Approx((1 - 4.0 / 3) / deviation));
    CHECK(advantages[2] == doctest::Approx((3 - 4.0 / 3) / deviation));
    bench.stash.ack(bench.batch.id, bench.now_ns);
    CHECK(bench.stash.account().groups_partial == 1);
}

TEST_CASE("stash: 3 groups of 8 and 20 groups of 3 do form batches of 32 sequences") {
    Bench bench({.batch = BatchTarget::sequences(32)});
    std::uint64_t prompt = 0;
    for (const auto& [groups, size] : {std::pair{3, 8U}, std::pair{20, 3U}}) {
        for (int group = 0; group < groups; group++, prompt++) {
            for (std::uint32_t member = 0; member < size; member++) {
                bench.send(prompt, member, 0, size);
            }
        }
    }
    int batches = 0;
    while (bench.cut()) {
        std::size_t sequences = 0;
        for (const auto& group : bench.batch.groups) sequences += group.member_count;
        CHECK(sequences >= 32);
        CHECK(sequences < 32 + 8);
        bench.stash.ack(bench.batch.id, bench.now_ns);
        batches++;
    }
    CHECK(batches == 2);
}

TEST_CASE("stash: a filter that drops groups gives their place back") {
    Bench bench(
        {.group_size = 2, .zero_variance = ZeroVariance::drop, .batch = BatchTarget::groups(1)});
    for (std::uint64_t prompt = 0; prompt < 500; prompt++) {
        bench.send(prompt, 0, 1.0);
        bench.send(prompt, 1, 1.0);
    }
    CHECK(bench.stash.open_groups() == 0);
    CHECK(bench.stash.account().held == Amount{});
    CHECK(bench.dropped(DropReason::zero_variance) == 1000);
}

TEST_CASE("stash: a run whose rewards never differ still gets a batch") {
    Bench bench({.group_size = 2,
                 .zero_variance = ZeroVariance::drop,
                 .batch = BatchTarget::groups(1),
                 .advanced = {.zero_variance_run = 10}});
    int batches = 0;
    for (std::uint64_t prompt = 0; prompt < 44; prompt++) {
        bench.send(prompt, 0, 1.0);
        bench.send(prompt, 1, 1.0);
        if (!bench.cut()) continue;
        bench.stash.ack(bench.batch.id, bench.now_ns);
        batches++;
    }
    CHECK(batches == 4);
}

TEST_CASE("stash: the same instance in the next epoch is another group") {
    Bench bench({.group_size = 2, .batch = BatchTarget::groups(1)});
    for (std::uint64_t visit = 0; visit < 3; visit++) {
        for (const std::uint32_t repetition : {0, 1}) {
            Arrival arrival;
            arrival.key = GroupKey::of("gsm8k/17", visit);
            arrival.repetition_id = repetition;
            bench.send(arrival);
        }
        REQUIRE(bench.cut());
        bench.stash.ack(bench.batch.id, bench.now_ns);
    }
    CHECK(bench.stash.account().groups_shipped == 3);
    CHECK(bench.dropped(DropReason::late) == 0);
}

TEST_CASE("stash: one straggler does not hold the others, and leaves at its deadline") {
    Bench bench({.group_size = 2,
                 .deadline = std::chrono::nanoseconds(10 * one_second),
                 .batch = BatchTarget::groups(4)});
    bench.send(999, 0);
    int batches = 0;
    for (std::uint64_t prompt = 0; prompt < 100; prompt++) {
        bench.send(prompt, 0);
        bench.send(prompt, 1);
        if (!bench.cut()) continue;
        bench.stash.ack(bench.batch.id, bench.now_ns);
        batches++;
    }
    CHECK(batches == 25);
    const auto waiting = bench.stash.oldest_open(10);
    REQUIRE(waiting.size() == 1);
    CHECK(bench.stash.group(waiting[0]).missing() == std::vector<std::uint32_t>{1});
    bench.now_ns += 11 * one_second;
    bench.stash.tick(bench.now_ns);
    CHECK(bench.stash.open_groups() == 0);
    CHECK(bench.dropped(DropReason::too_few) == 1);
}

TEST_CASE("stash: a surplus member after shipping cannot open a ghost group") {
    Bench bench({.group_size = 2, .batch = BatchTarget::groups(1)});
    bench.send(1, 0);
    bench.send(1, 1);
    bench.send(1, 2);
    CHECK(bench.dropped(DropReason::surplus) == 1);
    REQUIRE(bench.cut());
    bench.send(1, 3);
    CHECK(bench.dropped(DropReason::late) == 1);
    bench.stash.ack(bench.batch.id, bench.now_ns);
    bench.send(1, 4);
    CHECK(bench.dropped(DropReason::late) == 2);
    CHECK(bench.stash.open_groups() == 0);
}

TEST_CASE("stash: a retry replaces before shipping and is refused after") {
    Bench bench({.group_size = 2, .batch = BatchTarget::groups(1)});
    Arrival first;
    first.key = {7, 0};
    first.reward = 0.0;
    bench.send(first);
    Arrival retry = first;
    retry.attempt = 1;
    retry.reward = 1.0;
    bench.send(retry);
    CHECK(bench.dropped(DropReason::superseded) == 1);
    bench.send(first);
    CHECK(bench.dropped(DropReason::superseded) == 2);
    bench.send(retry);
    CHECK(bench.dropped(DropReason::duplicate) == 1);
    bench.send(7, 1);
    REQUIRE(bench.cut());
    CHECK(bench.batch.members[0].reward == 1.0);
    retry.attempt = 2;
    bench.send(retry);
    CHECK(bench.dropped(DropReason::late) == 1);
}

namespace {

// Members 0 to 3, of which 1 has a reward that is not a number.
StashOptions four_and(BadReward policy) {
    return {.group_size = 4, .bad_reward = policy, .batch = BatchTarget::groups(1)};
}
void send_bad_reward(Bench& bench, double bad) {
    for (const std::uint32_t repetition : {0, 1, 2, 3}) {
        bench.send(1, repetition, repetition == 1 ? bad : repetition);
    }
    CHECK(bench.stash.account().bad_rewards == 1);
}

}  // namespace

TEST_CASE("stash: a member whose reward is NaN or infinite counts as failed, by name") {
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        Bench bench(four_and(BadReward::fail));
        send_bad_reward(bench, bad);
        REQUIRE(bench.cut());
        const BatchGroup& group = bench.batch.groups[0];
        CHECK(group.member_count == 3);
        CHECK(group.bad_rewards == 1);
        for (const auto& member : bench.batch.members_of(group)) {
            CHECK(member.repetition_id != 1);
            CHECK(member.reward.has_value());
        }
        CHECK(bench.batch.failure_marks.size() == 1);  // a crash does not forget it
        bench.stash.ack(bench.batch.id, bench.now_ns);
        CHECK(bench.dropped(DropReason::bad_reward) == 1);
        CHECK(bench.dropped(DropReason::failed) == 0);
        CHECK(bench.stash.account().conserved());
    }
}

TEST_CASE("stash: a bad reward voids its group, or is as good as none, where that is asked for") {
    Bench voided(four_and(BadReward::void_group));
    send_bad_reward(voided, std::nan(""));
    CHECK(!voided.cut());
    CHECK(voided.stash.open_groups() == 0);
    CHECK(voided.dropped(DropReason::bad_reward) == 1);
    CHECK(voided.dropped(DropReason::group_void) == 1);
    CHECK(voided.dropped(DropReason::late) == 2);

    Bench absent(four_and(BadReward::absent));
    send_bad_reward(absent, HUGE_VAL);
    REQUIRE(absent.cut());
    CHECK(absent.batch.groups[0].member_count == 4);
    CHECK(absent.batch.groups[0].bad_rewards == 1);
    CHECK(!absent.batch.members[1].reward.has_value());
    absent.stash.ack(absent.batch.id, absent.now_ns);
    CHECK(absent.stash.account().dropped_total() == Amount{});
}

TEST_CASE(
    "stash: subsequences of a member with a bad reward leave under its name; a retry mends it") {
    Bench bench({.group_size = 2, .on_failed = OnFailed::hold, .batch = BatchTarget::groups(1)});
    Arrival subsequence;
    subsequence.key = {1, 0};
    subsequence.last_subsequence = false;
    subsequence.reward = std::nan("");
    bench.send(subsequence);
    subsequence.subsequence_index = 1;
    subsequence.last_subsequence = true;
    subsequence.reward = 1.0;
    bench.send(subsequence);
    CHECK(bench.dropped(DropReason::bad_reward) == 1);
    bench.send(1, 1, 2.0);
    CHECK(!bench.cut());
    Arrival retry;
    retry.key = {1, 0};
    retry.attempt = 1;
    retry.reward = 1.0;
    bench.send(retry);
    REQUIRE(bench.cut());
    CHECK(bench.batch.members.size() == 2);
    CHECK(bench.batch.groups[0].bad_rewards == 0);
}

TEST_CASE("stash: the reward of a failed rollout is not looked at") {
    Bench bench(
        {.group_size = 3, .bad_reward = BadReward::void_group, .batch = BatchTarget::groups(1)});
    Arrival mark;
    mark.key = {1, 0};
    mark.status = Status::failed;
    mark.reward = std::nan("");
    bench.send(mark);
    bench.send(1, 1, 1.0);
    bench.send(1, 2, 2.0);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].bad_rewards == 0);
    CHECK(bench.stash.account().bad_rewards == 0);
}

TEST_CASE("stash: rewards that are there and equal have no variance, whoever has none") {
    Bench bench(
        {.group_size = 3, .zero_variance = ZeroVariance::drop, .batch = BatchTarget::groups(1)});
    Arrival without;
    without.key = {1, 0};
    bench.send(without);
    bench.send(1, 1, 1.0);
    bench.send(1, 2, 1.0);
    CHECK(bench.dropped(DropReason::zero_variance) == 3);
    // Without any reward there is nothing to compare.
    for (const std::uint32_t repetition : {0, 1, 2}) {
        without.key = {2, 0};
        without.repetition_id = repetition;
        bench.send(without);
    }
    CHECK(bench.cut());
}

// It took two lines and a half, and UBSan to say so: Boost's allocator aligns to 16 bytes.
TEST_CASE("stash: a member begins where a cache line does") {
    Bench bench({.group_size = 40});
    for (std::uint32_t repetition = 0; repetition < 40; repetition++) {
        bench.send(1, repetition);
        for (const GroupStash::Index index : bench.stash.touched()) {
            const auto* members = bench.stash.group(index).members.data();
            CHECK(reinterpret_cast<std::uintptr_t>(members) % 64 == 0);
        }
        bench.stash.touched().clear();
    }
}

// One record made the trainer's program end with bad_alloc, or ship a group of two as whole.
TEST_CASE("stash: a group that claims the most it may neither wraps nor takes time to explain") {
    Bench bench(
        {.extra = 3, .batch = BatchTarget::groups(1), .advanced = {.select = Select::uniform}});
    const std::uint32_t most = group_size_max;
    for (const std::uint32_t size : {most, ~std::uint32_t{0}}) {
        bench.send(size, 0, 0, size);
        bench.send(size, size - 1, 0, size);
        CHECK(!bench.cut());  // size + extra is not 2
    }
    // Nearly all of its members are there: the stash does not go through them for each repetition.
    for (std::uint32_t repetition = 1; repetition < 20'000; repetition++) {
        bench.send(most, repetition, 0, most);
    }
    const auto waiting = bench.stash.oldest_open(1);
    REQUIRE(waiting.size() == 1);
    const auto missing = bench.stash.group(waiting[0]).missing();
    CHECK(missing.size() == most - 20'001);
    CHECK(missing.front() == 20'000);
    CHECK(missing.back() == most - 2);
}

TEST_CASE("stash: every answer and policy is named as it is written") {
    CHECK(name(NextBatch::batch) == "batch");
    CHECK(name(NextBatch::timed_out) == "timed_out");
    CHECK(name(NextBatch::closed) == "closed");
    CHECK(name(static_cast<NextBatch>(3)) == "unknown");
    CHECK(name(Poll::record) == "record");
    CHECK(name(Poll::empty) == "empty");
    CHECK(name(Poll::timed_out) == "timed_out");
    CHECK(name(Poll::closed) == "closed");
    CHECK(name(AtDeadline::ship) == "ship");
    CHECK(name(AtDeadline::drop) == "drop");
    CHECK(name(AtDeadline::hold) == "hold");
    CHECK(name(OnFailed::shrink) == "shrink");
    CHECK(name(OnFailed::void_group) == "void_group");
    CHECK(name(OnFailed::hold) == "hold");
    CHECK(name(BadReward::fail) == "fail");
    CHECK(name(BadReward::void_group) == "void_group");
    CHECK(name(BadReward::absent) == "absent");
    CHECK(name(Select::first) == "first");
    CHECK(name(Select::uniform) == "uniform");
    CHECK(name(ZeroVariance::keep) == "keep");
    CHECK(name(ZeroVariance::drop) == "drop");
    CHECK(name(Stale::drop) == "drop");
    CHECK(name(Stale::withhold) == "withhold");
    CHECK(name(Order::windowed) == "windowed");
    CHECK(name(Order::fifo) == "fifo");
    CHECK(name(Order::freshest) == "freshest");
    CHECK(name(Advantages::none) == "none");
    CHECK(name(Advantages::grpo) == "grpo");
    CHECK(name(Advantages::mean) == "mean");
    CHECK(name(Advantages::loo) == "loo");
    CHECK(name(Deviation::sample) == "sample");
    CHECK(name(Deviation::population) == "population");
}

TEST_CASE("stash: every option out of range is refused by its name") {
    CHECK(validate({}).has_value());
    const auto message = [](const StashOptions& options) {
        const auto checked = validate(options);
        return checked ? std::string() : checked.error().message;
    };
    CHECK(message({.group_size = 0}).find("group_size") != std::string::npos);
    CHECK(message({.deadline = std::chrono::nanoseconds(0)}).find("deadline") != std::string::npos);
    CHECK(message({.at_deadline = AtDeadline::drop}).find("no deadline is given") !=
          std::string::npos);
    CHECK(validate({.at_deadline = AtDeadline::hold}).has_value());
    CHECK(message({.advanced = {.window_fraction = 0}}).find("window_fraction") !=
          std::string::npos);
    CHECK(message({.batch = BatchTarget::sequences(0)}).find("batch has 0 sequences") !=
          std::string::npos);
    CHECK(message({.advanced = {.source_weights = {{1, -1.0}}}}).find("source_weights") !=
          std::string::npos);
}

TEST_CASE(
    "stash: a group that is whole is not dropped at its deadline for members it could spare") {
    // As after a restart: its surplus members were released before the trainer died.
    Bench bench({.group_size = 2,
                 .extra = 2,
                 .deadline = std::chrono::nanoseconds(100),
                 .at_deadline = AtDeadline::drop,
                 .batch = BatchTarget::groups(1),
                 .advanced = {.select = Select::uniform}});
    bench.send(1, 0);
    bench.send(1, 3);
    CHECK(!bench.cut());
    bench.now_ns = 1000;
    bench.stash.tick(bench.now_ns);
    REQUIRE(bench.cut());
    CHECK(bench.batch.groups[0].member_count == 2);
}
