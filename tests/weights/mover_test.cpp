// The CPU as mover, against references that share nothing with it.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "host_mover.hpp"

namespace rollring::test {
namespace {

using namespace device;

// The value of a 16-bit float with `exponent_bits` exponent bits, in plain arithmetic.
double value_of(std::uint16_t bits, int exponent_bits) {
    const int mantissa_bits = 15 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const double mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    }
    const double scale = std::ldexp(1.0, (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
    return sign * scale * (mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits));
}

// Nearest, ties to even, by search among all finite values of that sign; beyond the largest by half
// a step: infinity.
std::uint16_t nearest(float value, int exponent_bits) {
    if (std::isnan(value)) return 0x7fff;
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(static_cast<double>(value));
    const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
    int low = 0;
    int high = infinity;
    while (high - low > 1) {  // value_of(low) <= size < value_of(high)
        const int middle = (low + high) / 2;
        (value_of(static_cast<std::uint16_t>(middle), exponent_bits) <= size ? low : high) = middle;
    }
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
    const double below = value_of(static_cast<std::uint16_t>(low), exponent_bits);
    // The value after the largest stands for infinity here.
    const double above =
        high == infinity
            ? below * 2 - value_of(static_cast<std::uint16_t>(low - 1), exponent_bits) * 1.0
            : value_of(static_cast<std::uint16_t>(high), exponent_bits);
    const double middle = below + (above - below) / 2;
    const bool up = size > middle || (size == middle && (low & 1) != 0);
    return static_cast<std::uint16_t>(sign | (up ? high : low));
}

bool converts(float value) {
    return bf16_of(value) == nearest(value, 8) && f16_of(value) == nearest(value, 5);
}

std::vector<std::byte> random_bytes(std::size_t count, std::mt19937_64& dice) {
    std::vector<std::byte> bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(dice());
    return bytes;
}

// A job over a strided tensor of random shape, its element offsets in row-major order, and how many
// elements its memory has.
struct Case {
    CopyJob job;
    std::vector<std::int64_t> offsets;
    std::int64_t room = 1;
};

Case random_case(std::mt19937_64& dice) {
    Case made;
    const std::size_t dims = 1 + dice() % CopyJob::dims_max;
    std::uint64_t elements = 1;
    for (std::size_t i = 0; i < dims; i++) {
        made.job.shape.push_back(static_cast<std::int64_t>(2 + dice() % 4));
        elements *= static_cast<std::uint64_t>(made.job.shape.back());
    }
    // Dense in a random order of dimensions, with gaps: no two elements share an address.
    std::vector<std::size_t> order(dims);
    for (std::size_t i = 0; i < dims; i++) order[i] = i;
    std::ranges::shuffle(order, dice);
    made.job.strides.resize(dims);
    for (const std::size_t dim : order) {
        made.job.strides[dim] = made.room;
        made.room *= made.job.shape[dim] + static_cast<std::int64_t>(dice() % 2);
    }
    made.job.element_bytes = 1U << dice() % 4;
    made.job.first_element = dice() % elements;
    made.job.elements = 1 + dice() % (elements - made.job.first_element);
    made.job.slot_offset = piece_alignment * (dice() % 3);
    for (std::uint64_t i = 0; i < made.job.elements; i++) {
        std::uint64_t left = made.job.first_element + i;
        std::int64_t offset = 0;
        for (std::size_t dim = dims; dim-- > 0;) {
            const auto extent = static_cast<std::uint64_t>(made.job.shape[dim]);
            offset += static_cast<std::int64_t>(left % extent) * made.job.strides[dim];
            left /= extent;
        }
        made.offsets.push_back(offset);
    }
    return made;
}

}  // namespace

TEST_CASE("conversions round to nearest, ties to even") {
    std::uint64_t wrong = 0;
    std::uint64_t tried = 0;
    const auto attempt = [&](std::uint32_t bits) {
        tried++;
        wrong += converts(std::bit_cast<float>(bits)) ? 0 : 1;
    };
    // Around every value of either format and every middle between two of them.
    for (std::uint32_t half = 0; half < 1 << 16; half++) {
        for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
            attempt(half << 16 | low);
        }
        const double one = value_of(static_cast<std::uint16_t>(half), 5);
        const double two = value_of(static_cast<std::uint16_t>(half + 1), 5);
        for (const double at : {one, (one + two) / 2}) {
            const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(at));
            for (const std::uint32_t step : {0xffffffffU, 0U, 1U}) attempt(bits + step);
        }
    }
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 8191) {
        attempt(static_cast<std::uint32_t>(bits));
    }
    CHECK(wrong == 0);
    CHECK(tried > 1'000'000);
    CHECK(f16_of(65504.0F) == 0x7bff);
    CHECK(f16_of(65519.996F) == 0x7bff);
    CHECK(f16_of(65520.0F) == 0x7c00);
    CHECK(bf16_of(std::numeric_limits<float>::max()) == 0x7f80);
    CHECK(f16_of(-0.0F) == 0x8000);
    CHECK(bf16_of(-std::nanf("")) == 0x7fff);
}

TEST_CASE("strided tensors are gathered and scattered element by element") {
    std::mt19937_64 dice(11);
    HostMover mover;
    for (int round = 0; round < 3000; round++) {
        Case made = random_case(dice);
        const std::uint32_t each = made.job.element_bytes;
        const std::size_t room = static_cast<std::size_t>(made.room) * each;
        auto tensor = random_bytes(room, dice);
        std::vector<std::byte> slot(made.job.slot_offset + made.job.elements * each + 64,
                                    std::byte{0xee});
        std::vector<std::byte> wanted = slot;
        made.job.tensor = tensor.data();
        for (std::size_t i = 0; i < made.offsets.size(); i++) {
            std::memcpy(wanted.data() + made.job.slot_offset + i * each,
                        tensor.data() + made.offsets[i] * each, each);
        }
        auto plan = mover.plan({made.job});
        REQUIRE(plan.has_value());
        REQUIRE((*plan)->pack(slot.data(), {}, {}).has_value());
        REQUIRE(slot == wanted);

        auto other = random_bytes(room, dice);
        auto expected = other;
        for (std::size_t i = 0; i < made.offsets.size(); i++) {
            std::memcpy(expected.data() + made.offsets[i] * each,
                        slot.data() + made.job.slot_offset + i * each, each);
        }
        made.job.tensor = other.data();
        auto back = mover.plan({made.job});
        REQUIRE((*back)->unpack(slot.data(), {}).has_value());
        REQUIRE(other == expected);
    }
}

TEST_CASE("casts go through strides, too") {
    std::mt19937_64 dice(12);
    HostMover mover;
    for (int round = 0; round < 500; round++) {
        Case made = random_case(dice);
        made.job.element_bytes = 4;
        made.job.cast = round % 2 == 0 ? Cast::f32_to_bf16 : Cast::f32_to_f16;
        std::vector<float> tensor(static_cast<std::size_t>(made.room));
        for (float& value : tensor) {
            value = static_cast<float>(static_cast<double>(dice() % 2'000'000) / 1e3 - 1000);
        }
        made.job.tensor = reinterpret_cast<std::byte*>(tensor.data());
        std::vector<std::byte> slot(made.job.slot_offset + made.job.packed_bytes());
        auto plan = mover.plan({made.job});
        REQUIRE((*plan)->pack(slot.data(), {}, {}).has_value());
        for (std::size_t i = 0; i < made.offsets.size(); i++) {
            std::uint16_t packed = 0;
            std::memcpy(&packed, slot.data() + made.job.slot_offset + i * 2, 2);
            const float value = tensor[static_cast<std::size_t>(made.offsets[i])];
            REQUIRE(packed == nearest(value, round % 2 == 0 ? 8 : 5));
        }
    }
}

TEST_CASE("a checksum finds what is flipped, moved or missing") {
    std::mt19937_64 dice(13);
    CHECK(checksum(nullptr, 0) == 0);
    for (const std::size_t count : {1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 1021}) {
        const auto bytes = random_bytes(count, dice);
        const std::uint64_t sum = checksum(bytes.data(), count);
        for (std::size_t bit = 0; bit < count * 8; bit++) {
            auto flipped = bytes;
            flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
            REQUIRE(checksum(flipped.data(), count) != sum);
        }
        for (std::size_t i = 0; i + 8 <= count; i += 4) {  // two words that change places
            auto swapped = bytes;
            std::swap_ranges(&swapped[i], &swapped[i] + 4, &swapped[i + 4]);
            if (swapped != bytes) REQUIRE(checksum(swapped.data(), count) != sum);
        }
        auto longer = bytes;
        longer.resize(count + 4);
        CHECK(checksum(longer.data(), count + 4) != sum);  // a word of zeros counts, too
    }
    // Padding is zeros: bytes behind the end do not count.
    auto bytes = random_bytes(8, dice);
    const std::uint64_t sum = checksum(bytes.data(), 5);
    bytes[5] ^= std::byte{1};
    CHECK(checksum(bytes.data(), 5) == sum);
}

}  // namespace rollring::test
