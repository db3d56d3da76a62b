// Goal: synthetic rollouts are valid records, and the same in every shard and on every run.

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "cli/formats/record_source.hpp"
#include "rollring/trajectory.hpp"

using namespace rollring;
using namespace rollring::cli;

TEST_CASE("synthetic: the spec") {
    std::string problem;
    const auto spec =
        parse_synthetic("groups=3,group-size=4,tokens=5:9,routed-experts=48x8,seed=2", problem);
    REQUIRE(spec);
    CHECK(spec->groups == 3);
    CHECK(spec->group_size == 4);
    CHECK(spec->tokens_min == 5);
    CHECK(spec->tokens_max == 9);
    CHECK(spec->layers == 48);
    CHECK(spec->experts_per_token == 8);
    REQUIRE(parse_synthetic("tokens=64", problem));
    CHECK(parse_synthetic("tokens=64", problem)->tokens_max == 64);
    for (const char* wrong : {"groups", "groups=", "groups=-1", "tokens=9:5", "speed=1",
                              "tokens=a:b", "group-size=0", "routed-experts=4", "experts=0"}) {
        CAPTURE(wrong);
        CHECK(!parse_synthetic(wrong, problem));
        CHECK(!problem.empty());
    }
}

TEST_CASE("synthetic: valid records, every member of every group once, the same in every shard") {
    std::string problem;
    const auto spec =
        parse_synthetic("groups=70,group-size=3,tokens=0:50,routed-experts=2x3", problem);
    REQUIRE(spec);
    const auto digests = [&](const Selection& selection) {
        auto source = make_synthetic(*spec, selection, "");
        std::multiset<std::string> records;
        Draft draft;
        while (source->next(draft) == Next::record) {
            CHECK(Encoder(draft, Schema::standard(), Checksum::none).problem() == "");
            const auto* tokens = draft.find(Std::token_ids);
            const std::string content(static_cast<const char*>(tokens->data), tokens->bytes());
            records.insert(std::string(draft.instance_id()) + "#" +
                           std::to_string(draft.meta.repetition_id.value_or(0)) + "@" +
                           std::to_string(draft.meta.visit) + content);
        }
        return records;
    };
    const auto all = digests({.repeat = 2});
    CHECK(all.size() == 70 * 3 * 2);
    CHECK(std::set(all.begin(), all.end()).size() == all.size());
    auto together = digests({.shuffle = 3, .repeat = 2, .shard = {0, 2}});
    together.merge(digests({.shuffle = 3, .repeat = 2, .shard = {1, 2}}));
    CHECK(together == all);
}
