#include "sharing_trainer.hpp"

#include <utility>

namespace rollring::test {
namespace {

constexpr std::size_t leased_most = 3;

}  // namespace

SharingTrainer::SharingTrainer(const RingOptions& options, Dice& dice)
    : dice_(dice), ring_("step-reader", options), next_(options.lanes) {
    promise_.in_order = false;
    for (std::uint32_t i = 0; i < options.lanes; i++) {
        auto producer = Producer::open(ring_.name(), {.spin = {}, .checksum = Checksum::xxh3});
        require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
        producers_.push_back(std::move(*producer));
    }
    auto stash = Stash::open(ring_.name(), pairs(), {.spin = {}});
    require(stash.has_value(), "{}", stash ? "" : stash.error().to_string());
    stash_ = std::move(*stash);
}

std::vector<SharedBatch> SharingTrainer::shared() const {
    std::vector<SharedBatch> all;
    all.reserve(leased_.size());
    for (const Leased& each : leased_) all.push_back(each.shared);
    return all;
}

void SharingTrainer::go_on() {
    push_some();
    while (leased_.size() < leased_most && lease()) {
    }
}

// The second of a pair comes at the next turn, if there is no room for it in this one.
void SharingTrainer::push_some() {
    for (std::uint64_t i = dice_.below(8); i > 0; i--) {
        const std::uint64_t stream = dice_.below(producers_.size());
        const Id id{stream, next_[stream]};
        const Push push = producers_[stream].push(load_.draft(id, true), Deadline::now());
        require(push == Push::ok || push == Push::timed_out, "push: {}", name(push));
        if (push != Push::ok) continue;
        promise_.held.insert(id);
        next_[stream]++;
    }
}

bool SharingTrainer::lease() {
    Leased made;
    if (stash_->next(made.batch, Deadline::now()) != NextBatch::batch) return false;
    const auto ticket = made.batch.ticket();
    require(ticket.has_value(), "{}", ticket ? "" : ticket.error().to_string());
    made.shared = {number_of(*ticket), *ticket, verified(made.batch)};
    for (const Id& id : made.shared.ids) {
        require(promise_.held.contains(id), "record {}/{} was acknowledged, and comes again",
                id.first, id.second);
        for (const Leased& other : leased_) {
            require(!other.shared.ids.contains(id), "record {}/{} is leased twice", id.first,
                    id.second);
        }
        promise_.delivered.insert(id);
    }
    leased_.push_back(std::move(made));
    return true;
}

bool SharingTrainer::acknowledge(Leased& leased) {
    const auto acked = leased.batch.ack(step_ + 1, Deadline::now());
    if (!acked) {
        require(acked.error().code == Errc::busy && leased.batch.leased(), "{}",
                acked.error().to_string());
        return false;
    }
    promise_.step = ++step_;
    for (const Id& id : leased.shared.ids) {
        promise_.held.erase(id);
        promise_.delivered.erase(id);
    }
    forget(leased);
    return true;
}

void SharingTrainer::give_back(Leased& leased) {
    leased.batch.nack();
    forget(leased);
}

void SharingTrainer::forget(const Leased& leased) {
    leased_.remove_if([&](const Leased& each) { return &each == &leased; });
}

}  // namespace rollring::test
