#pragma once
// Copies for arrays that the caches cannot hold: past them, and with the sources fetched ahead. A
// column of 2,048 tokens is too short for the hardware's own prefetch to pay, and too short for
// memcpy to go past the caches, which then read each line of the target before it is overwritten.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "prefetch.hpp"

namespace rollring::gathering {

// Bytes of arrays from which their copies go past the caches.
inline constexpr std::uint64_t streamed_from = std::uint64_t{8} << 20;

// Fetches the lines of sources that will be copied in this order, some of them ahead of the copies.
class ReadAhead {
  public:
    using Source = std::span<const std::byte>;

    explicit ReadAhead(std::span<const Source> sources) : sources_(sources) {
        for (std::size_t left = lines_ahead; left > 0 && source_ < sources_.size();) {
            const Lines some = lines(left);
            for (std::size_t i = 0; i < some.count; i++) prefetch_to_read(some.begin + i * 64);
            left -= some.count;
        }
    }
    // The copy of this source begins.
    void begin(std::size_t source) {
        if (source_ >= source) return;
        source_ = source;
        at_ = 0;
    }
    // The next adjacent lines to be fetched, `most` at most. Null: there are none any more.
    struct Lines {
        const std::byte* begin;
        std::size_t count;
    };
    Lines lines(std::size_t most) {
        if (source_ == sources_.size()) return {nullptr, most};
        const Source& source = sources_[source_];
        const std::size_t left = (source.size() - at_ + 63) / 64;
        const Lines found{source.data() + at_, std::min(most, left)};
        at_ += found.count * 64;
        if (found.count == left) {
            source_++;
            at_ = 0;
        }
        return found;
    }

  private:
    static constexpr std::size_t lines_ahead = 128;
    std::span<const Source> sources_;
    std::size_t source_ = 0;
    std::size_t at_ = 0;
};

#if defined(__SSE2__)
inline void copy_line(std::byte* to, const std::byte* from) {
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

// Call end_streams() before another thread may read the target.
inline void stream_copy(std::byte* to, ReadAhead::Source from, ReadAhead& ahead) {
    const std::byte* at = from.data();
    const std::byte* const end = at + from.size();
    const std::size_t before =
        std::min<std::size_t>(-reinterpret_cast<std::uintptr_t>(to) % 16, from.size());
    std::memcpy(to, at, before);
    at += before;
    to += before;
    while (end - at >= 64) {
        const auto next = ahead.lines(static_cast<std::size_t>(end - at) / 64);
        const std::byte* fetched = next.begin == nullptr ? at : next.begin;
        for (std::size_t i = 0; i < next.count; i++, at += 64, to += 64, fetched += 64) {
            prefetch_to_read(fetched);
            copy_line(to, at);
        }
    }
    std::memcpy(to, at, static_cast<std::size_t>(end - at));
}
inline void end_streams() {
    _mm_sfence();
}
#else
inline void stream_copy(std::byte* to, ReadAhead::Source from, ReadAhead&) {
    std::memcpy(to, from.data(), from.size());
}
inline void end_streams() {}
#endif

}  // namespace rollring::gathering
