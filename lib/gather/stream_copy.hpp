#pragma once
// Copies for arrays that the caches cannot hold: past them, and with the sources fetched ahead. A
// column of 2,048 tokens is too short for the hardware's own prefetch to pay, and too short for
// memcpy to go past the caches, which then read each line of the target before it is overwritten.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

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

// Call end_streams() before another thread may read the target.
void stream_copy(std::byte* to, ReadAhead::Source from, ReadAhead& ahead);
void end_streams();

}  // namespace rollring::gathering
