#pragma once
// What a lane's producers announced and claimed for groups, as far as their records were read, and
// how much of that is told to them.

#include <cstdint>

#include "layout.hpp"
#include "ring_map.hpp"

namespace rollring {

class LaneClaims {
  public:
    explicit LaneClaims(ReaderEntry& entry)
        : entry_(&entry),
          groups_read_(peek(entry.groups_arrived)),
          groups_told_(groups_read_),
          lines_read_(peek(entry.lines_arrived)),
          lines_told_(lines_read_) {}

    // What is delivered `again` was counted before. Of what is new the producer knows best: where
    // it began is what our entry said, which may have been written over by then.
    void read(const Frame& frame, bool again) {
        const auto more = static_cast<std::int32_t>(frame.groups_opened -
                                                    static_cast<std::uint32_t>(groups_read_));
        if (more <= 0 && again) return;
        groups_read_ += static_cast<std::uint64_t>(std::int64_t{more});
        lines_read_ = frame.lines_claimed;
    }
    [[nodiscard]] bool groups_are_told() const { return groups_told_ == groups_read_; }
    // Called when what was read has been counted as open.
    void tell() {
        if (groups_told_ == groups_read_ && lines_told_ == lines_read_) return;
        groups_told_ = groups_read_;
        lines_told_ = lines_read_;
        store_release(entry_->lines_arrived, lines_told_);
        store_release(entry_->groups_arrived, groups_told_);
    }
    // The producer is gone: what it announced and never sent is not awaited.
    void write_off(const LaneOwner& owner) {
        groups_told_ = groups_read_ = peek(owner.groups_opened);
        lines_told_ = lines_read_ = peek(owner.lines_claimed);
        poke(entry_->lines_arrived, lines_read_);
        poke(entry_->groups_arrived, groups_read_);
    }
    void show_again() const {
        keep(entry_->lines_arrived, lines_told_);
        keep(entry_->groups_arrived, groups_told_);
    }

  private:
    ReaderEntry* entry_;
    std::uint64_t groups_read_;
    std::uint64_t groups_told_;
    std::uint32_t lines_read_;
    std::uint32_t lines_told_;
};

}  // namespace rollring
