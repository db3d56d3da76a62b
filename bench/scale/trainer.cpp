#include "trainer.hpp"

#include <algorithm>
#include <utility>

namespace bench::scale {
namespace {

// Records that arrive within a moment are looked at together: a hundredth of a step, and at least
// this time. With thousands of lanes it is looks that a simulated run takes its time for.
constexpr std::int64_t moment_least_ns = 50'000'000;
constexpr std::int64_t look_again_ns = 250'000'000;  // as Stash::next does, if nothing comes

}  // namespace

void Trainer::turn(bool busy) {
    if (busy_ || fleet_->settings->plant != Plant::idle) {
        (busy_ ? busy_ns_ : idle_ns_) += clock_ns - since_ns_;
    }
    since_ns_ = clock_ns;
    busy_ = busy;
}

void Trainer::came() {
    if (busy_ || looks_) return;
    looks_ = true;
    const std::int64_t step_ns = steps_.empty() ? 0 : steps_.back().end_ns - steps_.back().begin_ns;
    const std::int64_t moment_ns = std::clamp(step_ns / 100, moment_least_ns, look_again_ns);
    fleet_->events->at(clock_ns + moment_ns, [this] {
        looks_ = false;
        look();
    });
}

void Trainer::start() {
    if (clock_ns - looked_ns_ >= look_again_ns) look();
    fleet_->events->at(clock_ns + look_again_ns, [this] { start(); });
}

void Trainer::look() {
    looked_ns_ = clock_ns;
    if (busy_) return;
    bool all = true;
    for (const auto& receiver : fleet_->receivers) {
        TrainerRing& ring = receiver->ring();
        if (!ring.leased()) {
            all &= ring.next();
            receiver->try_again();
        }
    }
    if (!all) return;
    turn(true);
    std::vector<std::vector<std::uint32_t>> batches;
    Step step{.begin_ns = clock_ns};
    for (const auto& receiver : fleet_->receivers) {
        batches.push_back(receiver->ring().batch());
        step.records += batches.back().size();
        for (const std::uint32_t number : batches.back()) {
            step.tokens += (*fleet_->rollouts)[number].tokens;
        }
    }
    step.end_ns =
        clock_ns + static_cast<std::int64_t>(static_cast<double>(step.tokens) * train_ns_);
    steps_.push_back(step);
    fleet_->events->at(step.end_ns, [this, batches = std::move(batches)] { finish(batches); });
}

void Trainer::finish(const std::vector<std::vector<std::uint32_t>>& batches) {
    turn(false);
    for (std::size_t i = 0; i < batches.size(); i++) {
        Receiver& receiver = *fleet_->receivers[i];
        for (const std::uint32_t number : batches[i]) {
            if ((*fleet_->rollouts)[number].place != Place::ring) surprises_++;
            fleet_->rollouts->move(number, Place::trained);
            receiver.trained(fleet_->rollouts->bytes(number));
            trained_(number);
        }
        receiver.ring().ack(static_cast<std::int64_t>(steps_.size()));
        receiver.try_again();
    }
    look();
}

}  // namespace bench::scale
