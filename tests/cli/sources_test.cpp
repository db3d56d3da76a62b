// Goal: shards of one input are disjoint and complete, and every order is repeatable.

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/formats/record_source.hpp"

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
                                              std::to_string(draft.meta.repetition_id.value_or(0)) +
                                              "@" + std::to_string(draft.meta.visit));
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

TEST_CASE("lines: one that is too long is named, and costs no more memory than it may have") {
    const std::string filler(3 << 20, ' ');
    const TextFile file(line_of(1) + "{\"filler\":\"" + filler + "\"}\n" + line_of(2));
    const Selection selection{.line_bytes_max = 1 << 20};
    const auto ids = ids_of(file.path, selection);
    REQUIRE(ids.size() == 3);
    CHECK(ids[0] == "q1#0@0");
    CHECK(ids[1] == file.path + ":2: longer than 1 MiB: raise --max-line if it should be");
    CHECK(ids[2] == "q2#0@0");
    // The same through a pipe, which is not indexed first.
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::thread writer([&] {
        const std::string text = line_of(1) + filler + "x\n" + line_of(2);
        for (std::string_view rest = text; !rest.empty();) {
            const ssize_t sent = ::write(ends[1], rest.data(), rest.size());
            if (sent <= 0) break;
            rest.remove_prefix(static_cast<std::size_t>(sent));
        }
        ::close(ends[1]);
    });
    const std::string pipe = "/proc/self/fd/" + std::to_string(ends[0]);
    const auto streamed = ids_of(pipe, selection);
    ::close(ends[0]);
    writer.join();
    REQUIRE(streamed.size() == 3);
    CHECK(streamed[1].starts_with(pipe + ":2: longer than 1 MiB"));
    CHECK(streamed[2] == "q2#0@0");
}

TEST_CASE("atropos: a batch without groups is passed over, keys differ by run and line") {
    const TextFile file("{\"batch\":null}\n{\"tokens\":[[1],[2]]}\n{\"tokens\":[[3]]}\n");
    const auto read = [&](const std::string& run) {
        auto source = open_json_source(file.path, Format::atropos, {.repeat = 2}, "", run);
        REQUIRE(source);
        return ids_of(**source);
    };
    CHECK(read("r") == std::vector<std::string>{"atropos/0/r/2#0@0", "atropos/0/r/2#1@0",
                                                "atropos/0/r/3#0@0", "atropos/0/r/2#0@1",
                                                "atropos/0/r/2#1@1", "atropos/0/r/3#0@1"});
    // Two producers of one file, or two runs: nothing in common.
    const auto first = read("");
    const auto second = read("");
    REQUIRE(first.size() == 6);
    for (const std::string& id : first) CHECK(std::ranges::find(second, id) == second.end());
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
    CHECK(ids_of(file.path, {.repeat = 2, .visit = 7}) ==
          std::vector<std::string>{"q1#0@7", "q2#0@7", "q1#0@8", "q2#0@8"});
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
