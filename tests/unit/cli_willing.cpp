// Goal: who has records of several groups at hand sends those that may be sent, all of them, and
// waits for the oldest group only where none may.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "producer/willing_source.hpp"

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
            records.insert(sent.back() + "/" + std::to_string(draft.meta.repetition_id));
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
