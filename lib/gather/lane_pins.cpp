#include "lane_pins.hpp"

#include <algorithm>
#include <system_error>

namespace rollring::gathering {

LanePins::~LanePins() {
    if (worker_.joinable()) {
        worker_.request_stop();
        worker_.join();
    }
    const std::scoped_lock lock(mutex_);
    drop_all();
}

void LanePins::drop(Lane& lane) {
    if (lane.state == State::registered) device_->unpin(lane.mapped.data);
    lane.state = State::unknown;
}

void LanePins::drop_all() {
    for (Lane& lane : all_) drop(lane);
    all_.clear();
    registered_.clear();
}

void LanePins::look(const std::shared_ptr<const MappedLanes>& lanes) {
    std::unique_lock lock(mutex_);
    if (lanes != lanes_) {
        changed_.wait(lock, [&] {
            return std::ranges::none_of(
                all_, [](const Lane& lane) { return lane.state == State::registering; });
        });
        drop_all();
        lanes_ = lanes;
        all_.resize(lanes == nullptr ? 0 : lanes->count());
        for (std::size_t i = 0; i < all_.size(); i++) all_[i].mapped = lanes->lane(i);
    }
    for (std::size_t i = 0; i < all_.size(); i++) {
        Lane& lane = all_[i];
        const MappedLane now = lanes_->lane(i);
        const bool decided = lane.state == State::registered || lane.state == State::refused;
        if (decided && now.generation != lane.generation) drop(lane);
        lane.mapped = now;
    }
    registered_.clear();
    for (const Lane& lane : all_) {
        if (lane.state != State::registered) continue;
        registered_.push_back({lane.mapped.data, lane.mapped.data + lane.mapped.bytes,
                               lane.address - reinterpret_cast<std::uint64_t>(lane.mapped.data)});
    }
}

LanePins::Lane* LanePins::lane_of(const std::byte* at) {
    const auto holds = [&](const Lane& lane) {
        return at >= lane.mapped.data && at < lane.mapped.data + lane.mapped.bytes;
    };
    auto after =
        std::ranges::upper_bound(all_, at, {}, [](const Lane& l) { return l.mapped.data; });
    if (after == all_.begin() || !holds(*std::prev(after))) return nullptr;
    return &*std::prev(after);
}

void LanePins::want(const std::byte* at) {
    const std::scoped_lock lock(mutex_);
    Lane* lane = lane_of(at);
    if (lane != nullptr && lane->state == State::unknown) want(*lane);
}

std::string LanePins::why_not(const std::byte* at) const {
    const std::scoped_lock lock(mutex_);
    const Lane* lane = lane_of(at);
    if (lane == nullptr) return "the records lie in no lane: they were evacuated";
    if (lane->state == State::refused) return lane->problem;
    return "the lane of the records is being registered with the GPU";
}

void LanePins::want(Lane& lane) {
    lane.state = State::wanted;
    if (!worker_.joinable()) {
        try {
            worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
        } catch (const std::system_error& refusal) {
            lane.state = State::refused;
            lane.problem = std::string("no thread can be started to register it with the GPU: ") +
                           refusal.what();
            return;
        }
    }
    changed_.notify_all();
}

void LanePins::work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
        auto next = all_.end();
        const auto find = [&] {
            next = std::ranges::find(all_, State::wanted, &Lane::state);
            return next != all_.end();
        };
        if (!changed_.wait(lock, stop, find)) return;
        next->state = State::registering;
        const auto number = static_cast<std::size_t>(next - all_.begin());
        // Read first: pages that are given back meanwhile have an older generation than look()
        // sees.
        const MappedLane mapped = lanes_->lane(number);
        lock.unlock();
        const auto address = device_->pin(mapped.data, mapped.bytes);
        lock.lock();
        Lane& lane = all_[number];  // while one is being registered, all stay
        lane.state = address ? State::registered : State::refused;
        lane.generation = mapped.generation;
        lane.address = address.value_or(0);
        lane.problem = address ? std::string() : address.error().to_string();
        changed_.notify_all();
    }
}

Result<void> LanePins::register_used() {
    std::unique_lock lock(mutex_);
    for (Lane& lane : all_) {
        if (lane.mapped.used && lane.state == State::unknown) want(lane);
    }
    changed_.wait(lock, [&] {
        return std::ranges::none_of(all_, [](const Lane& lane) {
            return lane.state == State::wanted || lane.state == State::registering;
        });
    });
    const auto bad = std::ranges::find(all_, State::refused, &Lane::state);
    if (bad == all_.end()) return {};
    return refused(Errc::host_memory, bad->problem);
}

std::uint64_t LanePins::registered_bytes() const {
    const std::scoped_lock lock(mutex_);
    std::uint64_t bytes = 0;
    for (const Lane& lane : all_) {
        bytes += lane.state == State::registered ? lane.mapped.bytes : 0;
    }
    return bytes;
}

}  // namespace rollring::gathering
