#pragma once
// `consume --hold K`: late release, out of order.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cli/formats/random.hpp"
#include "rollring/consumer.hpp"

namespace rollring::cli {

// Releases each record about K records later, in an order drawn from a seed: for each record of a
// block that arrives, one of the previous block is released.
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
