#pragma once
// Groups of the records that a tap has read, from their first record until they are complete. They
// end as those of a stash with default options do: each member is of one sender and one attempt, a
// failed member is final and is not passed on, and a late record opens no group again.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "rollring/tap.hpp"

namespace rollring::cli {

struct TappedGroup {
    std::uint32_t size;                          // members that were asked for
    std::vector<const TrajectoryView*> records;  // of its complete members that did not fail
};

class TappedGroups {
  public:
    // `size`: of groups whose records do not say it. `bytes`: of incomplete groups; the oldest ones
    // are given up beyond that.
    TappedGroups(std::uint32_t size, std::uint64_t bytes) : size_(size), bytes_max_(bytes) {}

    // The record's group if it is complete with it; it is valid until the next call.
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
    // One attempt of a member, of one sender.
    struct Member {
        std::uint32_t attempt = 0;
        bool failed = false;
        std::map<std::uint16_t, Record> records = {};  // by subsequence

        [[nodiscard]] bool whole() const;
        [[nodiscard]] bool final() const { return failed || whole(); }
    };
    // Its repetition, and its sender: lane and epoch. A record without a repetition ID is a member
    // of its own.
    using Place = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;
    struct Group {
        std::uint32_t size = 0;
        std::uint64_t bytes = 0;
        std::uint64_t unnumbered = 0;
        std::map<Place, Member> members = {};

        // Of each repetition, the first sender's member that is final.
        [[nodiscard]] std::vector<const Member*> final_members() const;
    };
    void take(Group& group, const TapRecord& record);
    void drop_records(Group& group, Member& member);
    void give_up_oldest();
    void remember(const Key& key);

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
