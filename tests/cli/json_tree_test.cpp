#include <doctest/doctest.h>

#include <limits>

#include "cli/formats/json_text.hpp"
#include "cli/formats/json_tree.hpp"

using namespace rollring::cli;

TEST_CASE("a report is written in the order of its members, and reads back the same") {
    Json report{{"ring", "r"},
                {"lanes", 3},
                {"version", -1},
                {"seconds", 0.25},
                {"whole", 63.0},
                {"ok", true},
                {"digest", nullptr},
                {"missing", std::vector<std::uint32_t>{1, 2}},
                {"times", {{"put", 1.5}, {"commit", 2}}}};
    report["later"]["deep"] = std::string("a\"b\\c\n\x01");
    report["empty"] = Json::array();
    report["none"] = Json::object();
    const std::string text = report.dump();
    CHECK(text == R"({"ring":"r","lanes":3,"version":-1,"seconds":0.25,"whole":63.0,"ok":true,)"
                  R"("digest":null,"missing":[1,2],"times":{"put":1.5,"commit":2},)"
                  R"("later":{"deep":"a\"b\\c\n\u0001"},"empty":[],"none":{}})");
    CHECK(parse_report(text + "\n") == report);
    CHECK(parse_report(text).dump() == text);
}

TEST_CASE("what is cut off is null, and what is absent is null or what is said instead") {
    CHECK(parse_report(R"({"ring":"r",)").is_null());
    CHECK(parse_report("").is_null());
    const Json report = parse_report(R"({"sent":18446744073709551615,"left":-3})");
    CHECK(report["sent"].get<std::uint64_t>() == std::numeric_limits<std::uint64_t>::max());
    CHECK(report["left"].get<std::int64_t>() == -3);
    CHECK(report["nothing"].is_null());
    CHECK(report.value("nothing", 7) == 7);
    CHECK(report.size() == 2);
    CHECK_THROWS_AS(static_cast<void>(report["nothing"].get<std::uint64_t>()), std::runtime_error);
    CHECK_THROWS_AS(static_cast<void>(report["sent"].get<std::string>()), std::runtime_error);
}

TEST_CASE("equal is equal in value, not in kind of number") {
    CHECK(Json(3) == Json(3.0));
    CHECK(Json(3U) == Json(std::int64_t{3}));
    CHECK_FALSE(Json(-1) == Json(std::numeric_limits<std::uint64_t>::max()));
    CHECK_FALSE(Json(true) == Json(1));
    CHECK_FALSE(Json("1") == Json(1));
    CHECK_FALSE(Json() == Json(0));
    CHECK(Json(std::numeric_limits<double>::quiet_NaN()).dump() == "null");
}

TEST_CASE("bytes that are not UTF-8 are replaced, characters of any length are kept") {
    std::string out;
    append_string(out, "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80|\xFF|\xC3|\xED\xA0\x80");
    CHECK(out.starts_with("\"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80|\xEF\xBF\xBD|\xEF\xBF\xBD|"));
    CHECK(out.find('\xED') == std::string::npos);
}
