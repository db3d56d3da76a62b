#include "rollring/schema.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace rollring {
namespace {

// The upper half of a float, rounded to even.
struct BFloat16 {
    std::uint16_t bits;

    static BFloat16 of(float value) {
        const auto all = std::bit_cast<std::uint32_t>(value);
        if (std::isnan(value)) return {static_cast<std::uint16_t>(all >> 16 | 0x40)};
        return {static_cast<std::uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16)};
    }
    [[nodiscard]] float number() const {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
};

// IEEE 754 binary16.
struct Half {
    std::uint16_t bits;

    // Rounds to even in the float adder: adds a number whose last bit has the value of the half's.
    static Half of(float value) {
        const auto all = std::bit_cast<std::uint32_t>(value);
        const auto sign = static_cast<std::uint16_t>(all >> 16 & 0x8000);
        const std::uint32_t size = all & 0x7fffffff;
        if (size > 0x7f800000) return {static_cast<std::uint16_t>(sign | 0x7e00)};  // NaN
        if (size >= 0x477ff000) return {static_cast<std::uint16_t>(sign | 0x7c00)};
        if (size < 0x38800000) {  // below 2^-14: the last place is 2^-24
            const float sum = std::bit_cast<float>(size) + 0.5F;
            const std::uint32_t places = std::bit_cast<std::uint32_t>(sum) - 0x3f000000;
            return {static_cast<std::uint16_t>(sign | places)};
        }
        const std::uint32_t rounded = size + 0xfff + (size >> 13 & 1);
        return {static_cast<std::uint16_t>(sign | (rounded - 0x38000000) >> 13)};
    }
    [[nodiscard]] float number() const {
        const auto sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
        const std::uint32_t exponent = bits >> 10 & 31;
        const std::uint32_t fraction = bits & 0x3ff;
        if (exponent == 0) {
            const float small = static_cast<float>(fraction) * 0x1p-24F;
            return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(small));
        }
        const std::uint32_t size =
            exponent == 31 ? 0x7f800000 | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
        return std::bit_cast<float>(sign | size);
    }
};

struct Truth {
    std::uint8_t bits;  // any but 0 is true
};

template <class T>
auto number(T value) {
    if constexpr (std::is_arithmetic_v<T>) {
        return value;
    } else if constexpr (std::is_same_v<T, Truth>) {
        return static_cast<std::uint8_t>(value.bits != 0);
    } else {
        return value.number();
    }
}

template <class To, class Number>
bool fits(Number value) {
    if constexpr (!std::is_integral_v<To>) {
        return true;
    } else if constexpr (std::is_integral_v<Number>) {
        return std::in_range<To>(value);
    } else {  // the limits are powers of two, or one less: exact in a float
        const Number whole = std::trunc(value);
        constexpr To half = std::numeric_limits<To>::max() / 2 + 1;
        constexpr Number above = static_cast<Number>(half) * 2;
        return whole >= static_cast<Number>(std::numeric_limits<To>::min()) && whole < above;
    }
}

// Rounds towards zero, and sets the last bit if anything was lost: rounding the result once more is
// the same as rounding the value once.
float to_odd(double value) {
    auto rounded = static_cast<float>(value);
    if (static_cast<double>(rounded) == value || std::isnan(value) || std::isinf(rounded))
        return rounded;
    if (std::abs(static_cast<double>(rounded)) > std::abs(value))
        rounded = std::nextafter(rounded, 0.0F);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | 1);
}

template <class To, class Number>
To as(Number value) {
    if constexpr (std::is_same_v<To, Truth>) {
        return {static_cast<std::uint8_t>(value != 0)};
    } else if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Half>) {
        if constexpr (std::is_same_v<Number, float>) {
            return To::of(value);
        } else {
            return To::of(to_odd(static_cast<double>(value)));
        }
    } else {
        return static_cast<To>(value);
    }
}

template <class From, class To>
bool convert_all(const std::byte* from, std::byte* to, std::uint64_t elements) {
    const auto* source = reinterpret_cast<const From*>(from);
    auto* target = reinterpret_cast<To*>(to);
    bool all_fit = true;
    for (std::uint64_t i = 0; i < elements; i++) {
        const auto value = number(source[i]);
        const bool good = fits<To>(value);
        all_fit &= good;
        target[i] = good ? as<To>(value) : To{};
    }
    return all_fit;
}

template <class T>
struct Tag {
    using type = T;
};

// Calls visit(Tag<T>) for the type that stands for a dtype; false if there is none.
template <class Visit>
constexpr bool with_type(DType type, Visit visit) {
    return with_number(type, [&]<class T>(T) { return visit(Tag<T>{}); }) ||
           (type == dtype_f16 && visit(Tag<Half>{})) ||
           (type == dtype_bf16 && visit(Tag<BFloat16>{})) ||
           (type == dtype_bool && visit(Tag<Truth>{}));
}
static_assert(std::ranges::all_of(known_dtypes, [](const KnownDType& known) {
    return known.is_number == with_type(known.dtype, [](auto) { return true; });
}));

}  // namespace

bool can_convert(DType from, DType to) {
    const auto known = [](auto) { return true; };
    return from == to || (with_type(from, known) && with_type(to, known));
}

bool convert(DType from_type, const std::byte* from, DType to_type, std::byte* to,
             std::uint64_t elements) {
    if (elements == 0) return can_convert(from_type, to_type);
    if (from_type == to_type) {
        std::memcpy(to, from, elements * from_type.bytes());
        return true;
    }
    return with_type(from_type, [&]<class From>(Tag<From>) {
        return with_type(
            to_type, [&]<class To>(Tag<To>) { return convert_all<From, To>(from, to, elements); });
    });
}

bool fill(DType type, double value, std::byte* to, std::uint64_t elements) {
    if (elements == 0) return true;
    return with_type(type, [&]<class To>(Tag<To>) {
        if (!fits<To>(value)) return false;
        const To element = as<To>(value);
        auto* target = reinterpret_cast<To*>(to);
        for (std::uint64_t i = 0; i < elements; i++) target[i] = element;
        return true;
    });
}

}  // namespace rollring
