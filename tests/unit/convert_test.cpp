// Goal: numbers survive a change of dtype as C++ says, or the call says that they do not.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "rollring/schema.hpp"

using namespace rollring;

namespace {

constexpr DType f16{2, 16};
constexpr DType bf16{4, 16};
constexpr DType i8{0, 8};
constexpr DType truth{6, 8};

template <class To, class From>
std::pair<bool, std::vector<To>> converted(DType from, const std::vector<From>& values, DType to) {
    std::vector<To> target(values.size());
    const bool good = convert(from, reinterpret_cast<const std::byte*>(values.data()), to,
                              reinterpret_cast<std::byte*>(target.data()), values.size());
    return {good, target};
}

// The nearest of all finite halves, ties to the even one, found by looking at all.
std::uint16_t nearest_half(float value, const std::vector<float>& halves) {
    const float size = std::abs(value);
    std::uint16_t best = 0;
    for (std::uint16_t bits = 0; bits < 0x7c00; bits++) {
        const double off = std::abs(static_cast<double>(halves[bits]) - size);
        const double least = std::abs(static_cast<double>(halves[best]) - size);
        if (off < least || (off == least && bits % 2 == 0)) best = bits;
    }
    if (size >= 65520.0F) best = 0x7c00;
    return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

}  // namespace

TEST_CASE("convert: integers that do not fit are told, and the others are right") {
    const auto [good, same] = converted<std::int64_t>(dtype_i32, std::vector{-1, 0, 7}, dtype_i64);
    CHECK(good);
    CHECK(same == std::vector<std::int64_t>{-1, 0, 7});
    const auto [bad, cut] = converted<std::uint8_t>(dtype_i32, std::vector{255, 256, -1}, dtype_u8);
    CHECK_FALSE(bad);
    CHECK(cut == std::vector<std::uint8_t>{255, 0, 0});
    constexpr double edge = 0x1p63;
    CHECK_FALSE(converted<std::int64_t>(dtype_f64, std::vector{edge}, dtype_i64).first);
    CHECK(converted<std::int64_t>(dtype_f64, std::vector{-edge}, dtype_i64).first);
    CHECK_FALSE(converted<std::int32_t>(dtype_f32, std::vector{std::nanf("")}, dtype_i32).first);
    const auto [whole, toward_zero] =
        converted<std::int32_t>(dtype_f64, std::vector{-1.9, 2147483647.9}, dtype_i32);
    CHECK(whole);
    CHECK(toward_zero == std::vector<std::int32_t>{-1, 2147483647});
    CHECK(converted<std::int8_t>(dtype_f64, std::vector{127.5, -128.9}, i8).first);
    CHECK_FALSE(converted<std::int8_t>(dtype_f64, std::vector{128.0}, i8).first);
    const auto [ok, truths] = converted<std::uint8_t>(dtype_f32, std::vector{0.0F, -0.5F}, truth);
    CHECK(ok);
    CHECK(truths == std::vector<std::uint8_t>{0, 1});
    // A byte of a bool that is neither 0 nor 1 counts as true.
    CHECK(converted<std::int32_t>(truth, std::vector<std::uint8_t>{0, 2}, dtype_i32).second ==
          std::vector<std::int32_t>{0, 1});
}

TEST_CASE("convert: every half is itself, and floats go to the nearest half") {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); i++) all[i] = static_cast<std::uint16_t>(i);
    const auto floats = converted<float>(f16, all, dtype_f32).second;
    CHECK(floats[0x3c00] == 1.0F);
    CHECK(floats[0x7bff] == 65504.0F);
    CHECK(floats[1] == 0x1p-24F);
    const auto back = converted<std::uint16_t>(dtype_f32, floats, f16).second;
    for (std::size_t i = 0; i < all.size(); i++) {
        if (std::isnan(floats[i])) {
            CHECK((back[i] & 0x7fff) > 0x7c00);
        } else {
            REQUIRE(back[i] == all[i]);
        }
    }
    // Rounded once: a float between would have made a tie of it.
    CHECK(
        converted<std::uint16_t>(dtype_f64, std::vector{1.0 + 0x1p-11 + 0x1p-40}, f16).second[0] ==
        0x3c01);
    std::vector<float> between;
    for (std::uint32_t i = 0; i < 400; i++) {
        const std::uint16_t at = static_cast<std::uint16_t>(i * 79 % 0x7bff);
        const float low = floats[at];
        const float high = floats[at + 1U];
        between.push_back((low + high) / 2);
        between.push_back(-std::nextafter((low + high) / 2, high));
    }
    for (const float edge : {65519.9F, 65520.0F, 1e30F, 0x1p-25F, 0x1.8p-25F, 1e-30F})
        between.push_back(edge);
    const auto rounded = converted<std::uint16_t>(dtype_f32, between, f16).second;
    for (std::size_t i = 0; i < between.size(); i++) {
        CAPTURE(between[i]);
        REQUIRE(rounded[i] == nearest_half(between[i], floats));
    }
}

TEST_CASE("convert: bf16 is a float's upper half, rounded to even") {
    const std::vector<float> values{1.0F,
                                    -2.5F,
                                    0x1.01p0F,
                                    0x1.03p0F,
                                    0x1.018p0F,
                                    3.4e38F,
                                    std::numeric_limits<float>::infinity()};
    CHECK(converted<std::uint16_t>(dtype_f32, values, bf16).second ==
          std::vector<std::uint16_t>{0x3f80, 0xc020, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x7f80});
    const auto nan = converted<std::uint16_t>(dtype_f32, std::vector{std::nanf("")}, bf16).second;
    CHECK((nan[0] & 0x7fff) > 0x7f80);
}

TEST_CASE("convert: what is no number here goes to itself alone") {
    constexpr DType f8{10, 8};
    CHECK(can_convert(f8, f8));
    CHECK_FALSE(can_convert(f8, dtype_f32));
    CHECK(converted<std::uint8_t>(f8, std::vector<std::uint8_t>{9}, f8).second[0] == 9);
    std::uint8_t byte = 3;
    CHECK_FALSE(fill(dtype_u8, 256, reinterpret_cast<std::byte*>(&byte), 1));
    CHECK(byte == 3);
    CHECK(fill(dtype_u8, 255, reinterpret_cast<std::byte*>(&byte), 1));
    CHECK(byte == 255);
}

TEST_CASE("each dtype has a short and a full name, one each") {
    for (const KnownDType& known : known_dtypes) {
        CHECK(known.dtype.to_string() == known.name);
        CHECK(DType::parse(known.name) == known.dtype);
        CHECK(can_convert(known.dtype, known.dtype));
        CHECK(can_convert(known.dtype, dtype_f64) == known.is_number);
        for (const KnownDType& other : known_dtypes) {
            const bool same = &known == &other;
            CHECK((known.full_name == other.full_name) == same);
            CHECK((known.dtype == other.dtype) == same);
        }
    }
}
