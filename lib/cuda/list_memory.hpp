#pragma once
// The memory of a list that grows, in chunks. `Memory` is a chunk's; it frees itself.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "rollring/error.hpp"

namespace rollring::cuda {

enum class Room : std::uint8_t {
    there,
    bound,   // the list may not have that much
    device,  // the device does not have it
};

template <class Memory>
class ListMemory {
  public:
    using Make = std::function<Result<Memory>(std::uint64_t bytes)>;
    struct Point {
        std::size_t chunk = 0;
        std::uint64_t used = 0;
    };

    ListMemory() = default;
    // `make`: out_of_device_memory says that a smaller chunk may be there. `chunk_bytes`: the least
    // that is allocated at once, if the device has it. `most`: of all entries that a list can have.
    ListMemory(Make make, std::uint64_t chunk_bytes, std::uint64_t most)
        : make_(std::move(make)), chunk_bytes_(chunk_bytes), most_(most) {}

    // Forgets the contents. From now on the list may have `bytes_max`; memory beyond `bytes_kept`
    // is freed.
    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept);
    // Room for this many bytes behind the chunk in use, and for more if the device has it. 0: any.
    Result<Room> grow(std::uint64_t bytes);
    // The chunk in use; null if there is none yet.
    [[nodiscard]] const Memory* now() const {
        return now_ < chunks_.size() ? &chunks_[now_].memory : nullptr;
    }
    [[nodiscard]] std::uint64_t used() const { return now() == nullptr ? 0 : chunks_[now_].used; }
    [[nodiscard]] std::uint64_t left() const {
        return now() == nullptr ? 0 : chunks_[now_].bytes - chunks_[now_].used;
    }
    // Takes bytes of the chunk in use.
    void take(std::uint64_t bytes) {
        if (now() != nullptr) chunks_[now_].used += bytes;
    }
    [[nodiscard]] Point end() const { return {now_, used()}; }
    // Forgets all bytes that were taken since then.
    void cut(Point end);
    [[nodiscard]] std::uint64_t allocated() const { return allocated_; }

  private:
    struct Chunk {
        Memory memory;
        std::uint64_t bytes = 0;
        std::uint64_t used = 0;
    };

    Make make_;
    std::uint64_t chunk_bytes_ = 0;
    std::uint64_t most_ = 0;
    std::vector<Chunk> chunks_;
    std::size_t now_ = 0;
    std::uint64_t allocated_ = 0;
    std::uint64_t bytes_max_ = 0;
    std::uint64_t bytes_first_ = 0;  // of the first chunk, if it is to be made
};

template <class Memory>
void ListMemory<Memory>::clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) {
    bytes_max_ = bytes_max;
    bytes_first_ = std::min({bytes_max, bytes_kept, most_});
    // One piece, because entries that do not fit into the rest of one are looked for again.
    const std::uint64_t most = std::max(bytes_first_, chunk_bytes_);
    if (chunks_.size() > 1 || allocated_ > std::min(most, bytes_max)) {
        chunks_.clear();
        allocated_ = 0;
    }
    for (Chunk& chunk : chunks_) chunk.used = 0;
    now_ = 0;
}

template <class Memory>
Result<Room> ListMemory<Memory>::grow(std::uint64_t bytes) {
    if (now_ < chunks_.size()) now_++;
    if (now_ < chunks_.size()) return Room::there;
    const std::uint64_t left = bytes_max_ - std::min(bytes_max_, allocated_);
    const std::uint64_t least = std::max(bytes, std::min(chunk_bytes_, most_));
    // The rests of chunks stay unused, so that a list may need more in all.
    const std::uint64_t more = chunks_.empty()
                                   ? bytes_first_
                                   : std::min(allocated_ / 2, most_ - std::min(most_, allocated_));
    Room none = Room::bound;
    std::uint64_t tried = 0;
    for (const std::uint64_t wanted : {std::max(least, more), least, (bytes + 15) / 16 * 16}) {
        const std::uint64_t size = std::min(left, wanted) / 16 * 16;
        if (size == 0 || size < bytes || size == tried) continue;
        tried = size;
        auto memory = make_(size);
        if (memory) {
            chunks_.push_back({.memory = std::move(*memory), .bytes = size});
            allocated_ += size;
            return Room::there;
        }
        if (memory.error().code != Errc::out_of_device_memory) {
            return std::unexpected(memory.error());
        }
        none = Room::device;
    }
    return none;
}

template <class Memory>
void ListMemory<Memory>::cut(Point end) {
    for (std::size_t i = end.chunk; i < chunks_.size(); i++) {
        chunks_[i].used = i == end.chunk ? end.used : 0;
    }
    now_ = end.chunk;
}

}  // namespace rollring::cuda
