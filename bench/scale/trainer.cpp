#include "trainer.hpp"

#include <algorithm>
#include <utility>

namespace bench::scale {
namespace {

constexpr double moment_us = 50'000;       // in which what comes is looked at together
constexpr double look_again_us = 250'000;  // as Stash::next_batch does, while nothing comes

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
    fleet_->events->after_us(moment_us, [this] {
        looks_ = false;
        look();
    });
}

void Trainer::start() {
    look();
    fleet_->events->after_us(look_again_us, [this] { start(); });
}

void Trainer::look() {
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
