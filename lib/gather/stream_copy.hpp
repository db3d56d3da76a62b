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
        for (std::size_t i = 0; i < lines_ahead; i++) fetch();
    }
    // The copy of this source begins.
    void begin(std::size_t source) {
        if (source < opened_) return;
        opened_ = source;
        at_ = end_ = nullptr;
    }
    // The line that fetch() fetches; null: none is left.
    const std::byte* next() { return at_ < end_ || open() ? at_ : nullptr; }
    // To be called for each line of the sources, once it is copied.
    void fetch() {
        const std::byte* const line = next();
        if (line == nullptr) return;
        prefetch_to_read(line);
        at_ += line_bytes;
    }

  private:
    bool open() {
        while (opened_ < sources_.size()) {
            const Source& source = sources_[opened_++];
            at_ = source.data();
            end_ = at_ + source.size();
            if (at_ < end_) return true;
        }
        return false;
    }

    static constexpr std::size_t line_bytes = 64;
    static constexpr std::size_t lines_ahead = 128;
    std::span<const Source> sources_;
    std::size_t opened_ = 0;  // sources whose lines are fetched, or passed over
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
};

// Call end_streams() before another thread may read the target.
void stream_copy(std::byte* to, ReadAhead::Source from, ReadAhead& ahead);
void end_streams();

}  // namespace rollring::gathering
