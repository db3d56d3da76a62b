// Goal: shards of one input are disjoint and complete, and every order is repeatable.

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

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
    ~TextFile() { static_cast<void>(std::remove(path.c_str())); }
};

// A pipe that a thread fills with this text.
struct Piped {
    std::string path;
    explicit Piped(const std::string& text) {
        REQUIRE(::pipe(ends) == 0);
        path = "/proc/self/fd/" + std::to_string(ends[0]);
        writer = std::thread([this, text] {
            static_cast<void>(!::write(ends[1], text.data(), text.size()));
            ::close(ends[1]);
        });
    }
    Piped(const Piped&) = delete;
    Piped& operator=(const Piped&) = delete;
    ~Piped() {
        ::close(ends[0]);
        writer.join();
    }
    int ends[2]{};
    std::thread writer;
};

std::string remark_of(const RecordSource& source) {
    const auto all = source.remarks();
    REQUIRE(all.size() <= 1);
    return all.empty() ? "" : all.front();
}

std::string gzipped(const std::string& text) {
    z_stream state{};
    REQUIRE(::deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    std::string packed(::deflateBound(&state, text.size()) + 64, '\0');
    state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    state.avail_in = static_cast<uInt>(text.size());
    state.next_out = reinterpret_cast<Bytef*>(packed.data());
    state.avail_out = static_cast<uInt>(packed.size());
    REQUIRE(::deflate(&state, Z_FINISH) == Z_STREAM_END);
    packed.resize(packed.size() - state.avail_out);
    ::deflateEnd(&state);
    return packed;
}

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
    CHECK(!open_json_source("/nowhere", Format::rollring, {}, ""));
    const auto folder = open_json_source("/tmp", Format::rollring, {}, "");
    REQUIRE(!folder);
    CHECK(
        folder.error().message.contains("/tmp: is a folder: in an environment with the Python "
                                        "package, python3 -m rollring.rollouts /tmp prints"));
}

TEST_CASE("lines: an input without any record is an error") {
    for (const std::string text : {"", "\n  \r\n", "[]", " [\n]\n", "\xef\xbb\xbf"}) {
        CAPTURE(text);
        const auto source = open_json_source(TextFile(text).path, Format::rollring, {}, "");
        REQUIRE(!source);
        CHECK(source.error().message.contains(text.contains('[')
                                                  ? "contains no records: its list is empty"
                                                  : "contains no records: the file is empty"));
    }
    const Piped empty("\n\n");
    auto source = open_json_source(empty.path, Format::rollring, {}, "");
    REQUIRE(source);
    Draft draft;
    CHECK((*source)->next(draft) == Next::failed);
    CHECK((*source)->problem().contains("contains no records"));
}

TEST_CASE("lines: the same records, however the text holds them") {
    const std::string lines = line_of(1) + line_of(2) + line_of(3);
    const auto wanted = ids_of(TextFile(lines).path, {});
    REQUIRE(wanted.size() == 3);
    const auto record = [](int i) {
        return "{\n  \"instance_id\": \"q" + std::to_string(i) +
               "\",\n  \"repetition_id\": 0,\n  \"note\": \"]}{\\\"\",\n  \"tokens\": [\n    " +
               std::to_string(i) + "\n  ]\n}";
    };
    const std::string bom = "\xef\xbb\xbf";
    const std::vector<std::string> texts{
        bom + lines,
        record(1) + "\n" + record(2) + "\n\n" + record(3) + "\n",
        "[\n" + record(1) + ",\n" + record(2) + ",\n" + record(3) + "\n]\n",
        bom + "\n [" + record(1) + "," + record(2) + "," + record(3) + "]",
        "[" + line_of(1) + "," + line_of(2) + "]\n[" + line_of(3) + "]",
        gzipped(lines),
        gzipped(line_of(1)) + gzipped(line_of(2) + line_of(3)),
        gzipped("[" + record(1) + "," + record(2) + "," + record(3) + "]"),
    };
    for (const std::string& text : texts) {
        CAPTURE(text);
        const TextFile file(text);
        CHECK(ids_of(file.path, {}) == wanted);
        CHECK(ids_of(Piped(text).path, {}) == wanted);
        CHECK(sorted(ids_of(file.path, {.shuffle = 3})) == wanted);
        CHECK(ids_of(file.path, {.shard = {1, 3}}) == std::vector{wanted[1]});
    }
}

TEST_CASE("lines: where a value begins that spans several, and what is cut off") {
    const TextFile file("[\n" + line_of(1) + ",\n  {\"tokens\": [1]\n},\n 5]");
    const auto ids = ids_of(file.path, {});
    REQUIRE(ids.size() == 3);
    CHECK(ids[1].starts_with(file.path + ":4: element 2 of the list: 'instance_id' is missing"));
    CHECK(ids[2].starts_with(file.path + ":6: element 3 of the list: not an object"));
    for (const auto& [text, reason] : {
             std::pair{"{\n \"tokens\": [1,\n", "begins on line 1 does not end"},
             std::pair{"[{},\n{}\n", "its list does not end"},
             std::pair{"[{\"a\":\"}]", "does not end: the file was cut off"},
         }) {
        const auto source = open_json_source(TextFile(text).path, Format::rollring, {}, "");
        REQUIRE(!source);
        CHECK(source.error().message.contains(reason));
    }
    // A control character behind the bytes that tell a kind of file does not make it one.
    const auto piped =
        ids_of(Piped("a header\n" + std::string(600, ' ') + "\x01\n" + line_of(1)).path, {});
    REQUIRE(piped.size() == 3);
    CHECK(piped[2] == "q1#0@0");
    // A first line that breaks off anywhere is a bad line, and the others are read.
    const auto rest = ids_of(TextFile("{\"instance_id\":\"q0\",\"tok\n" + line_of(1)).path, {});
    REQUIRE(rest.size() == 2);
    CHECK(rest[1] == "q1#0@0");
}

TEST_CASE("lines: a file of another kind is named, with a remedy") {
    const std::string line = line_of(1);
    for (const auto& [text, words] : {
             std::pair{std::string("PAR1\x15\x04"), "a Parquet file: in an environment"},
             std::pair{std::string("ARROW1\0\0", 8), "an Arrow file"},
             std::pair{std::string("\xff\xfe{\0", 4), "UTF-16: convert it: iconv -f UTF-16"},
             std::pair{std::string("\xfe\xff\0{", 4), "UTF-16"},
             std::pair{std::string("\x28\xb5\x2f\xfd\0", 5), "zstd -d"},
             std::pair{gzipped("PAR1"), "a Parquet file"},
             std::pair{"a.jsonl" + std::string(250, '\0') + "ustar", "a tar archive: unpack it"},
             std::pair{std::string("\x7f\x45LF\2\1\1\0", 8),
                       "binary data: `rollring formats` shows the accepted files"},
             std::pair{gzipped(line).substr(0, 30), "damaged or cut off"},
             std::pair{std::string("\x1f\x8b nonsense"), "damaged or cut off"},
         }) {
        CAPTURE(words);
        const auto source = open_json_source(TextFile(text).path, Format::rollring, {}, "");
        REQUIRE(!source);
        CHECK(source.error().message.contains(words));
        auto streamed = open_json_source(Piped(text).path, Format::rollring, {}, "");
        REQUIRE(streamed);
        Draft draft;
        CHECK((*streamed)->next(draft) == Next::failed);
        CHECK((*streamed)->problem().contains(words));
    }
}

TEST_CASE("lines: the error of a line that does not begin like JSON names `rollring formats`") {
    const auto ids = ids_of(TextFile("prompt,answer\na,b\n{oops\n").path, {});
    REQUIRE(ids.size() == 3);
    CHECK(
        ids[0].contains(":1: not JSON: column 1: expected a value; a record is an object: "
                        "`rollring formats` shows the accepted files"));
    CHECK(ids[2].contains(":3: not JSON: column 2"));
    CHECK(!ids[2].contains("`rollring formats`"));
}

TEST_CASE("census: before a bad line there is no guess at the size of groups") {
    const std::string line = R"({"instance_id":"a","tokens":[1]})";
    const TextFile file(line + "\n" + line.substr(0, 20));
    for (const bool skips_bad : {false, true}) {
        auto source = open_json_source(file.path, Format::rollring, {.skips_bad = skips_bad}, "");
        REQUIRE(source);
        const std::string remark = remark_of(**source);
        CHECK(remark.contains("the size of the groups in it is 1") == skips_bad);
        CHECK(remark.contains("a bad line keeps members from being counted") == !skips_bad);
    }
    auto too_long = open_json_source(TextFile(line + "\n" + line + std::string(200, ' ')).path,
                                     Format::rollring, {.line_bytes_max = 100}, "");
    REQUIRE(too_long);
    CHECK(remark_of(**too_long).contains("a bad line keeps members from being counted"));
    auto plain = open_json_source(TextFile(line).path, Format::rollring, {}, "");
    REQUIRE(plain);
    CHECK(remark_of(**plain).contains("the size of the groups in it is 1"));
}

TEST_CASE("census: members are counted in the file's order, whoever sends them") {
    const auto line = [](const std::string& id, const std::string& more = "") {
        return "{\"instance_id\":\"" + id + "\",\"tokens\":[1]" + more + "}\n";
    };
    const TextFile file(line("a") + line("b") + line("a") + "{oops\n" + line("b") +
                        line("a", ",\"visit\":1") + line("a", ",\"visit\":1"));
    std::vector<std::string> wanted{"a#0@0", "b#0@0", "a#1@0", "b#1@0", "a#0@1", "a#1@1"};
    auto all = ids_of(file.path, {});
    REQUIRE(std::erase_if(all, [](const std::string& id) {
                return id.contains("oops") || id.contains("not JSON");
            }) == 1);
    CHECK(all == wanted);
    std::vector<std::string> together;
    for (std::uint64_t i = 0; i < 3; i++) {
        for (const auto& id : ids_of(file.path, {.shuffle = 5, .shard = {i, 3}})) {
            if (!id.contains("not JSON")) together.push_back(id);
        }
    }
    CHECK(sorted(together) == sorted(wanted));
    const auto size_of = [](const std::string& path, const Selection& selection) {
        auto source = open_json_source(path, Format::rollring, selection, "");
        REQUIRE(source);
        Draft draft;
        while ((*source)->next(draft) == Next::bad) {
        }
        return std::pair(draft.meta.group_size, remark_of(**source));
    };
    CHECK(size_of(file.path, {}).first == 2);
    CHECK(size_of(file.path, {}).second.contains("every group has 2 members"));
    CHECK(size_of(file.path, {.group_size = 5}) == std::pair<std::uint32_t, std::string>{5, ""});
    const TextFile uneven(line("a") + line("b") + line("a"));
    CHECK(size_of(uneven.path, {}).first == 0);
    CHECK(size_of(uneven.path, {}).second.contains("the size of the groups in it is 1 to 2"));
    // One member of each group, or numbers that tell of others: the rest may be in another file.
    for (const std::string& text : {line("a") + line("b"), line("a", ",\"repetition_id\":1") +
                                                               line("a", ",\"repetition_id\":2")}) {
        CHECK(size_of(TextFile(text).path, {}).first == 0);
        CHECK(size_of(TextFile(text).path, {}).second.contains("give --group-size"));
    }
    // Subsequences of a member have its number; members of a group are of one kind.
    CHECK(ids_of(TextFile(line("a", ",\"last_subsequence\":false") +
                          line("a", ",\"subsequence_index\":1") + line("a"))
                     .path,
                 {}) == std::vector<std::string>{"a#0@0", "a#0@0", "a#1@0"});
    const auto mixed = ids_of(TextFile(line("a", ",\"repetition_id\":0") + line("a")).path, {});
    REQUIRE(mixed.size() == 2);
    CHECK(mixed[1].contains("number all members of a group, or none"));
    // Records of a pipe stay without a number.
    const Piped pipe(line("a") + line("a"));
    auto source = open_json_source(pipe.path, Format::rollring, {}, "");
    REQUIRE(source);
    Draft draft;
    REQUIRE((*source)->next(draft) == Next::record);
    CHECK(!draft.meta.repetition_id.has_value());
    CHECK(remark_of(**source).contains("members of a pipe cannot be counted"));
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
    CHECK(ids[1] == file.path + ":2: longer than 1 MiB: raise --max-line to accept it");
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
