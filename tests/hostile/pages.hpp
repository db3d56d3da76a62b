#pragma once
// A ring as seen by a process that can write over all of it.

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "ring_map.hpp"
#include "support/test_ring.hpp"

namespace rollring::test {

// The whole ring, writable.
struct Pages {
    explicit Pages(const TestRing& ring)
        : map(std::move(*RingMap::attach(ring.name(), Deadline::now()))),
          geometry(map.geometry()),
          all(*map.segment().map(0, geometry.segment_bytes(), true)) {}

    [[nodiscard]] ReaderControl& control() const {
        return all.at<ReaderControl>(geometry.reader_offset());
    }
    [[nodiscard]] ReaderEntry& entry(std::uint32_t lane) const {
        return all.at<ReaderEntry>(geometry.entries_offset() + lane * sizeof(ReaderEntry));
    }
    [[nodiscard]] LaneOwner& owner(std::uint32_t lane) const {
        return all.at<LaneOwner>(geometry.owner_offset(lane));
    }
    [[nodiscard]] std::byte* data(std::uint32_t lane) const {
        return all.data() + geometry.data_offset(lane);
    }
    [[nodiscard]] std::atomic<std::uint64_t>& bits(std::uint32_t lane) const {
        return all.at<std::atomic<std::uint64_t>>(geometry.bits_offset(lane));
    }

    RingMap map;
    Geometry geometry;
    Mapping all;
};

// A record of `tokens` tokens.
inline Push push(Producer& producer, std::uint32_t tokens, std::uint32_t repetition,
                 Deadline deadline) {
    return send(producer, {.repetition = repetition, .tokens = tokens}, deadline);
}

}  // namespace rollring::test
