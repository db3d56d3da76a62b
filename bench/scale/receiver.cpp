#include "receiver.hpp"

#include <algorithm>
#include <utility>

namespace bench::scale {
namespace {

// Nodes that wait for a place try in turn; after this many refusals the rest would be refused, too.
constexpr int refusals_most = 4;

}  // namespace

// NOLINTNEXTLINE(readability-function-size): the parts of one object
Receiver::Receiver(const Settings& settings, std::uint32_t number, std::uint32_t batch_groups,
                   Events& events, Rollouts& rollouts, Hears hears)
    : settings_(&settings),
      number_(number),
      events_(&events),
      rollouts_(&rollouts),
      hears_(std::move(hears)),
      ring_(settings, number, batch_groups),
      lanes_(settings.nodes),
      closed_(settings.nodes),
      wanted_(settings.nodes),
      asked_since_(settings.nodes) {}

void Receiver::ask(std::uint32_t node, std::uint32_t group, Answer answer) {
    const double half_us = settings_->round_trip_us / 2;
    events_->after_us(half_us, [this, node, half_us, one = Asked{node, group, std::move(answer)}] {
        const std::int64_t done_ns = process.done_ns(settings_->ask_us * 1e-6);
        events_->at(done_ns, [this, node, half_us, one] {
            asks_.calls++;
            asked_since_[node]++;
            if (try_ask(one)) return;
            (ring_.room_was_short() ? asks_.refused_room : asks_.refused_places)++;
            if (settings_->plant == Plant::greedy) {
                note_opened();
                return events_->after_us(half_us, one.answer);
            }
            asked_.push_back(one);
        });
    });
}

void Receiver::ask_again(Answer answer) {
    const double half_us = settings_->round_trip_us / 2;
    events_->after_us(half_us, [this, half_us, answer = std::move(answer)] {
        const std::int64_t done_ns = process.done_ns(settings_->ask_us * 1e-6);
        asks_.calls++;
        events_->at(done_ns + ns_of(half_us * 1e-6), answer);
    });
}

bool Receiver::try_ask(const Asked& asked) {
    if (closed_[asked.node]) return true;  // no node waits for the answer
    if (!ring_.ask(asked.node, asked.group)) return false;
    Group& group = rollouts_->group(asked.group);
    if (group.sent == 0 && group.holder == Group::nobody) {
        group.holder = asked.node;
        note_opened();
    }
    events_->after_us(settings_->round_trip_us / 2, asked.answer);
    return true;
}

void Receiver::note_opened() {
    opened_++;
    if (ring_.open_groups() + announced() > ring_.places()) places_exceeded_++;
}

void Receiver::take(Parcel& parcel) {
    const double cost_us =
        settings_->parcel_us + settings_->record_us * static_cast<double>(parcel.rollouts.size());
    waiting_bytes_ += parcel.bytes;
    waiting_bytes_most_ = std::max(waiting_bytes_most_, waiting_bytes_);
    for (const std::uint32_t rollout : parcel.rollouts) {
        rollouts_->move(rollout, Place::receiver);
    }
    events_->at(process.done_ns(cost_us * 1e-6), [this, &parcel] {
        const double seconds = static_cast<double>(parcel.bytes) / (settings_->copy_gb * 1e9);
        events_->at(copies.done_ns(seconds), [this, &parcel] { put(parcel); });
    });
}

void Receiver::put(Parcel& parcel) {
    if (closed_[parcel.node]) {
        waiting_bytes_ -= parcel.bytes;
        return;
    }
    std::deque<Waiting>& lane = lanes_[parcel.node];
    const bool full = !lane.empty();
    wanted_[parcel.node] = parcel.wanted;
    if (parcel.rollouts.empty()) {
        keep_spare(parcel.node);
        return answer(parcel);
    }
    for (const std::uint32_t rollout : parcel.rollouts) lane.push_back({rollout, &parcel});
    if (!full) drain(parcel.node);
    hears_.came();
}

void Receiver::drain(std::uint32_t node) {
    std::deque<Waiting>& lane = lanes_[node];
    std::vector<Parcel*> sent;
    while (!lane.empty()) {
        const auto [rollout, parcel] = lane.front();
        const std::uint64_t bytes = rollouts_->bytes(rollout);
        Group& group = rollouts_->group(rollouts_->group_of(rollout));
        if (ring_.pass_spare(node, rollout)) group.holder = node;
        const bool takes_place = !group.has_place();
        if (!ring_.push(node, rollout, bytes)) {
            full_.push_back(node);
            break;
        }
        if (settings_->plant == Plant::twice && rollout == 0) {
            static_cast<void>(ring_.push(node, rollout, bytes));
        }
        if (takes_place) note_opened();
        lane.pop_front();
        waiting_bytes_ -= bytes;
        ring_bytes_ += bytes;
        ring_bytes_most_ = std::max(ring_bytes_most_, ring_bytes_);
        group.sent++;
        group.holder = Group::nobody;
        rollouts_->move(rollout, Place::ring);
        if (--parcel->left == 0) sent.push_back(parcel);
    }
    keep_spare(node);
    for (Parcel* parcel : sent) answer(*parcel);
}

// As extras/relay/spare_places.cpp does. Nodes that wait for a place are in our queue, where the
// real ring would see them.
void Receiver::keep_spare(std::uint32_t node) {
    while (ring_.spare(node) > wanted_[node]) {
        ring_.give_spare_back(node);
        cancelled_++;
    }
    while (ring_.spare(node) < wanted_[node] && asked_.empty() && ring_.take_spare(node)) {
        note_opened();
    }
}

void Receiver::answer(Parcel& parcel) {
    parcel.spare = {ring_.spare(parcel.node), !asked_.empty() || !ring_.has_plenty(parcel.node),
                    std::exchange(asked_since_[parcel.node], 0)};
    hears_.arrived(parcel);
}

void Receiver::try_again() {
    for (const std::uint32_t node : std::exchange(full_, {})) {
        if (!closed_[node]) drain(node);
    }
    int refused = 0;
    for (std::size_t left = asked_.size(); left > 0 && refused < refusals_most; left--) {
        Asked one = std::move(asked_.front());
        asked_.pop_front();
        if (try_ask(one)) continue;
        refused++;
        asked_.push_back(std::move(one));
    }
}

void Receiver::close(std::uint32_t node) {
    closed_[node] = true;
    wanted_[node] = 0;
    keep_spare(node);
    ring_.close_lane(node);
    for (const Waiting& one : lanes_[node]) waiting_bytes_ -= rollouts_->bytes(one.rollout);
    lanes_[node].clear();
    for (std::uint32_t number = 0; number < rollouts_->groups(); number++) {
        Group& group = rollouts_->group(number);
        if (group.holder != node || rollouts_->ring_of(number) != number_) continue;
        group.holder = Group::nobody;
        cancelled_++;
    }
}

}  // namespace bench::scale
