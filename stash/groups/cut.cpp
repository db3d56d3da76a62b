// Cutting batches of whole groups, and what becomes of them.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "group_stash.hpp"

namespace rollring {

// Chooses which ready groups make the next batch. Looks only; GroupStash::lease() acts.
class BatchCutter {
  public:
    BatchCutter(const GroupStash& stash, bool partial) : stash_(stash), partial_(partial) {}

    // Slots in the order they ship; empty if there is not enough.
    std::vector<std::uint32_t> choose() {
        if (options().source_weights.empty()) {
            for_each_candidate([&](std::uint32_t slot) { return take(slot); });
        } else {
            for_each_candidate([&](std::uint32_t slot) {
                waiting_[stash_.groups_[slot].source_id].push_back(slot);
                return true;
            });
            while (!waiting_.empty()) {
                auto source = next_source();
                if (!take(source->second.front())) break;
                source->second.pop_front();
                if (source->second.empty()) waiting_.erase(source);
            }
        }
        if (!enough() && !partial_ && !full_) chosen_.clear();
        return std::move(chosen_);
    }

  private:
    [[nodiscard]] const StashOptions& options() const { return stash_.options_; }

    // Ready groups in the order in which they may ship, until `visit` has enough.
    template <class Visit>
    void for_each_candidate(Visit visit) const {
        if (options().order == Order::freshest) {
            for (std::uint32_t slot = stash_.last_ready_; slot != Group::none;) {
                if (!visit(slot)) return;
                slot = stash_.groups_[slot].unreadier;
            }
            return;
        }
        const std::uint64_t window = window_groups();
        std::uint64_t seen = 0;
        for (std::uint32_t slot = stash_.oldest_; slot != Group::none;) {
            const Group& group = stash_.groups_[slot];
            // What is leased or held past its deadline must not block those behind it.
            const bool waits = group.state == GroupState::open && !group.expired;
            const bool ready = group.state == GroupState::ready;
            if ((waits || ready) && ++seen > window) return;
            if (waits && options().order == Order::fifo && !partial_) return;
            if (ready && !visit(slot)) return;
            slot = group.younger;
        }
    }

    [[nodiscard]] std::uint64_t window_groups() const {
        if (options().order != Order::windowed || partial_) {
            return std::numeric_limits<std::uint64_t>::max();
        }
        std::uint64_t batch = options().batch_groups;
        if (options().batch_sequences != 0) {
            batch = (options().batch_sequences + options().group_size - 1) / options().group_size;
        }
        // By tokens there is no telling beforehand.
        if (options().batch_tokens != 0) batch = 64;
        return static_cast<std::uint64_t>(
            std::ceil(static_cast<double>(batch) / options().window_fraction));
    }

    [[nodiscard]] bool enough() const {
        if (options().batch_groups != 0) return chosen_.size() >= options().batch_groups;
        if (options().batch_sequences != 0) return sequences_ >= options().batch_sequences;
        return tokens_ >= options().batch_tokens;
    }

    // False if the batch has enough without this group, or can hold no more.
    bool take(std::uint32_t slot) {
        if (enough()) return false;
        const Group& group = stash_.groups_[slot];
        records_ += group.total.records;
        full_ = !chosen_.empty() && records_ > stash_.batch_records_max_;
        if (full_) return false;
        chosen_.push_back(slot);
        const Amount amount = group.live_amount();
        sequences_ += amount.records;
        tokens_ += amount.tokens;
        if (!options().source_weights.empty()) {
            served_[group.source_id] +=
                static_cast<double>(amount.tokens) / weight(group.source_id);
        }
        return true;
    }

    // The source that has shipped the fewest tokens for its weight: deficit round robin.
    std::map<std::int64_t, std::deque<std::uint32_t>>::iterator next_source() {
        return std::ranges::min_element(waiting_, {}, [&](const auto& source) {
            const auto before = stash_.served_.find(source.first);
            const auto now = served_.find(source.first);
            return (before != stash_.served_.end() ? before->second : stash_.served_floor()) +
                   (now != served_.end() ? now->second : 0.0);
        });
    }

    [[nodiscard]] double weight(std::int64_t source_id) const {
        for (const SourceWeight& source : options().source_weights) {
            if (source.source_id == source_id) return source.weight;
        }
        return 1.0;
    }

    const GroupStash& stash_;
    bool partial_;
    std::map<std::int64_t, std::deque<std::uint32_t>> waiting_;  // by source, in shipping order
    std::map<std::int64_t, double> served_;                      // by this batch
    std::vector<std::uint32_t> chosen_;
    bool full_ = false;
    std::uint64_t records_ = 0;  // failure marks included
    std::uint64_t sequences_ = 0;
    std::uint64_t tokens_ = 0;

    friend class GroupStash;
};

bool GroupStash::cut(std::int64_t now_ns, std::int64_t version, BatchPlan& batch) {
    return lease(now_ns, version, false, batch);
}

bool GroupStash::cut_rest(std::int64_t now_ns, std::int64_t version, BatchPlan& batch) {
    return lease(now_ns, version, true, batch);
}

bool GroupStash::lease(std::int64_t now_ns, std::int64_t version, bool partial, BatchPlan& batch) {
    if (ready_ == 0 || (!partial && ready_ < options_.batch_groups)) return false;
    for (;;) {
        BatchCutter cutter(*this, partial);
        const std::vector<Slot> chosen = cutter.choose();
        if (chosen.empty()) return false;
        // What has become too stale leaves, and the choice is made anew.
        bool changed = false;
        for (const Slot slot : chosen) changed |= drop_stale(slot, now_ns, version);
        if (changed) continue;
        batch.clear();
        batch.id = next_batch_++;
        for (std::size_t i = 0; i < chosen.size(); i++) {
            if (i + 1 < chosen.size()) {
                for (const Member& next : groups_[chosen[i + 1]].members) prefetch_to_write(&next);
            }
            add_to_batch(chosen[i], batch);
        }
        for (const auto& [source, tokens] : cutter.served_) {
            served_.try_emplace(source, served_floor()).first->second += tokens;
        }
        leased_.emplace(batch.id, chosen);
        return true;
    }
}

// Where a source that joins late starts: level with the one served least.
double GroupStash::served_floor() const {
    const auto least =
        std::ranges::min_element(served_, {}, [](const auto& source) { return source.second; });
    return least != served_.end() ? least->second : 0.0;
}

void GroupStash::add_to_batch(Slot slot, BatchPlan& batch) {
    Group& group = groups_[slot];
    touched_.push_back(slot);
    unready(slot);
    group.state = GroupState::leased;
    const Amount amount = group.total;
    account_.held -= amount;
    account_.leased += amount;
    const auto first = static_cast<std::uint32_t>(batch.members.size());
    std::uint32_t bad_rewards = 0;
    for (Member& member : group.members) {
        bad_rewards += member.rewarded == RewardState::bad ? 1 : 0;
        if (member.state != MemberState::live) {
            const auto marks = member.segments.all();
            batch.settled_marks.insert(batch.settled_marks.end(), marks.begin(), marks.end());
            continue;
        }
        member.segments.sort();
        const auto segments = member.segments.all();
        // In place: one that is put together elsewhere and copied would stall.
        BatchMember& shipped = batch.members.emplace_back();
        shipped.repetition_id = member.repetition_id;
        shipped.attempt = member.attempt;
        shipped.withheld = member.withheld;
        if (member.rewarded == RewardState::there) shipped.reward = member.reward;
        shipped.version_min = member.version_min;
        shipped.first_segment = static_cast<std::uint32_t>(batch.segments.size());
        shipped.segment_count = static_cast<std::uint32_t>(segments.size());
        batch.segments.insert(batch.segments.end(), segments.begin(), segments.end());
    }
    std::ranges::sort(std::span(batch.members).subspan(first), {}, &BatchMember::repetition_id);
    batch.groups.push_back({group.key, group.size, group.source_id, first,
                            static_cast<std::uint32_t>(batch.members.size()) - first, bad_rewards});
}

// Where close_group() will write.
void GroupStash::prefetch_closing(const Group& group) const {
    index_.prefetch(group.key);
    tombstones_.prefetch(group.key);
    for (const Slot next : {group.older, group.younger}) {
        if (next != Group::none) prefetch_to_write(&groups_[next].older);
    }
}

// What leaves with a group that ships: the marks of its failed members.
void GroupStash::count_marks(const Group& group) {
    for (const Member& member : group.members) {
        if (member.state != MemberState::failed) continue;
        account_.dropped[static_cast<std::size_t>(member.why_failed())] += member.segments.amount();
    }
}

void GroupStash::ack(std::uint64_t batch_id, std::int64_t now_ns) {
    const auto leased = leased_.find(batch_id);
    ROLLRING_ASSERT(leased != leased_.end(), "a batch is acknowledged once");
    for (const Slot slot : leased->second) prefetch_closing(groups_[slot]);
    for (const Slot slot : leased->second) {
        const Group& group = groups_[slot];
        const Amount shipped = group.live_amount();
        account_.leased -= group.total;
        account_.shipped += shipped;
        if (group.live != group.members.size()) count_marks(group);
        account_.groups_shipped++;
        account_.groups_partial += group.live < group.size ? 1 : 0;
        close_group(slot, now_ns);
    }
    leased_.erase(leased);
    account_.batches++;
    progress_ns_ = now_ns;
}

void GroupStash::nack(std::uint64_t batch_id) {
    const auto leased = leased_.find(batch_id);
    ROLLRING_ASSERT(leased != leased_.end(), "a batch is given back once");
    for (const Slot slot : leased->second) {
        Group& group = groups_[slot];
        const Amount amount = group.total;
        account_.leased -= amount;
        account_.held += amount;
        ready_again(slot);
        touched_.push_back(slot);
    }
    leased_.erase(leased);
}

}  // namespace rollring
