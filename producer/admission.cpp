#include "admission.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "human.hpp"

namespace rollring {
namespace {

// Groups that this producer has sent to of late; a forgotten one is asked for again.
constexpr std::size_t recent_groups = 4096;
constexpr std::uint64_t places_at_once = 16;

}  // namespace

void Admission::remember(const GroupKey& key) {
    if (recent_.empty()) recent_.resize(recent_groups);
    recent_[key.low % recent_.size()] = key;
}

bool Admission::is_open(const GroupKey& key) {
    const Geometry& geometry = map_->geometry();
    if (!keys_) {
        auto mapped = map_->segment().map(geometry.keys_offset(),
                                          geometry.key_count() * sizeof(std::uint64_t), false);
        if (!mapped) return false;  // then it is asked for as a new one
        keys_.emplace(std::move(*mapped));
    }
    return KeyTable(&keys_->at<std::atomic<std::uint64_t>>(0), geometry.key_count()).holds(key);
}

std::uint64_t Admission::announced_groups() const {
    std::uint64_t groups = 0;
    const std::uint64_t most = peek(control_->max_open_groups);
    for (std::uint32_t lane = 0; lane < map_->geometry().lane_count; lane++) {
        const std::uint64_t opened = peek(map_->owner(lane).groups_opened);
        const std::uint64_t arrived = observe(map_->entry(lane).groups_arrived);
        // A damaged lane announces nothing; nor does one that claims what no bound would allow.
        if (opened <= arrived || opened - arrived > most) continue;
        if (peek(map_->entry(lane).quarantine) != 0) continue;
        groups += opened - arrived;
    }
    return groups;
}

// Counting costs a miss per lane, so where the bound is far larger than the number of lanes, each
// of them takes some places at once; what all of them may have taken so stays below the bound.
bool Admission::has_place() {
    if (places_ > 0) {
        places_--;
        return true;
    }
    const std::uint64_t lanes = map_->geometry().lane_count;
    const std::uint64_t most = peek(control_->max_open_groups);
    const std::uint64_t at_once = std::min(places_at_once, most / 64 / lanes);
    // In this order: the consumer counts a group as open before it counts it as arrived.
    const std::uint64_t announced = announced_groups();
    const std::uint64_t taken = announced + control_->open_groups.load();
    if (most != 0 && taken + at_once * lanes >= most) return false;
    places_ = at_once;
    return true;
}

Admission::Answer Admission::ask(const GroupKey& key, LaneOwner& owner) {
    if (!active() || remembers(key)) return Answer::go;
    if (is_open(key)) {
        remember(key);
        return Answer::go;
    }
    const std::uint64_t bytes_max = peek(control_->max_open_bytes);
    if (bytes_max != 0 && control_->held_bytes.load() >= bytes_max) return Answer::too_many_bytes;
    if (!has_place()) return Answer::too_many_groups;
    remember(key);
    announced_.push_back(key);
    add(owner.groups_opened, std::uint64_t{1});
    return Answer::go;
}

std::uint64_t Admission::note_sent(const GroupKey& key) {
    if (!announced_.empty()) {
        const auto found = std::ranges::find(announced_, key);
        if (found != announced_.end()) {
            *found = announced_.back();
            announced_.pop_back();
            sent_++;
        }
    }
    return sent_;
}

std::string Admission::why(Answer answer) const {
    const std::string trainer =
        map_->consumer_alive() ? "the trainer is alive" : "no trainer is attached";
    if (answer == Answer::too_many_bytes) {
        return fmt::format(
            "no new group may be opened: {} of records are held, the bound is "
            "{}; {}; 'rollring groups' shows what waits",
            human_bytes(control_->held_bytes.load()), human_bytes(peek(control_->max_open_bytes)),
            trainer);
    }
    return fmt::format(
        "no new group may be opened: {} are open and {} announced, the bound is {}; "
        "{}; 'rollring groups' shows what waits",
        control_->open_groups.load(), announced_groups(), peek(control_->max_open_groups), trainer);
}

}  // namespace rollring
