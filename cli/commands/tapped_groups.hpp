#pragma once
// Groups of the records that a tap has read, from their first record until they are complete.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "rollring/tap.hpp"

namespace rollring::cli {

struct TappedGroup {
    std::uint32_t size;                          // members that were asked for
    std::vector<const TrajectoryView*> records;  // without the marks of failed members
};

class TappedGroups {
  public:
    // `size`: of groups whose records do not say it. `bytes`: of incomplete groups; the oldest ones
    // are given up beyond that.
    TappedGroups(std::uint32_t size, std::uint64_t bytes) : size_(size), bytes_max_(bytes) {}

    // The record's group if it is complete with it; it is valid until the next call. A group
    // completes once: late records and copies are passed over.
    std::optional<TappedGroup> add(const TapRecord& record);

    [[nodiscard]] std::size_t open() const { return groups_.size(); }
    [[nodiscard]] std::uint64_t given_up() const { return given_up_; }

  private:
    using Key = std::pair<std::uint64_t, std::uint64_t>;
    struct Free {
        void operator()(std::byte* memory) const {
            ::operator delete(memory, std::align_val_t{64});
        }
    };
    struct Record {
        std::unique_ptr<std::byte, Free> memory;
        std::uint64_t bytes;
        TrajectoryView view;
    };
    struct Group {
        std::uint32_t size = 0;
        std::uint64_t bytes = 0;
        // By repetition and subsequence; of several attempts the highest.
        std::map<std::pair<std::uint64_t, std::uint16_t>, Record> records = {};
    };
    void take(Group& group, const TapRecord& record);
    void give_up_oldest();
    [[nodiscard]] static std::uint32_t complete_members(const Group& group);

    static constexpr std::size_t over_max = 1 << 17;

    std::uint32_t size_;
    std::uint64_t bytes_max_;
    std::uint64_t bytes_ = 0;
    std::uint64_t given_up_ = 0;
    std::map<Key, Group> groups_;
    std::deque<Key> order_;  // by their first record; some of them are over
    std::set<Key> over_;
    std::deque<Key> over_order_;
    Group last_;
};

}  // namespace rollring::cli
