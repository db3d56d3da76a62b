#pragma once
// The offsets of the structures of layout.hpp in a ring.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "layout.hpp"
#include "round_up.hpp"

namespace rollring {

// The bytes of a lane. Positions grow forever. Their offset in the lane is needed several times per
// record, and a division costs as much as the check of a short record's columns.
class LaneSize {
  public:
    constexpr LaneSize() = default;
    explicit constexpr LaneSize(std::uint64_t bytes)
        : bytes_(bytes), mask_(std::has_single_bit(bytes) ? bytes - 1 : 0) {}
    [[nodiscard]] constexpr std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] constexpr std::uint64_t offset(std::uint64_t position) const {
        return mask_ != 0 ? position & mask_ : position % bytes_;
    }

  private:
    std::uint64_t bytes_ = 0;
    std::uint64_t mask_ = 0;
};

// All offsets: a function of the counts alone, so that creator and attacher cannot differ. "Lane"
// lane_count is the spill.
struct Geometry {
    std::uint32_t lane_count;
    std::uint32_t journal_records;
    std::uint64_t lane_bytes;
    std::uint64_t soft_bytes;
    std::uint64_t spill_bytes;
    std::uint32_t group_rows;
    std::uint64_t overflow_bytes;
    // For requests, which lie in an object beside the ring and have no offset here. They complete
    // the numbers of a ring, for programs that name them all.
    std::uint32_t requests = 0;
    std::uint64_t request_bytes = 0;

    [[nodiscard]] constexpr std::uint32_t spill_lane() const { return lane_count; }
    [[nodiscard]] constexpr std::uint64_t capacity(std::uint32_t lane) const {
        return lane == lane_count ? spill_bytes + overflow_bytes : lane_bytes;
    }
    [[nodiscard]] constexpr std::uint64_t schema_offset() const { return page_bytes; }
    [[nodiscard]] constexpr std::uint64_t policy_offset() const { return 2 * page_bytes; }
    [[nodiscard]] constexpr std::uint64_t bells_offset() const { return 3 * page_bytes; }
    // bell 0 is the consumer's, bell 1 + k that of lane k's producer; the last one is the
    // consumer's, too, for its wait for readers of shares
    [[nodiscard]] constexpr std::uint64_t bells_bytes() const {
        return round_up((3 + std::uint64_t{lane_count}) * sizeof(Bell), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t reader_offset() const {
        return bells_offset() + bells_bytes();
    }
    [[nodiscard]] constexpr std::uint64_t stash_offset() const {
        return reader_offset() + sizeof(ReaderControl);
    }
    [[nodiscard]] constexpr std::uint64_t shares_offset() const {
        return stash_offset() + sizeof(StashPage);
    }
    [[nodiscard]] constexpr std::uint64_t entries_offset() const {
        return shares_offset() + sizeof(SharePage);
    }
    [[nodiscard]] constexpr std::uint64_t journal_offset() const {
        return entries_offset() + (lane_count + 1) * sizeof(ReaderEntry);
    }
    [[nodiscard]] constexpr std::uint64_t owners_offset() const {
        return round_up(journal_offset() + journal_records * sizeof(JournalEntry), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t owner_offset(std::uint32_t lane) const {
        return owners_offset() + lane * page_bytes;
    }
    [[nodiscard]] constexpr std::uint64_t lanes_offset() const {
        return owners_offset() + (std::uint64_t{lane_count} + 1) * page_bytes;
    }
    // everything below is reserved at creation; a lane when a producer takes it
    [[nodiscard]] constexpr std::uint64_t fixed_bytes() const { return lanes_offset(); }
    [[nodiscard]] constexpr std::uint64_t bits_bytes(std::uint32_t lane) const {
        return round_up(capacity(lane) / line_bytes / 8, page_bytes);
    }
    // of a lane's bits and data together
    [[nodiscard]] constexpr std::uint64_t stride(std::uint32_t lane) const {
        return bits_bytes(lane) + capacity(lane);
    }
    [[nodiscard]] constexpr std::uint64_t bits_offset(std::uint32_t lane) const {
        return lanes_offset() + lane * stride(0);
    }
    [[nodiscard]] constexpr std::uint64_t data_offset(std::uint32_t lane) const {
        return bits_offset(lane) + bits_bytes(lane);
    }
    [[nodiscard]] constexpr std::uint64_t board_offset() const {
        return bits_offset(lane_count) + stride(lane_count);
    }
    [[nodiscard]] constexpr std::uint64_t keys_offset() const {
        return board_offset() + round_up(group_rows * sizeof(GroupRow), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t key_count() const {
        return std::bit_ceil(std::uint64_t{group_rows} * 2);
    }
    [[nodiscard]] constexpr std::uint64_t tombstones_offset() const {
        return keys_offset() + round_up(key_count() * sizeof(std::uint64_t), page_bytes);
    }
    // The default bound. Each producer may exceed the bound by one group: rows are kept for those.
    [[nodiscard]] constexpr std::uint64_t open_groups_most() const {
        return group_rows > 2 * lane_count ? group_rows - lane_count : group_rows;
    }
    [[nodiscard]] constexpr std::uint64_t tombstone_count() const { return key_count(); }
    [[nodiscard]] constexpr std::uint64_t share_seats_offset() const {
        return tombstones_offset() + round_up(tombstone_count() * sizeof(Tombstone), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t share_seats_bytes() const {
        return round_up(share_seats * sizeof(ShareSeat), page_bytes);
    }
    // of groups, their keys and tombstones together: a trainer reserves them at first
    [[nodiscard]] constexpr std::uint64_t board_bytes() const {
        return share_seats_offset() - board_offset();
    }
    // that lanes and a trainer reserve at least, once all lanes are in use
    [[nodiscard]] constexpr std::uint64_t taken_bytes() const {
        return board_bytes() + lane_count * stride(0) + std::min(lane_bytes, spill_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t segment_bytes() const {
        return share_seats_offset() + share_seats_bytes();
    }
};

}  // namespace rollring
