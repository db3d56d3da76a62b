// Layouts: the parts that they accept, and their table of bytes.

#include "rollring/weight_layout.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

#include "built_layout.hpp"
#include "xxh3.hpp"

namespace rollring::test {
namespace {

// Of a table.
constexpr std::size_t hash_offset = 24;
constexpr std::size_t header_bytes = 72;
constexpr std::size_t tensor_bytes = 24;

BuiltLayout two_ranks() {
    BuiltLayout built;
    built.whole_box(0, "embed", {10, 4}, {0, 0}, {6, 4});
    built.whole_box(1, "embed", {10, 4}, {6, 0}, {4, 4});
    const std::uint32_t qkv = built.memory(1, "qkv", 64);
    built.box(qkv, "q", {8, 4}, {4, 0}, {4, 4}, 0);
    built.box(qkv, "k", {4, 8}, {0, 0}, {2, 4}, 16, {1, 2});
    built.box(qkv, "scale", {}, {}, {}, 40);
    built.tie("head", "embed");
    built.whole_box(0, "head", {10, 4}, {0, 0}, {10, 4});
    return built;
}

void hash_again(std::vector<std::byte>& table) {
    std::memset(table.data() + hash_offset, 0, sizeof(XXH128_hash_t));
    const XXH128_hash_t hash = XXH3_128bits(table.data(), table.size());
    std::memcpy(table.data() + hash_offset, &hash.low64, 8);
    std::memcpy(table.data() + hash_offset + 8, &hash.high64, 8);
}

}  // namespace

TEST_CASE("a layout comes back from its bytes") {
    const WeightLayout layout = two_ranks().layout;
    const std::vector<std::byte> bytes = layout.to_bytes();
    const auto read = WeightLayout::from_bytes(bytes);
    REQUIRE(read.has_value());
    CHECK(read->to_bytes() == bytes);
    CHECK(read->hash() == layout.hash());
    CHECK(read->hash().size() == 32);
    CHECK(read->boxes() == 6);
    CHECK(read->text_of(3) == "rank 1, 'qkv': [0:2, 0:4]");
    CHECK(read->tensors()[4].tied_to == 0);
    CHECK(read->memories()[2].name == "qkv");
    CHECK(read->box(3).strides[1] == 2);

    WeightLayout other = two_ranks().layout;
    const std::int64_t shape[] = {1};
    REQUIRE(other.add_tensor("more", shape).has_value());
    CHECK(other.hash() != layout.hash());
    CHECK(WeightLayout::from_bytes(WeightLayout().to_bytes()).has_value());
}

TEST_CASE("a table with any byte changed is refused") {
    const std::vector<std::byte> bytes = two_ranks().layout.to_bytes();
    for (std::size_t i = 0; i < bytes.size(); i++) {
        std::vector<std::byte> changed = bytes;
        changed[i] ^= std::byte{1};
        const auto read = WeightLayout::from_bytes(changed);
        REQUIRE(!read);
        CHECK((read.error().code == Errc::bad_manifest || read.error().code == Errc::abi_mismatch));
    }
    for (std::size_t length = 0; length < bytes.size(); length++) {
        CHECK(!WeightLayout::from_bytes(std::span(bytes).first(length)));
    }
}

TEST_CASE("a table with another content and its right hash is refused, or it is a layout's table") {
    const std::vector<std::byte> bytes = two_ranks().layout.to_bytes();
    std::size_t accepted = 0;
    std::size_t refused = 0;
    const auto read = [&](std::vector<std::byte> changed) {
        hash_again(changed);
        const auto layout = WeightLayout::from_bytes(changed);
        (layout ? accepted : refused)++;
        if (layout) REQUIRE(layout->to_bytes() == changed);
    };
    for (std::size_t at = 0; at < bytes.size(); at++) {
        CAPTURE(at);
        for (unsigned bit = 0; bit < 8; bit++) {
            std::vector<std::byte> changed = bytes;
            changed[at] ^= std::byte(1U << bit);
            read(changed);
        }
        if (at % 8 != 0) continue;
        // A size, an index or an offset, or two of them.
        for (const std::uint64_t number :
             {std::uint64_t{0}, std::uint64_t{1}, bytes.size(), std::uint64_t{1} << 32,
              std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()}) {
            std::vector<std::byte> changed = bytes;
            std::memcpy(changed.data() + at, &number, sizeof number);
            read(changed);
        }
    }
    CHECK(accepted > 100);
    CHECK(refused > 1000);
}

TEST_CASE("the error of a table names the entry") {
    std::vector<std::byte> bytes = two_ranks().layout.to_bytes();
    bytes[8] ^= std::byte{3};
    CHECK(WeightLayout::from_bytes(bytes).error().code == Errc::abi_mismatch);
    bytes[8] ^= std::byte{3};
    bytes[12] ^= std::byte{8};
    CHECK(WeightLayout::from_bytes(bytes).error().message.contains("the length of its header"));
    bytes[12] ^= std::byte{8};
    bytes[header_bytes + tensor_bytes + 16] ^= std::byte{1};  // where the name of tensor 1 is
    hash_again(bytes);
    const auto read = WeightLayout::from_bytes(bytes);
    REQUIRE(!read);
    CHECK(read.error().code == Errc::bad_manifest);
    CHECK(read.error().message.contains("tensor 1: the place of its name"));
}

TEST_CASE("a layout refuses boxes that exceed their tensor or their memory") {
    BuiltLayout built;
    const std::uint32_t memory = built.memory(0, "m", 20);
    const std::int64_t shape[] = {5, 4};
    const auto tensor = built.layout.add_tensor("w", shape);
    REQUIRE(tensor.has_value());
    using Numbers = BuiltLayout::Numbers;
    struct Case {
        Numbers start;
        Numbers length;
        std::uint64_t offset;
        Numbers strides;
        bool fits;
    };
    constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
    const Case cases[] = {
        {{0, 0}, {5, 4}, 0, {4, 1}, true},
        {{0, 0}, {5, 4}, 1, {4, 1}, false},
        {{1, 0}, {5, 4}, 0, {4, 1}, false},
        {{-1, 0}, {5, 4}, 0, {4, 1}, false},
        {{huge, 0}, {5, 4}, 0, {4, 1}, false},
        {{0, 0}, {-5, 4}, 0, {4, 1}, false},
        {{0, 0}, {5, 4}, 0, {5, 1}, false},
        {{0, 0}, {5, 4}, 0, {huge, 1}, false},
        {{0, 0}, {5, 4}, 0, {4, -1}, false},
        {{0}, {5}, 0, {4}, false},
        {{0, 0}, {5, 0}, 99, {4, 1}, true},  // no elements
        {{4, 3}, {1, 1}, 19, {huge, huge}, true},
        {{4, 3}, {1, 1}, 20, {1, 1}, false},
        {{4, 3}, {1, 1}, std::numeric_limits<std::uint64_t>::max(), {1, 1}, false},
    };
    for (const Case& one : cases) {
        const auto added = built.layout.add_box({.tensor = *tensor,
                                                 .memory = memory,
                                                 .offset = one.offset,
                                                 .start = one.start,
                                                 .length = one.length,
                                                 .strides = one.strides});
        CHECK(added.has_value() == one.fits);
        if (!added) CHECK(added.error().message.contains("'w'"));
    }
    CHECK(built.layout.boxes() == 2);
    CHECK(!built.layout.add_box({.tensor = 1, .memory = memory}));
    CHECK(!built.layout.add_box({.tensor = *tensor, .memory = 1}));
}

TEST_CASE("a layout refuses names, shapes and ties that contradict each other") {
    BuiltLayout built = two_ranks();
    WeightLayout& layout = built.layout;
    const std::int64_t shape[] = {10, 4};
    const std::int64_t other[] = {4, 10};
    const std::int64_t vast[] = {1 << 21, 1 << 20};
    CHECK(*layout.add_tensor("embed", shape) == 0);
    CHECK(layout.add_tensor("embed", other).error().code == Errc::layout_mismatch);
    CHECK(layout.add_tensor("head", shape).error().code == Errc::layout_mismatch);  // it is tied
    CHECK(layout.add_tensor("a", other, 0).error().code == Errc::invalid_argument);
    CHECK(layout.add_tensor("a", shape, 4).error().code == Errc::invalid_argument);
    CHECK(layout.add_tensor("a", shape, 9).error().code == Errc::invalid_argument);
    CHECK(layout.add_tensor("", shape).error().code == Errc::invalid_argument);
    CHECK(layout.add_tensor(std::string(1024, 'a'), shape).error().code == Errc::invalid_argument);
    for (const std::string name : {"\x80", "a\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",
                                   "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff"}) {
        CHECK(layout.add_tensor(name, shape).error().code == Errc::invalid_argument);
    }
    CHECK(layout.add_tensor("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", shape).has_value());
    CHECK(layout.add_memory({.rank = 1 << 16, .name = "m", .dtype = dtype_u8})
              .error()
              .message.contains("its rank is 65536 or more"));
    CHECK(layout.add_tensor("vast", vast).error().code == Errc::invalid_argument);
    // Products that exceed 64 bits, too.
    constexpr std::int64_t large = std::int64_t{1} << 32;
    for (const BuiltLayout::Numbers& beyond : {BuiltLayout::Numbers{large, large},
                                               {large << 8, large << 8},
                                               {0, large, large},
                                               {large, large, 0}}) {
        const auto added = layout.add_tensor("vast", beyond);
        REQUIRE(!added);
        CHECK(added.error().code == Errc::invalid_argument);
    }
    CHECK(layout.add_tensor("empty", BuiltLayout::Numbers{0, large << 8}).has_value());
    CHECK(layout.add_memory({.rank = 1, .name = "qkv", .dtype = dtype_u8}).error().code ==
          Errc::invalid_argument);
    CHECK(layout.add_memory({.rank = 2, .name = "qkv", .dtype = dtype_u8}).has_value());
    CHECK(layout.add_memory({.rank = 3, .name = "qkv", .dtype = {9, 9}}).error().code ==
          Errc::invalid_argument);
}

TEST_CASE("a layout copies a box of its own, as a replica") {
    BuiltLayout built;
    built.box(built.memory(0, "w", 64), "w", {40}, {3}, {20}, 5, {2});
    for (std::uint32_t rank = 1; rank < 100; rank++) {
        LayoutBox replica = built.layout.box(rank / 2);
        replica.memory = built.memory(rank, "w", 64);
        REQUIRE(built.layout.add_box(replica).has_value());
        const LayoutBox added = built.layout.box(rank);
        REQUIRE(added.start[0] == 3);
        REQUIRE(added.length[0] == 20);
        REQUIRE(added.strides[0] == 2);
    }
}

TEST_CASE("a layout adds a tensor by a part of another one's name") {
    WeightLayout layout;
    const std::int64_t shape[] = {1};
    REQUIRE(layout.add_tensor("abcdef", shape).has_value());
    const std::string_view part = std::string_view(layout.tensors()[0].name).substr(3);
    const auto added = layout.add_tensor(part, shape);
    REQUIRE(added.has_value());
    const auto found = layout.add_tensor("def", shape);
    REQUIRE(found.has_value());
    CHECK(*found == *added);
}

TEST_CASE("layouts of ranks become one") {
    BuiltLayout first;
    BuiltLayout second;
    first.whole_box(0, "a", {8}, {0}, {4});
    second.whole_box(1, "b", {3}, {0}, {3});
    second.whole_box(1, "a", {8}, {4}, {4});
    WeightLayout all = first.layout;
    const auto joined = all.add(second.layout);
    REQUIRE_MESSAGE(joined.has_value(), (joined ? "" : joined.error().to_string()));
    CHECK(all.boxes() == 3);
    CHECK(all.tensors().size() == 2);
    CHECK(all.text_of(2) == "rank 1, 'a': [4:8]");
    CHECK(all.add(second.layout).error().code == Errc::invalid_argument);
}

}  // namespace rollring::test
