// Tables and sentences that fit a terminal.

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "cli/terminal/table.hpp"

using namespace rollring::cli;

namespace {

std::size_t widest(const std::string& text) {
    std::istringstream lines(text);
    std::size_t most = 0;
    for (std::string line; std::getline(lines, line);) {
        const auto letters = std::ranges::count_if(
            line, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
        most = std::max(most, static_cast<std::size_t>(letters));
    }
    return most;
}

Table three() {
    using enum Table::Align;
    Table table({{.title = "name", .align = left, .least = 6},
                 {.title = "count", .rank = 2},
                 {.title = "from", .align = left, .least = 6, .rank = 1}});
    table.add({"a name of some length", "1,234,567", "producer 0, producer 1"});
    table.add({"b", "5", ""});
    return table;
}

}  // namespace

TEST_CASE("where there is room a table is whole") {
    CHECK(three().text(any_width) ==
          "name                       count  from\n"
          "a name of some length  1,234,567  producer 0, producer 1\n"
          "b                              5\n");
    CHECK(three().text(56) == three().text(any_width));
}

TEST_CASE("texts are cut first, then columns go by rank, and numbers are never cut") {
    for (std::size_t width = 10; width < 56; width++) {
        const std::string text = three().text(width);
        CHECK(widest(text) <= width);
        if (text.find("count") != std::string::npos) {
            CHECK(text.find("1,234,567") != std::string::npos);
        }
        CHECK(text.find("\na ") != std::string::npos);
        CHECK(text.find("th") != std::string::npos);  // the end of that name
    }
    CHECK(three().text(30).find("count") != std::string::npos);
    CHECK(three().text(20).find("count") == std::string::npos);
    CHECK(three().text(20).find("from") != std::string::npos);
    CHECK(three().text(10).find("from") == std::string::npos);
}

TEST_CASE("letters are cut, not bytes") {
    using enum Table::Align;
    Table table({{.title = "x", .align = left, .least = 2}, {.title = "n"}});
    table.add({"\u00fc\u00fc\u00fc\u00fc", "1"});
    CHECK(table.text(any_width) == "x     n\n\u00fc\u00fc\u00fc\u00fc  1\n");
    CHECK(table.text(6) == "x    n\n\u00fc\u2026\u00fc  1\n");
}

TEST_CASE("what is cut can still be told apart by its end") {
    using enum Table::Align;
    Table table({{.title = "group", .align = left, .least = 9, .most = 16}, {.title = "n"}});
    table.add({"synthetic/2/1234", "1"});
    table.add({"synthetic/2/12345", "2"});
    CHECK(table.text(12) ==
          "group      n\n"
          "synt\u20261234  1\n"
          "synt\u20262345  2\n");
    CHECK(table.text(80) ==
          "group             n\n"
          "synthetic/2/1234  1\n"
          "synthet\u2026/2/12345  2\n");
}

TEST_CASE("sentences are broken between words") {
    CHECK(wrapped("one two three\nfour\n", any_width) == "one two three\nfour\n");
    CHECK(wrapped("one two three\nfour\n", 8) == "one two\n  three\nfour\n");
    CHECK(wrapped("a-word-that-is-longer x", 8) == "a-word-that-is-longer\n  x");
    CHECK(wrapped("", 8).empty());
}
