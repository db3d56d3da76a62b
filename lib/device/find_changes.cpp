#include "find_changes.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rollring::device {
namespace {

template <class Element>
Element load(const std::byte* at, std::uint32_t i) {
    Element value;
    std::memcpy(&value, at + std::size_t{i} * sizeof value, sizeof value);
    return value;
}

// One by one.
template <class Element>
std::uint32_t find_each(const std::byte* live, const std::byte* next, std::uint32_t elements,
                        std::uint16_t first_index, Changes<Element> to) {
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < elements; i++) {
        const auto incoming = load<Element>(next, i);
        // Without a branch: whether an element has changed cannot be predicted.
        to.index[found] = static_cast<std::uint16_t>(first_index + i);
        to.value[found] = incoming;
        found += load<Element>(live, i) != incoming ? 1 : 0;
    }
    return found;
}

bool same_64_bytes(const std::byte* one, const std::byte* other) {
    std::uint64_t a[8];
    std::uint64_t b[8];
    std::memcpy(a, one, sizeof a);
    std::memcpy(b, other, sizeof b);
    std::uint64_t differs = 0;
    for (int i = 0; i < 8; i++) differs |= a[i] ^ b[i];
    return differs == 0;
}

#if defined(__x86_64__)

// Vectors of 64 bytes, with a compressed store of those elements that differ.
#define ROLLRING_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi2,avx512vl,popcnt")))

template <class Element>
struct Vector;

template <>
struct Vector<std::uint8_t> {
    using Mask = __mmask64;
    ROLLRING_AVX512 static Mask differ(__m512i a, __m512i b) {
        return _mm512_cmpneq_epi8_mask(a, b);
    }
    ROLLRING_AVX512 static void put(std::uint8_t* value, Mask mask, __m512i from) {
        _mm512_storeu_si512(value, _mm512_maskz_compress_epi8(mask, from));
    }
};
template <>
struct Vector<std::uint16_t> {
    using Mask = __mmask32;
    ROLLRING_AVX512 static Mask differ(__m512i a, __m512i b) {
        return _mm512_cmpneq_epi16_mask(a, b);
    }
    ROLLRING_AVX512 static void put(std::uint16_t* value, Mask mask, __m512i from) {
        _mm512_storeu_si512(value, _mm512_maskz_compress_epi16(mask, from));
    }
};
template <>
struct Vector<std::uint32_t> {
    using Mask = __mmask16;
    ROLLRING_AVX512 static Mask differ(__m512i a, __m512i b) {
        return _mm512_cmpneq_epi32_mask(a, b);
    }
    ROLLRING_AVX512 static void put(std::uint32_t* value, Mask mask, __m512i from) {
        _mm512_storeu_si512(value, _mm512_maskz_compress_epi32(mask, from));
    }
};
template <>
struct Vector<std::uint64_t> {
    using Mask = __mmask8;
    ROLLRING_AVX512 static Mask differ(__m512i a, __m512i b) {
        return _mm512_cmpneq_epi64_mask(a, b);
    }
    ROLLRING_AVX512 static void put(std::uint64_t* value, Mask mask, __m512i from) {
        _mm512_storeu_si512(value, _mm512_maskz_compress_epi64(mask, from));
    }
};

template <class Element>
ROLLRING_AVX512 std::uint32_t find_by_vectors(const std::byte* live, const std::byte* next,
                                              std::uint32_t elements, std::uint16_t first_index,
                                              Changes<Element> to) {
    constexpr std::uint32_t lanes = 64 / sizeof(Element);
    std::uint16_t numbers[64];
    for (std::uint16_t i = 0; i < 64; i++) numbers[i] = static_cast<std::uint16_t>(first_index + i);
    __m512i low = _mm512_loadu_si512(numbers);
    __m512i high = _mm512_loadu_si512(numbers + 32);
    const __m512i step = _mm512_set1_epi16(lanes);
    std::uint32_t found = 0;
    std::uint32_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        const __m512i incoming = _mm512_loadu_si512(next + i * sizeof(Element));
        const auto mask =
            Vector<Element>::differ(_mm512_loadu_si512(live + i * sizeof(Element)), incoming);
        if (mask != 0) {
            const auto lower = static_cast<__mmask32>(mask);
            _mm512_storeu_si512(to.index + found, _mm512_maskz_compress_epi16(lower, low));
            if constexpr (lanes == 64) {
                _mm512_storeu_si512(
                    to.index + found + _mm_popcnt_u32(lower),
                    _mm512_maskz_compress_epi16(static_cast<__mmask32>(mask >> 32), high));
            }
            Vector<Element>::put(to.value + found, mask, incoming);
            found += static_cast<std::uint32_t>(_mm_popcnt_u64(mask));
        }
        // NOLINTBEGIN(portability-simd-intrinsics): there is no portable form of those above
        low = _mm512_add_epi16(low, step);
        if constexpr (lanes == 64) high = _mm512_add_epi16(high, step);
        // NOLINTEND(portability-simd-intrinsics)
    }
    const std::size_t at = std::size_t{i} * sizeof(Element);
    return found + find_each(live + at, next + at, elements - i,
                             static_cast<std::uint16_t>(first_index + i),
                             Changes<Element>{to.index + found, to.value + found});
}

bool has_vectors() {
    static const bool has =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2") &&
        __builtin_cpu_supports("popcnt");
    return has;
}

#endif

}  // namespace

template <class Element>
std::uint32_t find_changes_plain(const std::byte* live, const std::byte* next,
                                 std::uint32_t elements, std::uint16_t first_index,
                                 Changes<Element> to) {
    constexpr std::uint32_t lanes = 64 / sizeof(Element);
    std::uint32_t found = 0;
    const auto find_from = [&](std::uint32_t begin, std::uint32_t count) {
        const std::size_t at = std::size_t{begin} * sizeof(Element);
        return find_each(live + at, next + at, count,
                         static_cast<std::uint16_t>(first_index + begin),
                         Changes<Element>{to.index + found, to.value + found});
    };
    std::uint32_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        if (same_64_bytes(live + i * sizeof(Element), next + i * sizeof(Element))) continue;
        found += find_from(i, lanes);
    }
    return found + find_from(i, elements - i);
}

template <class Element>
std::uint32_t find_changes(const std::byte* live, const std::byte* next, std::uint32_t elements,
                           std::uint16_t first_index, Changes<Element> to) {
#if defined(__x86_64__)
    if (has_vectors()) return find_by_vectors(live, next, elements, first_index, to);
#endif
    return find_changes_plain(live, next, elements, first_index, to);
}

template std::uint32_t find_changes(const std::byte*, const std::byte*, std::uint32_t,
                                    std::uint16_t, Changes<std::uint8_t>);
template std::uint32_t find_changes(const std::byte*, const std::byte*, std::uint32_t,
                                    std::uint16_t, Changes<std::uint16_t>);
template std::uint32_t find_changes(const std::byte*, const std::byte*, std::uint32_t,
                                    std::uint16_t, Changes<std::uint32_t>);
template std::uint32_t find_changes(const std::byte*, const std::byte*, std::uint32_t,
                                    std::uint16_t, Changes<std::uint64_t>);
template std::uint32_t find_changes_plain(const std::byte*, const std::byte*, std::uint32_t,
                                          std::uint16_t, Changes<std::uint8_t>);
template std::uint32_t find_changes_plain(const std::byte*, const std::byte*, std::uint32_t,
                                          std::uint16_t, Changes<std::uint16_t>);
template std::uint32_t find_changes_plain(const std::byte*, const std::byte*, std::uint32_t,
                                          std::uint16_t, Changes<std::uint32_t>);
template std::uint32_t find_changes_plain(const std::byte*, const std::byte*, std::uint32_t,
                                          std::uint16_t, Changes<std::uint64_t>);

}  // namespace rollring::device
