#pragma once
// Finds producers that repeat earlier records too often for an accident. One thread at a time.

#include <cstdint>
#include <map>
#include <utility>

#include "rollring/stash.hpp"

namespace rollring {

class RepeatWatch {
  public:
    using Producer = std::pair<std::uint32_t, std::uint32_t>;  // lane, epoch

    struct Counts {
        std::uint64_t duplicate = 0;
        std::uint64_t late = 0;
        std::uint64_t records = 0;  // all records of the producer; known when it has ended
        std::string name;           // likewise
        [[nodiscard]] bool suspect(std::uint64_t of_records) const {
            // If two collide all the time, each loses half, or one more and the other less.
            return duplicate + late >= least && (duplicate + late) * 3 >= of_records;
        }
    };

    void dropped(Producer producer, DropReason reason) {
        if (reason != DropReason::duplicate && reason != DropReason::late) return;
        if (counts_.size() >= producers_max && !counts_.contains(producer)) return;
        Counts& counts = counts_[producer];
        (reason == DropReason::late ? counts.late : counts.duplicate)++;
    }
    // Keeps the counts of an ended producer only if they are suspect.
    void ended(Producer producer, const std::string& name, std::uint64_t records) {
        const auto found = counts_.find(producer);
        if (found == counts_.end()) return;
        if (!found->second.suspect(records)) {
            counts_.erase(found);
            return;
        }
        found->second.records = records;
        found->second.name = name;
    }
    [[nodiscard]] const std::map<Producer, Counts>& counts() const { return counts_; }

  private:
    static constexpr std::uint64_t least = 4;
    static constexpr std::size_t producers_max = 4096;
    std::map<Producer, Counts> counts_;
};

}  // namespace rollring
