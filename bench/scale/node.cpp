#include "node.hpp"

#include <algorithm>
#include <utility>

namespace bench::scale {

// --- forwarder -----------------------------------------------------------------------------------

void Forwarder::add(std::uint32_t rollout) {
    waiting_.push_back(rollout);
    look();
}

// While others are under way a parcel waits for more.
void Forwarder::look() {
    const std::uint64_t window =
        std::max<std::uint64_t>(1, fleet_->settings->object_store_bytes / fleet_->settings->nodes);
    if (dead_ || collecting_ || waiting_.empty() || flying_bytes_ >= window) return;
    collecting_ = true;
    const double linger_us = flying_bytes_ > 0 ? fleet_->settings->linger_us : 0;
    fleet_->events->after_us(linger_us, [this] { collect(); });
}

void Forwarder::collect() {
    if (dead_) return;
    Parcel& parcel = *parcels_.emplace_back(std::make_unique<Parcel>());
    parcel.node = node_;
    parcel.ring = ring_;
    while (!waiting_.empty()) {
        const std::uint64_t bytes = fleet_->rollouts->bytes(waiting_.front());
        if (parcel.bytes != 0 && parcel.bytes + bytes > fleet_->settings->parcel_bytes) break;
        parcel.bytes += bytes;
        parcel.rollouts.push_back(waiting_.front());
        waiting_.pop_front();
    }
    parcel.left = parcel.rollouts.size();
    flying_bytes_ += parcel.bytes;
    fleet_->events->at(process.done_ns(fleet_->settings->forward_us * 1e-6), [this, &parcel] {
        collecting_ = false;
        send(parcel);
        look();
    });
}

// Out of this node, and then into the other one, whose link all share.
void Forwarder::send(Parcel& parcel) {
    if (dead_) return;
    const double seconds =
        static_cast<double>(parcel.bytes) * 8 / (fleet_->settings->link_gbit * 1e9);
    fleet_->events->at(link_->done_ns(seconds), [this, &parcel, seconds] {
        if (dead_) return;
        Receiver& receiver = *fleet_->receivers[ring_];
        const std::int64_t there_ns = receiver.link.done_ns(seconds);
        const double half_us = fleet_->settings->round_trip_us / 2;
        fleet_->events->at(there_ns + ns_of(half_us * 1e-6),
                           [&receiver, &parcel] { receiver.take(parcel); });
    });
}

void Forwarder::arrived(const Parcel& parcel) {
    flying_bytes_ -= parcel.bytes;
    while (!parcels_.empty() && parcels_.front()->left == 0 && parcels_.front().get() != &parcel) {
        parcels_.pop_front();
    }
    look();
}

// --- node ----------------------------------------------------------------------------------------

Node::Node(Fleet& fleet, std::uint32_t number)
    : fleet_(&fleet), number_(number), workers_(fleet.settings->workers) {
    for (std::uint32_t ring = 0; ring < fleet.settings->rings; ring++) {
        forwarders_.push_back(std::make_unique<Forwarder>(fleet, number, ring, link));
    }
    for (std::uint32_t worker = 0; worker < workers_.size(); worker++) idle_.push_back(worker);
}

void Node::set(Worker& worker, State state) {
    count(worker, times_);
    worker.state = state;
    worker.since_ns = clock_ns;
}

void Node::count(const Worker& worker, WorkerTimes& times) const {
    const std::int64_t ns = clock_ns - worker.since_ns;
    switch (worker.state) {
        case State::idle:
            times.place_ns += ns;
            break;
        case State::works:
            times.works_ns += ns;
            break;
        case State::asks:
        case State::blocked:
            times.room_ns += ns;
            break;
    }
}

WorkerTimes Node::times() const {
    WorkerTimes times = times_;
    if (!alive_) return times;
    for (const Worker& worker : workers_) count(worker, times);
    return times;
}

void Node::look() {
    if (!alive_) return;
    while (!idle_.empty() && !(tasks_.empty() && fleet_->rollouts_again.empty())) {
        const std::uint32_t worker = idle_.back();
        idle_.pop_back();
        begin(worker);
    }
    open_groups();
}

// What was lost goes first.
void Node::begin(std::uint32_t worker) {
    std::deque<std::uint32_t>& from =
        fleet_->rollouts_again.empty() ? tasks_ : fleet_->rollouts_again;
    const std::uint32_t number = from.front();
    from.pop_front();
    Rollout& rollout = (*fleet_->rollouts)[number];
    rollout.node = number_;
    rollout.worker = static_cast<std::uint16_t>(worker);
    fleet_->rollouts->move(number, Place::worker);
    set(workers_[worker], State::works);
    const double seconds = rollout.tokens / fleet_->settings->tokens_per_s;
    fleet_->events->at(clock_ns + ns_of(seconds),
                       [this, worker, number] { finished(worker, number); });
}

// As many groups as there are workers for, a place for each before anything is generated.
void Node::open_groups() {
    while (idle_.size() > std::size_t{opening_} * fleet_->settings->group_size) {
        std::uint32_t group = 0;
        if (fleet_->groups_again.empty()) {
            group = fleet_->rollouts->new_group();
        } else {
            group = fleet_->groups_again.front();
            fleet_->groups_again.pop_front();
        }
        opening_++;
        fleet_->rollouts->group(group).node = number_;
        Receiver& receiver = *fleet_->receivers[fleet_->rollouts->ring_of(group)];
        receiver.ask(number_, group, [this, group] { opened(group); });
    }
}

void Node::opened(std::uint32_t group) {
    if (!alive_) return;
    opening_--;
    const std::uint32_t first = fleet_->rollouts->first_of(group);
    for (std::uint32_t i = 0; i < fleet_->settings->group_size; i++) tasks_.push_back(first + i);
    look();
}

// Each worker asks for the group that it sends to, unless it was the one that opened it.
void Node::finished(std::uint32_t worker, std::uint32_t number) {
    if (!alive_) return;
    const std::uint32_t group = fleet_->rollouts->group_of(number);
    if (number == fleet_->rollouts->first_of(group)) return push(worker, number);
    set(workers_[worker], State::asks);
    fleet_->receivers[fleet_->rollouts->ring_of(group)]->ask_again(
        [this, worker, number] { push(worker, number); });
}

void Node::push(std::uint32_t worker, std::uint32_t number) {
    if (!alive_) return;
    Worker& one = workers_[worker];
    const std::uint64_t bytes = fleet_->rollouts->bytes(number);
    if (one.lane_bytes != 0 && one.lane_bytes + bytes > fleet_->settings->lane_bytes) {
        one.blocked = number;
        return set(one, State::blocked);
    }
    one.lane_bytes += bytes;
    bytes_ += bytes;
    bytes_most_ = std::max(bytes_most_, bytes_);
    fleet_->rollouts->move(number, Place::node);
    set(one, State::idle);
    idle_.push_back(worker);
    forwarders_[fleet_->rollouts->ring_of(fleet_->rollouts->group_of(number))]->add(number);
    look();
}

void Node::arrived(const Parcel& parcel) {
    if (!alive_) return;
    for (const std::uint32_t number : parcel.rollouts) {
        const std::uint64_t bytes = fleet_->rollouts->bytes(number);
        const std::uint32_t worker = (*fleet_->rollouts)[number].worker;
        workers_[worker].lane_bytes -= bytes;
        bytes_ -= bytes;
        if (workers_[worker].state == State::blocked) push(worker, workers_[worker].blocked);
    }
    forwarders_[parcel.ring]->arrived(parcel);
}

void Node::die() {
    times_ = times();
    alive_ = false;
    for (const auto& forwarder : forwarders_) forwarder->die();
}

void Node::forget() {
    link.forget();
    for (const auto& forwarder : forwarders_) forwarder->process.forget();
}

}  // namespace bench::scale
