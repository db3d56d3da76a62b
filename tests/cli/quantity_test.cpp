// Goal: quantities are understood as people write them, and nothing else is.

#include <doctest/doctest.h>

#include "cli/formats/schema_file.hpp"
#include "cli/terminal/quantity.hpp"

using namespace rollring;
using namespace rollring::cli;

TEST_CASE("quantity: bytes") {
    CHECK(parse_bytes("4096") == 4096U);
    CHECK(parse_bytes("64MiB") == 64U << 20);
    CHECK(parse_bytes("64mib") == 64U << 20);
    CHECK(parse_bytes("64M") == 64U << 20);
    CHECK(parse_bytes("1.5GiB") == 3U << 29);
    CHECK(parse_bytes("8GiB") == std::uint64_t{8} << 30);
    CHECK(parse_bytes("18446744073709551615") == UINT64_MAX);
    for (const char* wrong :
         {"", "MiB", "-1", "64MB", "64 MiB", "1.00001KiB", "0x10", "9999999TiB"}) {
        CAPTURE(wrong);
        CHECK(!parse_bytes(wrong));
    }
}

TEST_CASE("quantity: durations") {
    CHECK(parse_duration_ms("10s") == 10'000);
    CHECK(parse_duration_ms("10") == 10'000);
    CHECK(parse_duration_ms("500ms") == 500);
    CHECK(parse_duration_ms("0.5") == 500);
    CHECK(parse_duration_ms(".5") == 500);
    CHECK(parse_duration_ms(".5m") == 30'000);
    CHECK(parse_duration_ms("2m") == 120'000);
    CHECK(parse_duration_ms("0") == 0);
    for (const char* wrong : {"", "s", "-1s", "1d", "nan", "inf", ".", ".s", "..5", ".-5"}) {
        CAPTURE(wrong);
        CHECK(!parse_duration_ms(wrong));
    }
}

TEST_CASE("quantity: shards and digests") {
    REQUIRE(parse_shard("3/4"));
    CHECK(parse_shard("3/4")->index == 3);
    CHECK(parse_shard("3/4")->count == 4);
    for (const char* wrong : {"4/4", "0/0", "1", "/2", "1/", "-1/2", "1/2/3"}) {
        CAPTURE(wrong);
        CHECK(!parse_shard(wrong));
    }
    CHECK(digest_text(0x1f) == "0x000000000000001f");
    CHECK(parse_digest("0xffffffffffffffff") == UINT64_MAX);
    CHECK(!parse_digest("1f"));
}

TEST_CASE("quantity: for people") {
    CHECK(bytes_text(64U << 20) == "64 MiB");
    CHECK(bytes_text(1536) == "1.5 KiB");
    CHECK(count_text(0) == "0");
    CHECK(count_text(1234567) == "1,234,567");
    CHECK(count_text(123) == "123");
    CHECK(short_text(1'230'000) == "1.23M");
    CHECK(duration_text(3665) == "1:01:05");
}

TEST_CASE("schema file: columns are added behind the standard ones") {
    const auto schema = parse_schema(
        R"([{"name":"entropy","dtype":"f32"},{"name":"blob","dtype":"bf16","per":"record",
                  "dims":[0,3]}])");
    REQUIRE(schema);
    CHECK(schema->find("entropy") == static_cast<std::uint16_t>(Std::count));
    CHECK(schema->columns().back().dims.size() == 2);
    CHECK(!parse_schema(R"([{"name":"entropy","dtype":"f33"}])"));
    CHECK(!parse_schema(R"([{"name":"entropy","dtype":"f32","size":1}])"));
    CHECK(!parse_schema(R"([{"name":"token_ids","dtype":"i32"}])"));
    CHECK(!parse_schema("{}"));
}
