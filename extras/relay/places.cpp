#include "places.hpp"

#include <algorithm>

namespace rollring::relay {

std::vector<Places::Place> Places::recover(std::uint64_t end) {
    std::vector<Place> places;
    for (std::uint32_t number = most; number-- > 0;) {
        Slot& slot = (*slots_)[number];
        const std::uint64_t sent_to = slot.sent_to.load();
        if (slot.taken.load() == 0 || (sent_to != 0 && sent_to - 1 < end)) {
            let_go(number);
            continue;
        }
        slot.sent_to.store(0);
        const GroupKey key{slot.key_low, slot.key_high};
        if (!found_.emplace(key, number).second) {
            let_go(number);
            continue;
        }
        places.push_back(
            {key, {static_cast<std::uint32_t>(slot.group_size), slot.record_bytes}, slot.worker});
    }
    return places;
}

void Places::add(const Place& place) {
    const std::uint32_t number = free_.back();
    free_.pop_back();
    Slot& slot = (*slots_)[number];
    slot.key_low = place.key.low;
    slot.key_high = place.key.high;
    slot.record_bytes = place.plan.record_bytes;
    slot.group_size = place.plan.group_size;
    slot.worker = place.worker;
    slot.sent_to.store(0);
    slot.taken.store(1);
    found_[place.key] = number;
}

// If the process dies between these stores, the worker keeps a place of a group that will never
// come; the place is returned when the worker goes.
void Places::pass(const GroupKey& from, const GroupKey& to, std::uint64_t worker) {
    auto moved = found_.extract(from);
    if (moved.empty()) return;
    Slot& slot = (*slots_)[moved.mapped()];
    slot.worker = worker;
    slot.key_low = to.low;
    slot.key_high = to.high;
    moved.key() = to;
    found_.insert(std::move(moved));
}

void Places::note_sent(const GroupKey& key, std::uint64_t to) {
    const auto found = found_.find(key);
    if (found == found_.end()) return;
    (*slots_)[found->second].sent_to.store(to + 1);
    sent_.push_back(found->second);
    found_.erase(found);
}

void Places::settle() {
    for (const std::uint32_t number : sent_) let_go(number);
    sent_.clear();
}

void Places::remove(const GroupKey& key) {
    const auto found = found_.find(key);
    if (found == found_.end()) return;
    let_go(found->second);
    found_.erase(found);
}

std::vector<GroupKey> Places::of(std::uint64_t worker) const {
    std::vector<GroupKey> keys;
    for (const auto& [key, slot] : found_) {
        if ((*slots_)[slot].worker == worker) keys.push_back(key);
    }
    return keys;
}

std::vector<std::uint64_t> Places::workers() const {
    std::vector<std::uint64_t> workers;
    for (const auto& [key, slot] : found_) {
        if ((*slots_)[slot].worker != nobody) workers.push_back((*slots_)[slot].worker);
    }
    std::ranges::sort(workers);
    const auto twice = std::ranges::unique(workers);
    workers.erase(twice.begin(), twice.end());
    return workers;
}

void Places::let_go(std::uint32_t number) {
    (*slots_)[number].taken.store(0);
    free_.push_back(number);
}

}  // namespace rollring::relay
