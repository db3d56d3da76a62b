#pragma once
// The data of a lane, or of the spill with its overflow file, read without a mapping: a mapped page
// that a consumer has given back would be allocated again, or end in SIGBUS.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "layout.hpp"
#include "overflow_file.hpp"
#include "ring_map.hpp"

namespace rollring {

// The reads before it are made before the reads behind it, those of system calls included: between
// a copy of bytes that a producer may be overwriting, and the word that says whether it could.
inline void order_reads() {
    __sync_synchronize();
}

class LaneBytes {
  public:
    LaneBytes(const RingMap& map, std::uint32_t lane, const std::optional<OverflowFile>& file)
        : map_(&map),
          file_(lane == map.geometry().spill_lane() && file ? &*file : nullptr),
          data_offset_(map.geometry().data_offset(lane)),
          memory_bytes_(memory_of(map, lane)) {}

    // An empty frame, which is not valid, if it cannot be read.
    [[nodiscard]] Frame read(std::uint64_t offset) const {
        Frame frame{};
        if (!copy(offset, &frame, sizeof frame)) frame = Frame{};
        return frame;
    }
    [[nodiscard]] bool copy(std::uint64_t offset, void* to, std::uint64_t bytes) const {
        const std::uint64_t here = std::min(bytes, memory_bytes_ - std::min(offset, memory_bytes_));
        if (here > 0 && !map_->segment().read(data_offset_ + offset, to, here)) return false;
        if (here == bytes) return true;
        return file_ != nullptr &&
               file_->read(offset + here, static_cast<std::byte*>(to) + here, bytes - here);
    }

  private:
    // The word is stored before any record lies in the file, and so before a tail that covers one.
    static std::uint64_t memory_of(const RingMap& map, std::uint32_t lane) {
        const Geometry& geometry = map.geometry();
        if (lane != geometry.spill_lane()) return geometry.lane_bytes;
        const std::uint64_t said = observe(map.control().overflow_begin);
        const bool sound = said != 0 && said % page_bytes == 0 && said < geometry.spill_bytes;
        return sound ? said : geometry.spill_bytes;
    }

    const RingMap* map_;
    const OverflowFile* file_;
    std::uint64_t data_offset_;
    std::uint64_t memory_bytes_;
};

}  // namespace rollring
