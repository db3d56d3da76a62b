// Goal: reading any text ends with a value or with the place and the reason; and our own output is
// JSON for every reader of it.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "cli/formats/json_tree.hpp"
#include "round_trip.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

std::string compacted(std::string_view text) {
    std::string out;
    append_compact(out, parse_json(text));
    return out;
}

std::string nested(std::size_t depth, std::string_view open = "[", std::string_view close = "]") {
    std::string text;
    for (std::size_t i = 0; i < depth; i++) text += open;
    for (std::size_t i = 0; i < depth; i++) text += close;
    return text;
}

// A record of ours with this text in one of its columns.
std::string written_with(Std column, std::string_view text, std::string& problem) {
    ParsedRecord record = parsed(R"({"instance_id":"deep","repetition_id":3,"tokens":[1]})");
    record.set_text(column, text);
    std::string out;
    problem = append_rollring_line(out, Encoded(record).view, Schema::standard());
    return out;
}

}  // namespace

TEST_CASE("json: what is taken, and how it is written again") {
    for (const auto& [text, again] : {
             std::pair{" [ ] ", "[]"},
             std::pair{"{ \"a\" : { } , \"b\\\"\" : [ 1 , -2.50e+3 , true ] }",
                       "{\"a\":{},\"b\\\"\":[1,-2.50e+3,true]}"},
             std::pair{"\"NaN , ] \\u00fc\\\\\"", "\"NaN , ] \\u00fc\\\\\""},
             std::pair{"[NaN,-Infinity, Infinity]", "[\"NaN\",\"-Infinity\",\"Infinity\"]"},
             std::pair{"null", "null"},
             std::pair{"-0", "-0"},
         }) {
        CAPTURE(text);
        CHECK(compacted(text) == again);
        CHECK(compacted(again) == again);
    }
}

TEST_CASE("json: what is refused, and where") {
    struct Bad {
        std::string text;
        const char* reason;
    };
    for (const Bad& bad : {
             Bad{"", "column 1: the text ends before a value"},
             Bad{"  ", "column 3: the text ends"},
             Bad{"[1,]", "column 4: expected a value"},
             Bad{"[1 2]", "column 4: expected a comma or ]"},
             Bad{"{\"a\":1,}", "column 8: expected a key in quotes"},
             Bad{"{\"a\" 1}", "column 6: expected a colon"},
             Bad{"{1:2}", "column 2: expected a key in quotes"},
             Bad{"01", "column 2: text after the end of the value"},
             Bad{"1.", "a digit"},
             Bad{"-", "a digit"},
             Bad{"1e", "a digit"},
             Bad{"+1", "a value"},
             Bad{".5", "a value"},
             Bad{"nul", "a value"},
             Bad{"-Inf", "a value"},
             Bad{"\"abc", "the end of a string"},
             Bad{"\"a\\", "an escape"},
             Bad{"\"\\x\"", "an escape"},
             Bad{"\"\\u12g4\"", "a hexadecimal digit"},
             Bad{"\"\\ud80\"", "a hexadecimal digit"},
             Bad{"\"\\ud800\\u12\"", "a hexadecimal digit"},
             Bad{"\"a\nb\"", "control character"},
             Bad{"\"\xc0\x80\"", "not UTF-8"},
             Bad{"\"\xed\xa0\x80\"", "not UTF-8"},
             Bad{"\"\xf4\x90\x80\x80\"", "not UTF-8"},
             Bad{"\"\xe2\x82", "not UTF-8"},
             Bad{"[1] x", "column 5: text after the end of the value"},
             Bad{"[1}", "a comma or ]"},
             Bad{std::string("[1\0]", 4), "a comma or ]"},
         }) {
        CAPTURE(bad.text);
        const std::string reason = refusal([&] { parse_json(bad.text); });
        CAPTURE(reason);
        CHECK(reason.starts_with("not JSON: column "));
        CHECK(reason.find(bad.reason) != std::string::npos);
    }
}

TEST_CASE("json: as deep as it may be, and no level more, whatever our stack") {
    CHECK(compacted(nested(json_depth_max)) == nested(json_depth_max));
    for (const std::size_t depth :
         {json_depth_max + 1, std::size_t{80'000}, std::size_t{10'000'000}}) {
        CHECK(refusal([&] { parse_json(nested(depth)); }).find("nested deeper than 256 levels") !=
              std::string::npos);
        CHECK(refusal([&] { parse_json(nested(depth, "{\"a\":", "}")); }).find("nested deeper") !=
              std::string::npos);
    }
}

TEST_CASE("json: too deep in a record that somebody else wrote: a string, and the record named") {
    for (const Std column : {Std::extra, Std::messages, Std::overrides}) {
        std::string problem;
        const std::string line = written_with(column, nested(80'000), problem);
        CHECK(problem.find("deep #3: '") == 0);
        CHECK(problem.find("nested deeper than 256") != std::string::npos);
        CHECK(line.find("\"[[[[") != std::string::npos);
        parsed(line);  // and it is read again
        // The depth in the line already counts: a reader with the same bound takes all of it.
        const std::size_t most = json_depth_max - (column == Std::extra ? 0 : 1);
        const std::string object = "{\"a\":" + nested(most - 1) + "}";
        const std::string good = written_with(column, object, problem);
        CHECK(problem == "");
        parsed(good);
        if (column == Std::extra) continue;
        written_with(column, "{\"a\":" + nested(most) + "}", problem);
        CHECK(problem != "");
    }
    AtroposLine group("r");
    group.parse(parse_json(R"({"tokens":[[1]]})"), Schema::standard(), 1);
    group.members()[0].set_text(Std::messages, nested(80'000));
    group.members()[0].set_text(Std::extra, nested(80'000));
    AtroposGroups groups;
    std::string out;
    const std::string problem =
        groups.add(Encoded(group.members()[0]).view, Schema::standard(), out);
    CHECK(problem.find("'messages', 'extra' is not JSON") != std::string::npos);
    group.parse(parse_json(out), Schema::standard(), 1);
}

TEST_CASE("json: numbers that are none come as strings, and are numbers again") {
    const auto record = parsed(R"({"instance_id":"a","repetition_id":0,"reward":"-Infinity",
        "tokens":[1,2,3],"logprobs":["NaN",NaN,Infinity],"extra_number":NaN})");
    CHECK(record.meta.reward == -std::numeric_limits<double>::infinity());
    CHECK(std::isnan(record.values<float>(Std::logprobs)[0]));
    CHECK(std::isnan(record.values<float>(Std::logprobs)[1]));
    const std::string line = written(record);
    CHECK(nlohmann::json::accept(line));
    CHECK(line.find("\"logprobs\":[\"NaN\",\"NaN\",\"Infinity\"]") != std::string::npos);
    CHECK(written(parsed(line)) == line);
    CHECK(dump_json({{"x", std::nan("")}, {"y", HUGE_VAL}}) == R"({"x":null,"y":null})");
}

TEST_CASE("json: strings and numbers are read as they were meant") {
    CHECK(parse_json(R"("a\"\\\/\b\f\n\r\t\u00fc\ud83d\ude42ü")").string() ==
          "a\"\\/\b\f\n\r\tü🙂ü");
    CHECK(*parse_json("1e-400").number<double>() == 0);
    CHECK(*parse_json("0.1").number<float>() == 0.1F);
    CHECK(!parse_json("1e400").number<double>());
    CHECK(!parse_json("3000000000").number<std::int32_t>());
    CHECK(parse_json("[1,[2,3],{\"a\":[4]},\"]\"]").count() == 4);
    const auto members = parse_json(R"( { "a" : 1 , "b\u0041" : [ ] } )").members();
    REQUIRE(members.size() == 2);
    CHECK(members[1].key == "bA");
    CHECK(members[1].value.is_array());
}

TEST_CASE(
    "json: half of a surrogate pair is text that RFC 8259 allows, and comes out as it went in") {
    for (const auto& [text, again] : {
             std::pair{R"("\ud835")", R"("\ud835")"},
             std::pair{R"("a\udc00b")", R"("a\udc00b")"},
             std::pair{R"("\ud835\ud835\udc9c")", R"("\ud835𝒜")"},
             std::pair{R"("\udc9c\ud835")", R"("\udc9c\ud835")"},
             std::pair{R"("\ud835\n\udc9c")", R"("\ud835\n\udc9c")"},
         }) {
        CAPTURE(text);
        CHECK(compacted(text) == text);
        std::string out;
        append_string(out, parse_json(text).string());
        CHECK(out == again);
    }
    const auto record = parsed(R"({"instance_id":"a\ud835","repetition_id":0,"tokens":[1],
        "source":"\udc00","messages":[{"content":"half \ud835"}],"note":"\ud835"})");
    const std::string line = written(record);
    CHECK(line.find(R"("instance_id":"a\ud835")") != std::string::npos);
    CHECK(line.find(R"("source":"\udc00")") != std::string::npos);
    CHECK(line.find(R"("content":"half \ud835")") != std::string::npos);
    CHECK(line.find(R"("note":"\ud835")") != std::string::npos);
    CHECK(written(parsed(line)) == line);
}

TEST_CASE("json: base64 and back") {
    std::vector<std::byte> bytes;
    for (int i = 0; i < 70; i++) {
        CHECK(*from_base64(base64(bytes)) == bytes);
        bytes.push_back(static_cast<std::byte>(i * 37));
    }
    for (const char* wrong : {"a", "ab=c", "====", "a===", "ab!=", "AAAA="}) {
        CAPTURE(wrong);
        CHECK(!from_base64(wrong));
    }
}
