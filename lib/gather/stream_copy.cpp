#include "stream_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rollring::gathering {

#if defined(__x86_64__)
namespace {

constexpr std::size_t line_bytes = 64;

// Copies whole lines to an address that is a multiple of 64, and fetches as many others.
using CopyLines = void (*)(std::byte* to, const std::byte* from, std::size_t lines,
                           ReadAhead& ahead);

void copy_by_16(std::byte* to, const std::byte* from, std::size_t lines, ReadAhead& given) {
    ReadAhead ahead = given;  // in registers
    for (; lines > 0; lines--, to += line_bytes, from += line_bytes) {
        ahead.fetch();
        const auto* words = reinterpret_cast<const __m128i*>(from);
        auto* line = reinterpret_cast<__m128i*>(to);
        const __m128i a = _mm_loadu_si128(words);
        const __m128i b = _mm_loadu_si128(words + 1);
        const __m128i c = _mm_loadu_si128(words + 2);
        const __m128i d = _mm_loadu_si128(words + 3);
        _mm_stream_si128(line, a);
        _mm_stream_si128(line + 1, b);
        _mm_stream_si128(line + 2, c);
        _mm_stream_si128(line + 3, d);
    }
    given = ahead;
}

// A line in one store leaves the write-combining buffer at once.
[[gnu::target("avx512f")]] void copy_by_64(std::byte* to, const std::byte* from, std::size_t lines,
                                           ReadAhead& given) {
    ReadAhead ahead = given;
    for (; lines > 0; lines--, to += line_bytes, from += line_bytes) {
        ahead.fetch();
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
    }
    given = ahead;
}

CopyLines chosen() {
    return __builtin_cpu_supports("avx512f") ? copy_by_64 : copy_by_16;
}

}  // namespace

void stream_copy(std::byte* to, ReadAhead::Source from, ReadAhead& ahead) {
    if (from.empty()) return;  // and may have no address
    static const CopyLines copy_lines = chosen();
    const std::size_t size = from.size();
    const std::size_t before =
        std::min<std::size_t>(-reinterpret_cast<std::uintptr_t>(to) % line_bytes, size);
    const std::size_t lines = (size - before) / line_bytes;
    const std::size_t after = before + lines * line_bytes;
    std::memcpy(to, from.data(), before);
    copy_lines(to + before, from.data() + before, lines, ahead);
    std::memcpy(to + after, from.data() + after, size - after);
    for (std::size_t all = (size + line_bytes - 1) / line_bytes; all > lines; all--) ahead.fetch();
}

void end_streams() {
    _mm_sfence();
}
#else
void stream_copy(std::byte* to, ReadAhead::Source from, ReadAhead&) {
    std::memcpy(to, from.data(), from.size());
}

void end_streams() {}
#endif

}  // namespace rollring::gathering
