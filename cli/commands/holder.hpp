#pragma once
// Late release, out of order: what `consume --hold K` does to a ring.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cli/formats/random.hpp"
#include "rollring/consumer.hpp"

namespace rollring::cli {

// Releases each record about K records later, in an order drawn from a seed: records come in blocks
// of K; while one block arrives the one before is given back, one for one.
class Holder {
  public:
    Holder(std::uint64_t count, std::uint64_t seed) : count_(count), random_(seed) {}

    // Takes a record in; returns the one to release instead, if it is time for one.
    std::optional<RecordRef> exchange(const RecordRef& record) {
        if (count_ == 0) return record;
        std::optional<RecordRef> due;
        if (!leaving_.empty()) {
            due = leaving_.back();
            leaving_.pop_back();
        }
        arriving_.push_back(record);
        if (arriving_.size() >= count_) {
            leaving_.swap(arriving_);
            shuffle(std::span(leaving_), random_);
        }
        return due;
    }
    std::vector<RecordRef> take_all() {
        leaving_.insert(leaving_.end(), arriving_.begin(), arriving_.end());
        arriving_.clear();
        shuffle(std::span(leaving_), random_);
        return std::move(leaving_);
    }
    [[nodiscard]] std::size_t held() const { return leaving_.size() + arriving_.size(); }

  private:
    std::uint64_t count_;
    Random random_;
    std::vector<RecordRef> arriving_;
    std::vector<RecordRef> leaving_;
};

}  // namespace rollring::cli
