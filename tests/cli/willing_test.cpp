// Goal: a sender with records of several groups at hand sends those that may be sent, all of them,
// and waits for the oldest group only where none may.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cli/commands/willing_source.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

GroupWanted group_of(const Draft& draft) {
    return {std::string(draft.instance_id()), draft.meta.visit, {}};
}

}  // namespace

TEST_CASE("willing: of what was set aside, any group that may be sent by now goes first") {
    SyntheticSpec spec;
    spec.groups = 4;
    spec.group_size = 2;
    spec.tokens_min = spec.tokens_max = 3;
    const auto source = make_synthetic(spec, {}, "synthetic");
    std::vector<std::string> names;  // in the source's order
    std::set<std::string> open;
    WillingSource willing(*source, group_of, [&](const GroupWanted& group) {
        if (std::ranges::find(names, group.instance_id) == names.end()) {
            names.push_back(group.instance_id);
        }
        return open.contains(group.instance_id);
    });
    std::vector<std::string> sent;
    std::set<std::string> records;
    const auto send = [&](int count) {
        for (int i = 0; i < count; i++) {
            Draft draft;
            REQUIRE(willing.next(draft) == Next::record);
            sent.emplace_back(draft.instance_id());
            records.insert(sent.back() + "/" +
                           std::to_string(draft.meta.repetition_id.value_or(0)));
        }
    };
    send(2);  // none may: the oldest, for which its sender waits
    REQUIRE(names.size() == 4);
    open.insert(names[2]);  // another producer has opened it
    send(2);
    send(1);
    open.insert(names[3]);
    send(3);
    CHECK(sent == std::vector{names[0], names[0], names[2], names[2], names[1], names[1], names[3],
                              names[3]});
    CHECK(records.size() == 8);
    Draft draft;
    CHECK(willing.next(draft) == Next::end);
}

TEST_CASE(
    "willing: a record that had to wait is put back, and comes again after what may go first") {
    SyntheticSpec spec;
    spec.groups = 3;
    spec.group_size = 2;
    spec.tokens_min = spec.tokens_max = 3;
    const auto source = make_synthetic(spec, {}, "synthetic");
    std::set<std::string> open;
    WillingSource willing(*source, group_of, [&](const GroupWanted& group) {
        return open.contains(group.instance_id);
    });
    Draft draft;
    REQUIRE(willing.next(draft) == Next::record);
    const std::string oldest(draft.instance_id());
    const std::uint32_t member = draft.meta.repetition_id.value_or(0);
    REQUIRE(willing.put_back());
    CHECK_FALSE(willing.put_back());
    REQUIRE(willing.next(draft) == Next::record);
    CHECK(draft.instance_id() == oldest);
    CHECK(draft.meta.repetition_id == member);
    REQUIRE(willing.put_back());
    open.insert("synthetic/1/2");  // by another producer
    std::vector<std::string> sent;
    for (int i = 0; i < 6; i++) {
        REQUIRE(willing.next(draft) == Next::record);
        sent.emplace_back(draft.instance_id());
    }
    CHECK(sent[0] == "synthetic/1/2");
    CHECK(sent[1] == "synthetic/1/2");
    CHECK(sent[2] == oldest);
    CHECK(willing.next(draft) == Next::end);
}
