#pragma once
// A part of a segment before it is on the disk: entries in memory that a direct write can take.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "ledger_layout.hpp"

namespace rollring::ledger {

// For a new file's FileHeader::file_id.
[[nodiscard]] inline std::uint64_t random_id() {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
}

// Memory at a multiple of a block, which grows. It has large pages where the system gives them: a
// direct write pins page by page, which costs much of the disk's rate with small ones.
class BlockBuffer {
  public:
    BlockBuffer() = default;
    // It begins with `least` bytes. Only those in use take memory, and none are copied up to there.
    explicit BlockBuffer(std::uint64_t least) : least_(least) {}
    [[nodiscard]] std::byte* data() { return memory_.get(); }
    [[nodiscard]] std::uint64_t used() const { return used_; }
    [[nodiscard]] std::uint64_t size() const { return size_; }
    [[nodiscard]] std::span<const std::byte> bytes() const { return {memory_.get(), used_}; }
    void clear() { used_ = 0; }
    // Room for that many more bytes, whose contents are not set.
    std::byte* grow(std::uint64_t bytes) {
        if (used_ + bytes > size_) reserve(std::max({least_, 2 * size_, used_ + bytes}));
        std::byte* const at = memory_.get() + used_;
        used_ += bytes;
        return at;
    }
    // Zeros up to a multiple of a block.
    void pad() {
        // A chunk with marks alone has no memory.
        if (used_ % block == 0) return;
        const std::uint64_t more = block - used_ % block;
        std::memset(grow(more), 0, more);
    }

  private:
    static constexpr std::uint64_t large_page = std::uint64_t{2} << 20;
    struct Free {
        void operator()(std::byte* memory) const {
            ::operator delete(memory, std::align_val_t{large_page});
        }
    };
    void reserve(std::uint64_t bytes) {
        const std::uint64_t whole = (bytes + large_page - 1) / large_page * large_page;
        std::unique_ptr<std::byte[], Free> more(
            static_cast<std::byte*>(::operator new(whole, std::align_val_t{large_page})));
        // Refused by some systems: the memory serves as it is.
        if (bytes >= large_page) static_cast<void>(madvise(more.get(), whole, MADV_HUGEPAGE));
        if (used_ != 0) std::memcpy(more.get(), memory_.get(), used_);
        memory_ = std::move(more);
        size_ = whole;
    }
    std::unique_ptr<std::byte[], Free> memory_;
    std::uint64_t least_ = 0;
    std::uint64_t size_ = 0;
    std::uint64_t used_ = 0;
};

// Records of the lane's epoch below that sequence are in the ledger once the chunk is.
struct Mark {
    std::uint32_t lane;
    std::uint32_t epoch;
    std::uint64_t records;
};

// Of one write, unless an entry alone has more: as long as a disk needs for its full rate. Chunks
// of one size take each other's memory, where the kernel would have to clear fresh memory for each.
inline constexpr std::uint64_t chunk_bytes = std::uint64_t{8} << 20;

struct Chunk {
    std::uint64_t segment = 0;
    std::uint64_t offset = 0;        // in its segment
    std::uint64_t file_bytes = 0;    // not 0: it begins its segment, which is made so long
    std::uint64_t ticket = 0;        // of its last entry
    std::uint64_t remove_below = 0;  // segments without use once this chunk is on the disk
    std::uint64_t index_of = 0;      // a segment that ends before it, whose index is this
    std::vector<std::byte> index;
    BlockBuffer buffer{chunk_bytes};
    std::vector<Mark> marks;  // one a lane
    bool closed = false;      // to further entries

    [[nodiscard]] bool is_full_with(std::uint64_t bytes) const {
        return buffer.used() != 0 && in_blocks(buffer.used() + bytes) > chunk_bytes;
    }
};

}  // namespace rollring::ledger
