#pragma once
// Where the structures of layout.hpp lie in a ring.

#include <bit>
#include <cstdint>

#include "layout.hpp"

namespace rollring {

// Where everything lies; a function of the counts alone, so creator and attacher cannot differ.
// "Lane" lane_count is the spill.
struct Geometry {
    std::uint32_t lane_count;
    std::uint32_t journal_records;
    std::uint64_t lane_bytes;
    std::uint64_t soft_bytes;
    std::uint64_t spill_bytes;
    std::uint32_t group_rows;
    std::uint64_t overflow_bytes;

    [[nodiscard]] constexpr std::uint32_t spill_lane() const { return lane_count; }
    [[nodiscard]] constexpr std::uint64_t capacity(std::uint32_t lane) const {
        return lane == lane_count ? spill_bytes + overflow_bytes : lane_bytes;
    }
    [[nodiscard]] constexpr std::uint64_t schema_offset() const { return page_bytes; }
    [[nodiscard]] constexpr std::uint64_t policy_offset() const { return 2 * page_bytes; }
    [[nodiscard]] constexpr std::uint64_t bells_offset() const { return 3 * page_bytes; }
    // bell 0 is the consumer's, bell 1 + k that of lane k's producer
    [[nodiscard]] constexpr std::uint64_t bells_bytes() const {
        return round_up((2 + std::uint64_t{lane_count}) * sizeof(Bell), page_bytes);
    }
    [[nodiscard]] constexpr std::uint64_t reader_offset() const {
        return bells_offset() + bells_bytes();
    }
    [[nodiscard]] constexpr std::uint64_t stash_offset() const {
        return reader_offset() + sizeof(ReaderControl);
    }
    [[nodiscard]] constexpr std::uint64_t entries_offset() const {
        return stash_offset() + sizeof(StashPage);
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
    [[nodiscard]] constexpr std::uint64_t graves_offset() const {
        return keys_offset() + round_up(key_count() * sizeof(std::uint64_t), page_bytes);
    }
    // By default. The bound may be passed by a group per producer: room for those.
    [[nodiscard]] constexpr std::uint64_t open_groups_most() const {
        return group_rows > 2 * lane_count ? group_rows - lane_count : group_rows;
    }
    [[nodiscard]] constexpr std::uint64_t grave_count() const { return key_count(); }
    [[nodiscard]] constexpr std::uint64_t segment_bytes() const {
        return graves_offset() + round_up(grave_count() * sizeof(Grave), page_bytes);
    }
};

}  // namespace rollring
