// The oracle on weights, and on the leftovers when all have ended.

#include <algorithm>

#include "oracle.hpp"
#include "support/load.hpp"

namespace rollring::test {

// --- weights -------------------------------------------------------------------------------------

void Oracle::live(Life& life, std::int64_t version, bool whole) {
    if (version < 0) {
        counts_.poisoned++;
        life.live = -1;
        return;
    }
    counts_.live++;
    require(whole, "subscriber {} serves version {}, and not its bytes", life.index, version);
    require(versions_.contains(version), "subscriber {} serves version {}, never committed",
            life.index, version);
    require(version > life.live, "subscriber {} serves version {} after {}", life.index, version,
            life.live);
    const auto at = served_.try_emplace(life.index, version).first;
    require(version >= at->second, "subscriber {} went back from version {} to {}", life.index,
            at->second, version);
    at->second = version;
    life.live = version;
}

// --- deadlines -----------------------------------------------------------------------------------

// The time between two words of one life is work, unless it was stopped meanwhile.
void Oracle::note_trainer(const Head& head) {
    constexpr std::int64_t longest_step_ns = 50'000'000;
    const bool worked = head.life == trainer_said_.life && head.kind != Kind::refused;
    if (worked) trained_ns_ += std::min(head.at_ns - trainer_said_.at_ns, longest_step_ns);
    trainer_said_ = head;
}

// By our own clock: a trainer knows a group's age only as far as its predecessors told it.
void Oracle::still_open(std::span<const GroupStat> groups) {
    const std::int64_t now = monotonic_ns();
    for (const GroupStat& group : groups) {
        if (group.state != GroupState::open) continue;
        Waiting& waiting =
            open_.try_emplace({group.key.low, group.key.high}, trained_ns_, now).first->second;
        waiting.seen_ns = now;
        const std::int64_t open_ns = trained_ns_ - waiting.since_ns;
        counts_.longest_open_ns = std::max(counts_.longest_open_ns, open_ns);
        require(
            open_ns < group_deadline_ns + deadline_margin_ns,
            "a group of {} with {} of {} members is open for {} ms while trainers were at work, "
            "its deadline was {} ms",
            group.instance_id, group.complete, group.size, open_ns / 1'000'000,
            group_deadline_ns / 1'000'000);
    }
    // A trainer that takes over shows none for a moment.
    std::erase_if(
        open_, [&](const auto& one) { return now - one.second.seen_ns > 2 * group_deadline_ns; });
}

// --- the end -------------------------------------------------------------------------------------

// Of every member, all subsequences of the highest attempt that was begun.
bool Oracle::must_ship(const Group& group) {
    for (std::uint32_t repetition = 0; repetition < group.size; repetition++) {
        std::uint32_t attempt = 0;
        for (const Copy& copy : group.copies) {
            if (copy.repetition == repetition) attempt = std::max(attempt, copy.attempt);
        }
        std::set<std::uint16_t> subsequences;
        for (const Copy& copy : group.copies) {
            if (copy.repetition == repetition && copy.attempt == attempt && copy.pushed) {
                subsequences.insert(copy.subsequence);
            }
        }
        if (subsequences.size() != group.subsequences) return false;
    }
    return true;
}

std::string Oracle::describe(std::uint64_t id, const Group& group) const {
    const Life& life = lives_[group.life];
    std::string text = fmt::format("group {}/{} of {} x {} (lane {} after", group.life,
                                   id & 0xffffffff, group.size, group.subsequences, life.lane);
    if (const auto held = holders_.find(static_cast<std::uint32_t>(life.lane));
        held != holders_.end()) {
        for (const std::uint64_t holder : held->second) {
            if (holder + 40 < group.life) continue;
            text += fmt::format(" {}{}", name(lives_[holder].role).substr(0, 1), holder);
        }
    }
    text += "; in ms:";
    const auto after_ms = [&](std::int64_t at_ns) {
        return static_cast<double>(at_ns - group.from_ns) * 1e-6;
    };
    for (const Copy& copy : group.copies) {
        text += fmt::format(" {}.{} attempt {} at {:.1f}{},", copy.repetition, copy.subsequence,
                            copy.attempt, after_ms(copy.at_ns), copy.pushed ? "" : " not pushed");
    }
    if (life.killed) text += fmt::format(" producer killed at {:.1f},", after_ms(life.killed_ns));
    for (const Life& other : lives_) {
        const double at_ms = after_ms(other.killed_ns);
        if (other.role != Role::trainer || at_ms < -100 || at_ms > 2500) continue;
        text += fmt::format(" trainer killed at {:.1f},", at_ms);
    }
    return text + fmt::format(" now {:.1f})", after_ms(monotonic_ns()));
}

void Oracle::finish() {
    require(!pending_, "step {} was announced and never done", pending_step_);
    for (const auto& [id, group] : groups_) {
        if (must_ship(group)) {
            if (exposed(group.life)) {
                counts_.exposed_lost++;
                continue;
            }
            // The trainer itself may have been stopped meanwhile, but not for the rest of it.
            if (group.last_ns - group.from_ns < group_deadline_ns / 3) {
                throw Failure(describe(id, group) + " was pushed whole and is lost");
            }
            counts_.groups_overdue++;
            continue;
        }
        require(lives_[group.life].killed,
                "group {}/{} is not whole, and its producer was not killed", group.life,
                id & 0xffffffff);
        counts_.groups_unfinished++;
    }
}

}  // namespace rollring::test
