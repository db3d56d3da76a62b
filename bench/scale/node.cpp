#include "node.hpp"

#include <algorithm>
#include <utility>

namespace bench::scale {
namespace {

constexpr double wait_us = 50'000;  // WAIT_S of python/rollring/integrations/ray/_forwarder.py

}  // namespace

// --- forwarder -----------------------------------------------------------------------------------

void Forwarder::add(std::uint32_t rollout) {
    waiting_.push_back(rollout);
    waiting_bytes_ += fleet_->rollouts->bytes(rollout);
    look();
}

bool Forwarder::may_collect() const {
    const std::uint64_t window =
        std::max<std::uint64_t>(1, fleet_->settings->object_store_bytes / fleet_->settings->nodes);
    return !dead_ && !collecting_ && !waiting_.empty() && flying_bytes_ < window;
}

// As Carrier._linger(): where two parcels are under way a short one waits for an answer.
double Forwarder::linger_us() const {
    if (flying_ == 0 || waiting_bytes_ >= fleet_->settings->parcel_bytes) return 0;
    return flying_ == 1 ? fleet_->settings->linger_us : wait_us;
}

void Forwarder::look() {
    if (!may_collect()) return;
    const double linger = linger_us();
    if (linger == 0) return collect();
    if (lingers_) return;
    lingers_ = true;
    fleet_->events->after_us(linger, [this, turn = turn_] {
        if (turn == turn_ && may_collect()) collect();
    });
}

void Forwarder::collect() {
    auto parcel = std::make_unique<Parcel>();
    while (!waiting_.empty()) {
        const std::uint64_t bytes = fleet_->rollouts->bytes(waiting_.front());
        if (parcel->bytes != 0 && parcel->bytes + bytes > fleet_->settings->parcel_bytes) break;
        parcel->bytes += bytes;
        parcel->rollouts.push_back(waiting_.front());
        waiting_.pop_front();
    }
    waiting_bytes_ -= parcel->bytes;
    ship(std::move(parcel));
}

void Forwarder::ship(std::unique_ptr<Parcel> made) {
    Parcel& parcel = *parcels_.emplace_back(std::move(made));
    turn_++;
    lingers_ = false;
    collecting_ = true;
    demand_.sent(clock_ns, parcel.rollouts.size());
    parcel.node = node_;
    parcel.ring = ring_;
    parcel.left = parcel.rollouts.size();
    parcel.wanted = want();
    flying_bytes_ += parcel.bytes;
    flying_++;
    fleet_->events->at(process.done_ns(fleet_->settings->forward_us * 1e-6), [this, &parcel] {
        collecting_ = false;
        send(parcel);
        look();
    });
}

// --- places in advance, as Carrier of python/rollring/integrations/ray/_forwarder.py has them

bool Forwarder::take_spare(std::uint32_t rollout) {
    if (taken_ >= bound_) return false;
    taken_++;
    (*fleet_->rollouts)[rollout].in_advance = true;
    return true;
}

void Forwarder::note(const Spare& spare) {
    spare_ = spare;
    demand_.answered(spare.asked, spare.is_short);
    bound_ = std::min(spare.places, wanted_);
}

void Forwarder::release(std::uint32_t rollout) {
    if (std::exchange((*fleet_->rollouts)[rollout].in_advance, false)) taken_--;
}

std::uint32_t Forwarder::want() {
    wanted_ = demand_.places(clock_ns);
    if (wanted_ < spare_.places) {
        bound_ = wanted_;
        wanted_ = std::max(wanted_, taken_);
    }
    return wanted_;
}

void Forwarder::watch_spare() {
    if (dead_ || watches_ || spare_.places == 0) return;
    watches_ = true;
    fleet_->events->after_us(wait_us, [this] {
        watches_ = false;
        give_back();
        watch_spare();
    });
}

void Forwarder::give_back() {
    if (dead_ || gives_back_ || collecting_ || !waiting_.empty()) return;
    if (spare_.places <= want()) return;
    gives_back_ = true;
    ship(std::make_unique<Parcel>());
}

// --- under way

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

// An answer ends the wait for more.
void Forwarder::arrived(const Parcel& parcel) {
    flying_bytes_ -= parcel.bytes;
    flying_--;
    if (parcel.rollouts.empty()) gives_back_ = false;
    while (!parcels_.empty() && parcels_.front()->left == 0 && parcels_.front().get() != &parcel) {
        parcels_.pop_front();
    }
    if (lingers_ && may_collect()) collect();
    look();
    watch_spare();
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

// Lost rollouts go first.
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
        const std::uint32_t ring = fleet_->rollouts->ring_of(group);
        if (forwarders_[ring]->take_spare(fleet_->rollouts->first_of(group))) {
            opened(group);
            continue;
        }
        Receiver& receiver = *fleet_->receivers[ring];
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
    const std::uint32_t ring = fleet_->rollouts->ring_of(group);
    if (number == fleet_->rollouts->first_of(group) || forwarders_[ring]->take_spare(number)) {
        return push(worker, number);
    }
    set(workers_[worker], State::asks);
    const auto answer = [this, worker, number] { push(worker, number); };
    // One of which nothing has arrived may have no place but in advance, for another worker.
    if (fleet_->rollouts->group(group).has_place()) {
        fleet_->receivers[ring]->ask_again(answer);
    } else {
        fleet_->receivers[ring]->ask(number_, group, answer);
    }
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
    forwarders_[parcel.ring]->note(parcel.spare);
    for (const std::uint32_t number : parcel.rollouts) {
        const std::uint64_t bytes = fleet_->rollouts->bytes(number);
        const std::uint32_t worker = (*fleet_->rollouts)[number].worker;
        workers_[worker].lane_bytes -= bytes;
        bytes_ -= bytes;
        forwarders_[parcel.ring]->release(number);
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
