// Whether boxes of an engine share memory: how many are compared, and which are found.

#include "box_memory.hpp"

#include <doctest/doctest.h>

#include "built_layout.hpp"

namespace rollring::shards {
namespace {

using test::BuiltLayout;

constexpr std::int64_t many = 20'000;
const std::vector<std::uint32_t> one_tensor = {0};

// Columns of `width` of a memory of `rows` rows, each in a box of its own.
BuiltLayout columns(std::int64_t rows, std::int64_t width) {
    BuiltLayout built;
    const std::int64_t pitch = many * width;
    const std::uint32_t memory = built.memory(0, "m", rows * pitch);
    for (std::int64_t i = 0; i < many; i++) {
        const std::int64_t at = (i * 7919) % many;  // in no order
        built.box(memory, "w", {rows, pitch}, {0, at * width}, {rows, width}, at * width,
                  {pitch, 1});
    }
    return built;
}

}  // namespace

TEST_CASE("columns of one pitch are compared with their neighbours") {
    for (const std::int64_t width : {1, 5}) {
        BuiltLayout built = columns(64, width);
        const auto use = check_shared_memory(built.layout, one_tensor);
        REQUIRE_MESSAGE(use.has_value(), (use ? "" : use.error().to_string()));
        CHECK(use->padding_elements == 0);
        CHECK(use->steps < 4 * many);

        // One that begins in the last column of another, in the last row.
        const std::int64_t pitch = many * width;
        built.box(0, "w", {64, pitch}, {0, 0}, {1, 2}, 63 * pitch + 77 * width - 1, {1, 1});
        const auto twice = check_shared_memory(built.layout, one_tensor);
        REQUIRE(!twice);
        CHECK(twice.error().code == Errc::layout_mismatch);
    }
}

TEST_CASE("rows of one memory are compared with their neighbours") {
    BuiltLayout built;
    const std::uint32_t memory = built.memory(0, "m", many * 8);
    for (std::int64_t i = 0; i < many; i += 2) {
        built.box(memory, "w", {many, 8}, {i, 0}, {2, 8}, i * 8);
    }
    const auto use = check_shared_memory(built.layout, one_tensor);
    REQUIRE(use.has_value());
    CHECK(use->steps < 4 * many);
    built.box(memory, "w", {many, 8}, {many - 2, 0}, {2, 4}, (many - 2) * 8 + 4, {8, 1});
    CHECK(check_shared_memory(built.layout, one_tensor).error().code == Errc::layout_mismatch);
}

TEST_CASE("the stride of a single element does not tell boxes of tied tensors apart") {
    BuiltLayout built;
    const std::uint32_t memory = built.memory(0, "m", 32);
    built.box(memory, "embed", {1, 32}, {0, 0}, {1, 32}, 0, {32, 1});
    built.tie("head", "embed");
    built.box(memory, "head", {1, 32}, {0, 0}, {1, 32}, 0, {1, 1});
    const auto use = check_shared_memory(built.layout, std::vector<std::uint32_t>{0, 0});
    REQUIRE(use.has_value());
    CHECK(use->repeated[1]);
}

}  // namespace rollring::shards
