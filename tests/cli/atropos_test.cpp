// Goal: all fourteen fields of an Atropos ScoredDataGroup survive the way through a ring, member by
// member and in any order.

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "round_trip.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

constexpr const char* full_group = R"({
  "tokens": [[1,2,3],[4,5]],
  "masks": [[-100,2,3],[-100,5]],
  "scores": [1.0,-0.25],
  "advantages": [[0.5,0.5,0.5],[-0.5,-0.5]],
  "ref_logprobs": [[-1.5,-2.5,-0.125],[-3.0,-4.0]],
  "messages": [[{"role":"user","content":"hi"}],[{"role":"user","content":"ü"}]],
  "generation_params": {"temperature":0.7,"top_p":NaN},
  "inference_logprobs": [[1.0,-0.5,-0.25],[1.0,-0.75]],
  "overrides": [{"set_advantage_to_zero":true},{}],
  "group_overrides": {"group_size":2},
  "images": [null,"aGVsbG8="],
  "env_id": 3,
  "distill_token_ids": [[[1,2],[3,4],[5,6]],[[7,8],[9,10]]],
  "distill_logprobs": [[[-1.0,-2.0],[-3.0,-4.0],[-5.0,-6.0]],[[-7.0,-8.0],[-9.0,-10.0]]]
})";

// Through records and back; `reversed`: the members come last first.
std::string round_trip(std::string_view line, bool reversed) {
    AtroposLine group("run");
    group.parse(parse_json(line), Schema::standard(), 17);
    std::vector<ParsedRecord> records(group.members().begin(), group.members().end());
    if (reversed) std::ranges::reverse(records);
    AtroposGroups groups;
    std::string out;
    for (const auto& record : records) {
        CHECK(out.empty());
        CHECK(groups.add(Encoded(record).view, Schema::standard(), out) == "");
    }
    CHECK(groups.finish(out) == 0);
    return out;
}

}  // namespace

TEST_CASE("atropos: what goes in comes out") {
    for (
        const char* line : {
            full_group,
            R"({"tokens":[[1,2]],"masks":[[-100,2]],"scores":[0]})",
            R"({"tokens":[[1,2],[3]],"masks":[[-100,99],[3]],"scores":[0.5,null]})",
            R"({"tokens":[[],[3]],"masks":[[],[-100]],"scores":[NaN,1]})",
            R"({"tokens":[[1]],"masks":null,"scores":null,"advantages":null,"ref_logprobs":[],
                  "messages":[null],"generation_params":null,"inference_logprobs":[null],
                  "overrides":null,"group_overrides":{},"images":null,"env_id":null,
                  "distill_token_ids":[[]],"distill_logprobs":null})",
            R"({"tokens":[[1,2]],"scores":[1],"distill_token_ids":[[[1,2],[]]],
                  "distill_logprobs":[[[0.5],[0.5]]]})",
            R"({"tokens":[[1],[2]],"scores":[1,0],"instance_id":"q/7","env":"math","group_id":12,
                  "advantages":[[0.5],null]})",
            R"({"tokens":[1,2],"masks":[-100,2],"scores":0.5,"advantages":[0.5,0.5],
                  "ref_logprobs":null,"messages":[{"role":"user","content":"x"}],
                  "group_overrides":null,"overrides":{"a":1},"images":"b",
                  "distill_token_ids":[[1],[2]],"distill_logprobs":[[-1],[-2]]})",
            R"({"tokens":[],"masks":[],"scores":1,"instance_id":"q","repetition_id":3})",
            R"({"tokens":[[1],[2]],"scores":[1,0],"instance_id":null,"env_id":"e","images":"one"})",
        }) {
        CAPTURE(line);
        // [[]] for one token is a list of the wrong length: it is the only line that is refused.
        if (std::string_view(line).find("\"distill_token_ids\":[[]]") != std::string_view::npos) {
            CHECK(refusal([&] { round_trip(line, false); }).find("topk_ids") != std::string::npos);
            continue;
        }
        for (const bool reversed : {false, true}) {
            const std::string out = round_trip(line, reversed);
            CAPTURE(out);
            CHECK(same_json(line, out));
        }
    }
}

TEST_CASE("atropos: what a member's record holds") {
    AtroposLine group("run");
    group.parse(parse_json(full_group), Schema::standard(), 17);
    REQUIRE(group.members().size() == 2);
    const ParsedRecord& second = group.members()[1];
    CHECK(second.text(Std::instance_id) == "atropos/3/run/17");
    CHECK(second.meta.repetition_id == 1);
    CHECK(second.meta.group_size == 2);
    CHECK(second.meta.source_id == 3);
    CHECK(second.meta.n_prompt == 1);
    CHECK(second.meta.reward == -0.25);
    CHECK(second.meta.origin == atropos);
    CHECK(std::ranges::equal(second.values<std::uint8_t>(Std::loss_mask), std::vector{0, 1}));
    CHECK(!second.has(Std::labels));
    CHECK(!second.has(Std::images));

    group.parse(parse_json(R"({"tokens":[[1,2]],"masks":[[7,-100]],"scores":[0]})"),
                Schema::standard(), 4);
    CHECK(group.members()[0].has(Std::labels));
    CHECK(group.members()[0].text(Std::instance_id) == "atropos/0/run/4");
}

TEST_CASE("atropos: bad lines and their reasons") {
    struct Bad {
        const char* line;
        const char* reason;
    };
    for (const Bad& bad : {
             Bad{"5", "not an object"},
             Bad{"[5]", "group 0 of the list: not an object"},
             Bad{R"([{"tokens":[[1]]},{"tokens":[]}])", "group 1 of the list: 'tokens' has no"},
             Bad{R"({"batch":5})", "'batch' must be a list"},
             Bad{R"({"status":"error","message":"Trainer not registered.","batch":[]})",
                 "an error from the Atropos server instead of a batch: \"Trainer not "
                 "registered.\""},
             Bad{R"({"instance_id":"a","repetition_id":0,"tokens":[1]})", "use --format rollring"},
             Bad{R"({"tokens":[1],"masks":[1],"scores":1,"instance_id":"q"})",
                 "'repetition_id' is missing"},
             Bad{R"({"tokens":[[1]],"tokens":[[2]]})", "'tokens' is duplicated"},
             Bad{"{}", "'tokens' is missing"},
             Bad{R"({"tokens":[]})", "no members"},
             Bad{R"({"tokens":[1]})", "'tokens' must be a list"},
             Bad{R"({"tokens":[1],"masks":[1],"scores":1,"instance_id":"q","repetition_id":0,)"
                 R"("group_size":-1})",
                 "0 to 65536"},
             Bad{R"({"tokens":[[1],[2]],"scores":[1]})", "'scores' has 1 entries for 2 members"},
             Bad{R"({"tokens":[[1]],"masks":[[1,2]]})", "'masks' has 2 entries for 1 tokens"},
             Bad{R"({"tokens":[[1]],"inference_logprobs":[[0.5,0.5]]})",
                 "'logprobs' has 2 entries for 1 tokens"},
             Bad{R"({"tokens":[[1]],"scores":["x"]})", "'scores' must be a number"},
             Bad{R"({"tokens":[[1]],"masks":5})", "'masks' must be a list"},
             Bad{R"({"tokens":[[1]],"instance_id":5})", "'instance_id' must be a string"},
         }) {
        CAPTURE(bad.line);
        AtroposLine group("run");
        std::string reason =
            refusal([&] { group.parse(parse_json(bad.line), Schema::standard(), 1); });
        for (const std::string& problem : group.problems()) reason += problem;
        CAPTURE(reason);
        CHECK(reason.find(bad.reason) != std::string::npos);
    }
}

TEST_CASE("atropos: groups that mix, repeat or stay incomplete") {
    AtroposLine a("run");
    AtroposLine b("run");
    const Schema& schema = Schema::standard();
    a.parse(parse_json(R"({"tokens":[[1],[2]],"scores":[1,0]})"), schema, 1);
    b.parse(parse_json(R"({"tokens":[[3],[4]],"scores":[1,0]})"), schema, 2);
    AtroposGroups groups;
    std::string out;
    CHECK(groups.add(Encoded(a.members()[1]).view, schema, out) == "");
    CHECK(groups.add(Encoded(b.members()[0]).view, schema, out) == "");
    CHECK(groups.add(Encoded(a.members()[1]).view, schema, out) == "");  // the same line once more
    CHECK(out.empty());
    CHECK(groups.add(Encoded(a.members()[0]).view, schema, out) == "");
    CHECK(out == "{\"tokens\":[[1],[2]],\"scores\":[1.0,0.0]}\n");
    out.clear();
    CHECK(groups.finish(out) == 2);
    CHECK(std::ranges::count(out, '\n') == 2);
}

TEST_CASE("atropos: the subsequences of a member are entries of one group") {
    AtroposLine line("run");
    const Schema& schema = Schema::standard();
    line.parse(parse_json(R"({"tokens":[[1],[2],[3]],"scores":[1,1,0]})"), schema, 1);
    const auto members = line.members();
    for (ParsedRecord& member : members) member.meta.group_size = 2;
    members[0].meta.last_subsequence = false;
    members[1].meta.repetition_id = 0;
    members[1].meta.subsequence_index = 1;
    members[2].meta.repetition_id = 1;
    for (const auto& order : {std::array{0, 1, 2}, std::array{2, 0, 1}, std::array{0, 2, 1}}) {
        AtroposGroups groups;
        std::string out;
        for (const int which : order) {
            CHECK(out.empty());
            CHECK(groups.add(Encoded(members[static_cast<std::size_t>(which)]).view, schema, out) ==
                  "");
        }
        CHECK(out == "{\"tokens\":[[1],[2],[3]],\"scores\":[1.0,1.0,0.0]}\n");
        CHECK(groups.finish(out) == 0);
    }
}

TEST_CASE("atropos: a list, as it is posted, and a batch, as it is returned, are their groups") {
    const std::string one = R"({"tokens":[[1],[2]],"scores":[1.0,0.0],"env_id":0})";
    const std::string two = R"({"tokens":[[3]],"masks":[[3]],"scores":[0.5]})";
    for (const std::string& line :
         {fmt::format("[{}, {}]", one, two), fmt::format(R"({{"batch":[{},{}]}})", one, two),
          fmt::format("[null,{},{}]", one, two)}) {
        CAPTURE(line);
        AtroposLine groups("run");
        groups.parse(parse_json(line), Schema::standard(), 7);
        REQUIRE(groups.members().size() == 3);
        CHECK(groups.members()[0].text(Std::instance_id) == "atropos/0/run/7/0");
        CHECK(groups.members()[1].text(Std::instance_id) == "atropos/0/run/7/0");
        CHECK(groups.members()[2].text(Std::instance_id) == "atropos/0/run/7/1");
        AtroposGroups together;
        std::string out;
        for (const auto& record : groups.members()) {
            CHECK(together.add(Encoded(record).view, Schema::standard(), out) == "");
        }
        CHECK(out == one.substr(0, out.find('\n')) + "\n" + two + "\n");
    }
    for (const char* nothing : {"[]", R"({"batch":null})", R"({"batch":[]})", "[null]"}) {
        CAPTURE(nothing);
        AtroposLine groups("run");
        groups.parse(parse_json(nothing), Schema::standard(), 1);
        CHECK(groups.members().empty());
    }
}

TEST_CASE("atropos: what we make up differs by run, by line and by place, and not by pass") {
    CHECK(draw_run_id() != draw_run_id());
    CHECK(draw_run_id().size() == 16);
}

TEST_CASE("atropos: a line of more members than a group can have is refused before it is read") {
    const auto group_of = [](std::size_t members) {
        std::string line = "{\"tokens\":[[1]";
        for (std::size_t i = 1; i < members; i++) line += ",[1]";
        line += "],\"scores\":[0.0";
        for (std::size_t i = 1; i < members; i++) line += ",0.0";
        return line + "]}";
    };
    AtroposLine groups("run");
    const std::string large = group_of(group_size_max + 1);
    CHECK_THROWS_WITH(groups.parse(parse_json(large), Schema::standard(), 1),
                      "'tokens' has 65537 members, a group has at most 65536");
    const std::string half = group_of(group_size_max / 2 + 1);
    const std::string list = "[" + half + "," + half + "]";
    groups.parse(parse_json(list), Schema::standard(), 1);
    CHECK(groups.members().size() == group_size_max / 2 + 1);
    CHECK(groups.problems().size() == 1);
}

TEST_CASE("atropos: a bad group of a list costs no other") {
    AtroposLine groups("run");
    groups.parse(parse_json(R"([{"tokens":[[1],[2]]},{"tokens":[[3],["x"]]},{"tokens":[[4]]}])"),
                 Schema::standard(), 1);
    REQUIRE(groups.members().size() == 3);
    CHECK(groups.members()[2].values<std::int32_t>(Std::token_ids)[0] == 4);
    REQUIRE(groups.problems().size() == 1);
    CHECK(groups.problems()[0].starts_with("group 1 of the list: "));
    groups.parse(parse_json(R"({"tokens":[[1]]})"), Schema::standard(), 2);
    CHECK(groups.problems().empty());
}
