#include "spare_places.hpp"
#include "rollring/relay.hpp"

#include <algorithm>
#include <random>

namespace rollring::relay {
namespace {

// Equals a group's key only by a hash collision.
constexpr std::uint64_t stand_in_mark = 0x7370617265706c63;

std::uint64_t random_number() {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
}

}  // namespace

SparePlaces::SparePlaces(Producer& producer, Places& places)
    : producer_(&producer), places_(&places), serial_(random_number()) {}

void SparePlaces::inherit(const GroupKey& stand_in) {
    stand_ins_.push_back(stand_in);
    wanted_ = stand_ins_.size();
}

void SparePlaces::settle() {
    while (stand_ins_.size() > wanted_) {
        static_cast<void>(producer_->cancel_group(stand_ins_.back()));
        places_->remove(stand_ins_.back());
        stand_ins_.pop_back();
    }
    const GroupPlan plan{group_size_, 0};
    while (stand_ins_.size() < wanted_ && !places_->is_full()) {
        const GroupKey key{serial_, stand_in_mark};
        if (!RelayProducer::take_spare_place(*producer_, key, plan)) return;
        serial_++;
        places_->add({key, plan, Places::nobody});
        stand_ins_.push_back(key);
    }
}

void SparePlaces::pass(const GroupKey& key, std::uint32_t group_size, std::uint64_t worker) {
    group_size_ = std::max(group_size_, group_size);
    if (stand_ins_.empty() || !RelayProducer::pass_place(*producer_, stand_ins_.back(), key))
        return;
    places_->pass(stand_ins_.back(), key, worker);
    stand_ins_.pop_back();
}

std::uint64_t SparePlaces::count() const {
    return RelayProducer::places(*producer_) == RelayProducer::Places::not_asked_for
               ? wanted_
               : stand_ins_.size();
}

}  // namespace rollring::relay
