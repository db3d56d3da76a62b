#include "progress.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "support/load.hpp"

namespace rollring::test {
namespace {

// A record of a group that is open finds room as soon as the stash looks at its lane.
constexpr std::int64_t room_ns = 1'000'000'000;
// The stash has patience for a second with producers that might send something.
constexpr std::int64_t still_ns = 1'500'000'000;
// Within that time. Idle, a trainer looks fifty times a second, a producer twenty times.
constexpr std::uint64_t looks_least = 20;
constexpr std::uint64_t said_least = 10;
// After its deadline a group is dropped with the next look at it.
constexpr std::int64_t dead_groups_ns = group_deadline_ns + 250'000'000;

}  // namespace

Progress::Since Progress::now() const {
    return {monotonic_ns(), looks_};
}

void Progress::moved() {
    still_ = now();
    for (auto& [life, producer] : producers_) producer.said_still = 0;
}

void Progress::disturb() {
    moved();
    for (auto& [life, producer] : producers_) {
        producer.since = still_;
        producer.said = 0;
    }
}

void Progress::disturb(std::uint64_t life) {
    moved();
    const auto found = producers_.find(life);
    if (found == producers_.end()) return;
    found->second.since = still_;
    found->second.said = 0;
}

void Progress::producer_died() {
    moved();
    quiet_from_ns_ = still_.at_ns + dead_groups_ns;
}

void Progress::trainer_said(const Head& head) {
    switch (head.kind) {
        case Kind::waiting:  // a look that found no batch, or one that it gave back
            looks_++;
            return;
        case Kind::acking:
            looks_++;
            return moved();
        case Kind::resumed:
        case Kind::refused:
            return disturb();
        default:
            return moved();
    }
}

void Progress::producer_said(const Word& word) {
    if (word.head.kind != Kind::waiting) {
        if (word.head.kind != Kind::begun) moved();
        producers_[word.head.life] = {};
        if (word.head.kind == Kind::closing) producers_.erase(word.head.life);
        return;
    }
    Producer& producer = producers_[word.head.life];
    const auto what = static_cast<Waits>(word.a);
    if (std::exchange(producer.what, what) != what) {
        producer.since = now();
        producer.said = producer.said_still = 0;
    }
    producer.bytes = static_cast<std::uint64_t>(word.b);
    producer.said++;
    producer.said_still++;
}

bool Progress::over(const Since& since, std::int64_t for_ns, std::int64_t now_ns) const {
    return now_ns - since.at_ns >= for_ns && looks_ - since.looks >= looks_least;
}

bool Progress::all_wait() const {
    return !producers_.empty() && std::ranges::all_of(producers_, [](const auto& one) {
        return one.second.what != Waits::none && one.second.said_still >= said_least;
    });
}

std::string Progress::stalled(std::int64_t now_ns) {
    if (now_ns < quiet_from_ns_) disturb();
    watched_ns_ += now_ns < quiet_from_ns_ || checked_ns_ == 0 ? 0 : now_ns - checked_ns_;
    checked_ns_ = now_ns;
    for (const auto& [life, producer] : producers_) {
        if (producer.what != Waits::for_room) continue;
        longest_ns_ = std::max(longest_ns_, now_ns - producer.since.at_ns);
        if (producer.said >= said_least && over(producer.since, room_ns, now_ns)) {
            return fmt::format("stalled: producer {} finds no room: {}", life, describe(now_ns));
        }
    }
    if (!all_wait() || !over(still_, still_ns, now_ns)) return {};
    return fmt::format("stalled: nothing has moved for {} ms: {}",
                       (now_ns - still_.at_ns) / 1'000'000, describe(now_ns));
}

std::string Progress::describe(std::int64_t now_ns) const {
    std::string text;
    for (const auto& [life, producer] : producers_) {
        static constexpr std::string_view names[] = {"does not wait", "waits for room",
                                                     "waits to open a group"};
        text += fmt::format("producer {} {}", life, names[static_cast<std::size_t>(producer.what)]);
        if (producer.what != Waits::none) {
            text += fmt::format(
                " ({} bytes, for {} ms, said {} times, the trainer has looked {} "
                "times)",
                producer.bytes, (now_ns - producer.since.at_ns) / 1'000'000, producer.said,
                looks_ - producer.since.looks);
        }
        text += "; ";
    }
    return text +
           fmt::format("the last that moved was {} ms ago", (now_ns - still_.at_ns) / 1'000'000);
}

}  // namespace rollring::test
