#pragma once
// The damage of a lane: its kind, whether an earlier producer caused it, and the word that our page
// has of it.

#include <string>
#include <utility>

#include "layout.hpp"
#include "ring_map.hpp"

namespace rollring {

class LaneDamage {
  public:
    explicit LaneDamage(ReaderEntry& entry) : entry_(&entry) {}

    // Takes over the damage that a predecessor found in this epoch.
    void recover() { found_ = static_cast<Quarantine>(observe(entry_->quarantine)); }
    [[nodiscard]] Quarantine found() const { return found_; }

    // The lane is silent until its producer is gone.
    void quarantine(Quarantine reason, std::string why) {
        quarantined_ = true;
        of_earlier_ = false;
        problem_ = std::move(why);
        store_release(entry_->quarantine, static_cast<std::uint32_t>(reason));
    }
    // The lane is silent until every delivered record is released.
    void block(std::string why) {
        blocked_ = true;
        problem_ = std::move(why);
    }
    void unblock() { blocked_ = false; }
    // One or more records were given up. `of_earlier`: the damage is from a producer before the
    // present one.
    void torn(bool of_earlier, std::string why) {
        of_earlier_ = of_earlier;
        problem_ = std::move(why);
        add(entry_->torn, std::uint64_t{1});
    }
    // The lane starts over without damage.
    void heal() {
        store_release(entry_->quarantine, static_cast<std::uint32_t>(Quarantine::none));
        quarantined_ = false;
        found_ = Quarantine::none;
    }
    void forget_problem() { problem_.clear(); }
    void show_again() const {
        if (quarantined_ || found_ != Quarantine::none) return;
        keep(entry_->quarantine, static_cast<std::uint32_t>(Quarantine::none));
    }

    [[nodiscard]] bool quarantined() const { return quarantined_; }
    [[nodiscard]] bool blocked() const { return blocked_; }
    [[nodiscard]] bool of_earlier() const { return of_earlier_; }
    [[nodiscard]] const std::string& problem() const { return problem_; }

  private:
    ReaderEntry* entry_;
    bool quarantined_ = false;
    bool blocked_ = false;
    bool of_earlier_ = false;
    Quarantine found_ = Quarantine::none;
    std::string problem_;
};

}  // namespace rollring
