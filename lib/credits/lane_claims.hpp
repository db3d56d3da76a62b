#pragma once
// The announcements and claims of a lane's producers for groups, as far as their records were read,
// and the part that producers are told of.

#include <cstdint>
#include <deque>

#include "layout.hpp"
#include "ring_map.hpp"

namespace rollring {

class LaneClaims {
  public:
    explicit LaneClaims(ReaderEntry& entry)
        : entry_(&entry),
          read_{peek(entry.groups_arrived), peek(entry.lines_arrived)},
          told_(read_) {}

    // A record delivered `again` was counted before. For new records the producer's numbers count:
    // the start in our entry may have been overwritten before it began.
    void read(const Frame& frame, bool again) {
        const auto more = static_cast<std::int32_t>(frame.groups_opened -
                                                    static_cast<std::uint32_t>(read_.groups));
        if (more <= 0 && again) return;
        read_.groups += static_cast<std::uint64_t>(std::int64_t{more});
        read_.lines = frame.lines_claimed;
    }
    [[nodiscard]] bool groups_are_told() const { return told_.groups == read_.groups; }
    // Called once the records read are counted as open.
    void tell() { tell(read_); }

    // For an owner that reports numbers when records are released: the latest ones came with
    // the record at `position`.
    void note(std::uint64_t position) {
        const Amount& last = noted_.empty() ? told_ : noted_.back().amount;
        if (last != read_) noted_.push_back({position, read_});
    }
    // Reports the numbers of records below this position.
    void tell_below(std::uint64_t position) {
        while (!noted_.empty() && noted_.front().position < position) {
            tell(noted_.front().amount);
            noted_.pop_front();
        }
    }

    // For such an owner: a noted number is not reported yet.
    [[nodiscard]] bool await_release() const { return !noted_.empty(); }

    // The producer is gone: groups that it announced and never sent are not awaited.
    void write_off(const LaneOwner& owner) {
        noted_.clear();
        told_ = read_ = {peek(owner.groups_opened), peek(owner.lines_claimed)};
        poke(entry_->lines_arrived, told_.lines);
        poke(entry_->groups_arrived, told_.groups);
    }
    void show_again() const {
        keep(entry_->lines_arrived, told_.lines);
        keep(entry_->groups_arrived, told_.groups);
    }

  private:
    struct Amount {
        std::uint64_t groups;
        std::uint32_t lines;
        friend bool operator==(const Amount&, const Amount&) = default;
    };
    struct Noted {
        std::uint64_t position;
        Amount amount;
    };

    void tell(const Amount& amount) {
        if (told_ == amount) return;
        told_ = amount;
        store_release(entry_->lines_arrived, told_.lines);
        store_release(entry_->groups_arrived, told_.groups);
    }

    ReaderEntry* entry_;
    Amount read_;
    Amount told_;
    std::deque<Noted> noted_;
};

}  // namespace rollring
