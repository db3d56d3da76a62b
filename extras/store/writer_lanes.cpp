#include "writer_lanes.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace rollring {
namespace {

constexpr std::int64_t idle_ns = 2'000'000'000;
// Between searches for a lane, while all held lanes are full.
constexpr std::int64_t look_ns = 10'000'000;

}  // namespace

Push WriterLanes::push_later(const Draft& draft, Deadline deadline, RecordRef& at) {
    for (;;) {
        const bool over = deadline.passed();
        Push got = push_to_held(draft, Deadline::now(), at);
        if (got != Push::timed_out && got != Push::closed) return got;
        // An empty lane or, failing that, the rest of a lane that other processes have written to.
        if (take_lane(false) || take_lane(true)) continue;
        if (held_.empty()) {
            if (over || got == Push::closed) return got;
            futex_sleep(map_->consumer_bell().lane_changes,
                        map_->consumer_bell().lane_changes.load(), Deadline::after_ns(look_ns));
            continue;
        }
        if (over) return got;
        const Deadline look{std::min(deadline.at_ns, Deadline::after_ns(look_ns).at_ns)};
        const Push waited = held_.front().producer.push_later(draft, look);
        if (waited == Push::ok) {
            at = held_.front().producer.last();
            held_.front().used_ns = monotonic_ns();
            return waited;
        }
        if (waited != Push::timed_out) return waited;
    }
}

// Moves the first lane with room to the front.
Push WriterLanes::push_to_held(const Draft& draft, Deadline deadline, RecordRef& at) {
    Push got = Push::timed_out;
    for (std::size_t i = 0; i < held_.size();) {
        got = held_[i].producer.push_later(draft, deadline);
        if (got == Push::ok) {
            at = held_[i].producer.last();
            held_[i].used_ns = monotonic_ns();
            std::swap(held_[0], held_[i]);
            return got;
        }
        problem_ = held_[i].producer.problem();
        if (got == Push::closed) {  // a damaged lane: do not use it
            held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
            if (!map_->segment().linked()) return got;
            continue;
        }
        if (got != Push::timed_out) return got;
        i++;
    }
    return Push::timed_out;
}

void WriterLanes::flush() {
    for (Held& each : held_) each.producer.flush();
}

bool WriterLanes::empty(std::uint32_t lane) const {
    return observe(map_->entry(lane).head) == observe(map_->owner(lane).tail);
}

bool WriterLanes::some_lane_is_free(bool any) const {
    for (std::uint32_t lane = 0; lane < map_->geometry().lane_count; lane++) {
        if (map_->lane_is_idle(lane) && map_->lane_is_sound(lane) && (any || empty(lane))) {
            return true;
        }
    }
    return false;
}

// `any`: also takes a lane that already holds values; only for a writer that has no lane yet.
bool WriterLanes::take_lane(bool any) {
    if (any && !held_.empty()) return false;
    if (held_.size() >= most_ || !some_lane_is_free(any)) return false;
    auto opened =
        Producer::open(ring_, {.name = name_, .attach_timeout = {}, .purpose = Purpose::values});
    if (!opened) {
        problem_ = opened.error().to_string();
        return false;
    }
    held_.insert(held_.begin(), {std::move(*opened), monotonic_ns()});
    return true;
}

void WriterLanes::give_back_idle() {
    const std::int64_t before_ns = monotonic_ns() - idle_ns;
    std::erase_if(held_, [&](const Held& each) {
        return each.used_ns < before_ns && empty(each.producer.lane());
    });
}

}  // namespace rollring
