// Goal: shards of one input are disjoint and complete, and every order is repeatable.

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "cli/record_source.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

// A file of this text, gone at the end.
struct TextFile {
    std::string path = "/tmp/rollring-cli-XXXXXX";
    explicit TextFile(const std::string& text) {
        const int fd = ::mkstemp(path.data());
        REQUIRE(fd >= 0);
        REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
        ::close(fd);
    }
    TextFile(const TextFile&) = delete;
    TextFile& operator=(const TextFile&) = delete;
    ~TextFile() { std::remove(path.c_str()); }
};

std::string line_of(int i) {
    return "{\"instance_id\":\"q" + std::to_string(i) + "\",\"repetition_id\":0,\"tokens\":[" +
           std::to_string(i) + "]}\n";
}

// "id@visit" of all records, in their order; bad lines by their problem.
std::vector<std::string> ids_of(RecordSource& source) {
    std::vector<std::string> ids;
    Draft draft;
    for (;;) {
        const Next next = source.next(draft);
        if (next == Next::end) return ids;
        REQUIRE(next != Next::failed);
        ids.push_back(next == Next::bad ? source.problem()
                                        : std::string(draft.instance_id()) + "#" +
                                              std::to_string(draft.meta.repetition_id) + "@" +
                                              std::to_string(draft.meta.visit));
    }
}

std::vector<std::string> ids_of(const std::string& path, const Selection& selection) {
    auto source = open_json_source(path, Format::rollring, selection, "");
    REQUIRE(source);
    return ids_of(**source);
}

std::vector<std::string> sorted(std::vector<std::string> values) {
    std::ranges::sort(values);
    return values;
}

}  // namespace

TEST_CASE("lines: blank ones, a missing last end, bad ones with their number") {
    const TextFile file("\n" + line_of(1) + "  \r\n" + "{oops\n" +
                        "{\"instance_id\":\"q2\",\"repetition_id\":0,\"tokens\":[]}");
    const auto ids = ids_of(file.path, {});
    REQUIRE(ids.size() == 3);
    CHECK(ids[0] == "q1#0@0");
    CHECK(ids[1].starts_with(file.path + ":4: not JSON"));
    CHECK(ids[2] == "q2#0@0");
    CHECK(ids_of(TextFile("").path, {}).empty());
    CHECK(!open_json_source("/nowhere", Format::rollring, {}, ""));
    CHECK(!open_json_source("/tmp", Format::rollring, {}, ""));
}

TEST_CASE("lines: longer than any block") {
    std::string line = "{\"instance_id\":\"long\",\"repetition_id\":0,\"tokens\":[1";
    for (int i = 0; i < 700'000; i++) line += ",12345";
    const TextFile file(line_of(1) + line + "]}\n" + line_of(2));
    CHECK(ids_of(file.path, {}) == std::vector<std::string>{"q1#0@0", "long#0@0", "q2#0@0"});
}

TEST_CASE("lines: shards are disjoint, complete and repeatable, shuffled or not") {
    std::string text;
    for (int i = 0; i < 101; i++) text += line_of(i);
    const TextFile file(text);
    const auto all = ids_of(file.path, {});
    REQUIRE(all.size() == 101);
    for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>{}, {7}, {8}}) {
        std::vector<std::string> together;
        for (std::uint64_t i = 0; i < 4; i++) {
            const Selection selection{.shuffle = seed, .shard = {i, 4}};
            const auto ids = ids_of(file.path, selection);
            CHECK(ids == ids_of(file.path, selection));
            together.insert(together.end(), ids.begin(), ids.end());
        }
        CHECK(sorted(together) == sorted(all));
        if (seed) CHECK(ids_of(file.path, {.shuffle = seed}) != all);
    }
    CHECK(ids_of(file.path, {.shuffle = 7}) != ids_of(file.path, {.shuffle = 8}));
    CHECK(ids_of(file.path, {.shard = {200, 201}}).empty());
}

TEST_CASE("lines: each pass is a visit of its own") {
    const TextFile file(line_of(1) + line_of(2));
    CHECK(ids_of(file.path, {.repeat = 2}) ==
          std::vector<std::string>{"q1#0@0", "q2#0@0", "q1#0@1", "q2#0@1"});
}

TEST_CASE("source name: for records that name none") {
    const TextFile file(
        line_of(1) +
        "{\"instance_id\":\"b\",\"repetition_id\":0,\"source\":\"own\",\"tokens\":[]}\n");
    auto source = open_json_source(file.path, Format::rollring, {}, "given");
    REQUIRE(source);
    Draft draft;
    const auto name = [&] {
        const auto* column = draft.find(Std::source);
        return std::string(static_cast<const char*>(column->data), column->shape[0]);
    };
    REQUIRE((*source)->next(draft) == Next::record);
    CHECK(name() == "given");
    REQUIRE((*source)->next(draft) == Next::record);
    CHECK(name() == "own");
}

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
                           std::to_string(draft.meta.repetition_id) + "@" +
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
