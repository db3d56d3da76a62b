#pragma once
// The trainer: a rank beside each ring, all of them in step. A step begins when every rank has its
// batch, and takes so long for each token.

#include <cstdint>
#include <functional>
#include <vector>

#include "node.hpp"

namespace bench::scale {

struct Step {
    std::int64_t begin_ns;
    std::int64_t end_ns;
    std::uint64_t tokens;
    std::uint64_t records;
};

class Trainer {
  public:
    // `trained` hears of each rollout with the acknowledgement of its batch.
    Trainer(Fleet& fleet, double train_ns, std::function<void(std::uint32_t)> trained)
        : fleet_(&fleet), train_ns_(train_ns), trained_(std::move(trained)) {}

    // Something may have come. It is looked at within a moment, and only while it waits.
    void came();
    // Looks again and again, also where nothing comes.
    void start();
    [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
    [[nodiscard]] std::int64_t busy_ns() const {
        return busy_ns_ + (busy_ ? clock_ns - since_ns_ : 0);
    }
    [[nodiscard]] std::int64_t idle_ns() const {
        return idle_ns_ + (busy_ ? 0 : clock_ns - since_ns_);
    }
    // Rollouts that were in a batch, and had not been in a ring, or were so before.
    [[nodiscard]] std::uint64_t surprises() const { return surprises_; }

  private:
    void look();
    void finish(const std::vector<std::vector<std::uint32_t>>& batches);
    void turn(bool busy);

    Fleet* fleet_;
    double train_ns_;
    std::function<void(std::uint32_t)> trained_;
    std::vector<Step> steps_;
    std::int64_t since_ns_ = clock_begin_ns;
    std::int64_t looked_ns_ = 0;
    std::int64_t busy_ns_ = 0;
    std::int64_t idle_ns_ = 0;
    std::uint64_t surprises_ = 0;
    bool busy_ = false;
    bool looks_ = false;
};

}  // namespace bench::scale
