// Goal: columns that a schema adds come out of JSON as they went in, or are refused by name.

#include <vector>

#include "cli/formats/schema_file.hpp"
#include "round_trip.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

const Schema& schema() {
    static const Schema made = *parse_schema(R"([
        {"name":"values","dtype":"f32","required":true},
        {"name":"grid","dtype":"i8","dims":[2,0]},
        {"name":"flags","dtype":"bool"},
        {"name":"half","dtype":"bf16"},
        {"name":"notes","dtype":"u64","per":"record"},
        {"name":"pairs","dtype":"f64","per":"record","dims":[2]},
        {"name":"ids","dtype":"u16","accepts":"any_integer"}
    ])");
    return made;
}

ParsedRecord parsed_here(const std::string& more) {
    ParsedRecord record;
    const std::string line = R"({"instance_id":"a","repetition_id":0,"tokens":[1,2])" + more + "}";
    parse_rollring(parse_json(line), schema(), record);
    return record;
}

std::uint64_t digest_of(const ParsedRecord& record) {
    return Encoded(record, schema()).view.digest(schema());
}

std::string line_of(const ParsedRecord& record) {
    std::string out;
    CHECK(append_rollring_line(out, Encoded(record, schema()).view, schema()) == "");
    return out;
}

}  // namespace

TEST_CASE("custom columns: what goes in comes out, of every shape and dtype") {
    const auto column = [](const char* name) { return *schema().find(name); };
    const std::string values = R"(,"values":[0.5,"NaN"])";
    for (const std::string& more : {
             std::string(R"(,"grid":[[[1],[-128]],[[3],[127]]])"),
             std::string(R"(,"grid":[[[],[]],[[],[]]])"),
             std::string(R"(,"flags":[true,0])"),
             std::string(R"(,"half":{"dtype":"bf16","shape":[2],"base64":"AAECAw=="})"),
             std::string(R"(,"notes":[18446744073709551615])"),
             std::string(R"(,"notes":[[[1,2]],[[3,4]]])"),
             std::string(R"(,"notes":[])"),
             std::string(R"(,"notes":{"dtype":"u64","shape":[2,0,3],"base64":""})"),
             std::string(R"(,"pairs":[[1,2.5],[1e300,-0.0],[3,4]])"),
             std::string(R"(,"pairs":[])"),
             std::string(R"(,"ids":[0,65535])"),
             std::string(R"(,"ids":{"dtype":"u8","shape":[2],"base64":"AQI="})"),
             std::string(R"(,"grid":null,"unknown":[1])"),
             std::string(),
         }) {
        CAPTURE(more);
        const ParsedRecord record = parsed_here(values + more);
        const std::string line = line_of(record);
        CAPTURE(line);
        ParsedRecord again;
        parse_rollring(parse_json(line), schema(), again);
        CHECK(digest_of(again) == digest_of(record));
        CHECK(line_of(again) == line);
    }
    const ParsedRecord record = parsed_here(values + R"(,"grid":[[[],[]],[[],[]]])");
    CHECK(record.has(column("values")));
    CHECK(record.rows(column("grid")) == 2);
    CHECK(!record.has(Std::extra));
}

TEST_CASE("custom columns: what does not fit is refused by its name") {
    struct Bad {
        const char* more;
        const char* reason;
    };
    for (const Bad& bad : {
             Bad{"", "'values' is missing: the ring's schema requires it"},
             Bad{R"(,"values":null)", "'values' is missing"},
             Bad{R"(,"values":[1])", "'values' has 1 entries for 2 tokens"},
             Bad{R"(,"values":[1,"x"])", "'values' must be a number, not \"x\"; its dtype is f32"},
             Bad{R"(,"values":[1,1e39])", "'values' is 1e39, which does not fit into 32 bits"},
             Bad{R"(,"values":5)", "'values' must be lists as f32[n_tokens], not 5"},
             Bad{R"(,"values":[[1],[2]])", "'values' must be a number, not [1]"},
             Bad{R"(,"values":[1,2],"grid":[[1,2],[3,4]])", "'grid' must be lists"},
             Bad{R"(,"values":[1,2],"grid":[[[1],[2],[3]],[[1],[2],[3]]])",
                 "'grid' has the shape [2, 3, 1], but the ring's schema requires i8[n_tokens, 2, "
                 "any]"},
             Bad{R"(,"values":[1,2],"grid":[[[1],[2]],[[3],[4,5]]])",
                 "'grid' has lists of length 1 and 2"},
             Bad{R"(,"values":[1,2],"grid":[[[1],[2]],[[3],[128]]])", "'grid' is 128, outside"},
             Bad{R"(,"values":[1,2],"flags":[2,0])", "'flags' holds 2, which is neither"},
             Bad{R"(,"values":[1,2],"half":[0.5,1])", "'half' is bf16, which has no JSON number"},
             Bad{R"(,"values":[1,2],"half":{"dtype":"f16","shape":[2],"base64":"AAECAw=="})",
                 "'half' has the dtype f16, but the ring's schema requires bf16[n_tokens]"},
             Bad{R"(,"values":[1,2],"half":{"dtype":"bf16","shape":[2],"base64":"AAE="})",
                 "'half' has 2 bytes in base64"},
             Bad{R"(,"values":[1,2],"half":{"dtype":"bf16","shape":[2]})", "'half' needs a dtype"},
             Bad{R"(,"values":[1,2],"notes":{"dtype":"u64","shape":[4294967295,4294967295,2],
                  "base64":""})",
                 "'notes' has 0 bytes in base64"},
             Bad{R"(,"values":[1,2],"notes":[[[[[1]]]]])", "'notes' must be lists of 1 to 4 dims"},
             Bad{R"(,"values":[1,2],"pairs":[[1,2,3]])", "'pairs' has the shape [1, 3]"},
         }) {
        CAPTURE(bad.more);
        const std::string reason = refusal([&] { parsed_here(bad.more); });
        CAPTURE(reason);
        CHECK(reason.find(bad.reason) != std::string::npos);
    }
    // A failure carries no tokens, and promises nothing.
    ParsedRecord failed;
    parse_rollring(parse_json(R"({"instance_id":"a","repetition_id":0,"status":"failed"})"),
                   schema(), failed);
    CHECK(!failed.has(Std::token_ids));
    CHECK(!parse_schema(R"([{"name":"reward","dtype":"f32"}])"));
}

TEST_CASE("custom columns: of Atropos' groups, one entry a member") {
    const std::string line =
        R"({"tokens":[[1],[2,3]],"scores":[1.0,0.0],"ids":[[7],null],"values":[[0.5],[1.5,2.5]]})";
    AtroposLine group("r");
    group.parse(parse_json(line), schema(), 1);
    AtroposGroups groups;
    std::string out;
    for (const auto& record : group.members()) {
        CHECK(groups.add(Encoded(record, schema()).view, schema(), out) == "");
    }
    CHECK(out == line + "\n");
    CHECK(refusal([&] {
              group.parse(parse_json(R"({"tokens":[[1],[2,3]],"scores":[1,0]})"), schema(), 1);
          }) == "'values' is missing: the ring's schema requires it");
}

TEST_CASE("columns: a shape of nothing in any number of lists is written short") {
    ParsedRecord record = parsed(R"({"instance_id":"a","repetition_id":0,"tokens":[1]})");
    record.make<std::uint8_t>(Std::routed_experts, {1, 4'294'967'295U, 0, 0}, 3);
    const std::string line = written(record);
    CHECK(line.size() < 1000);
    CHECK(written(parsed(line)) == line);
}
