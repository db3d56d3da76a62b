#include "cli/commands/tapped_groups.hpp"

#include <cmath>
#include <cstring>

namespace rollring::cli {
namespace {

// As a stash with default options has it: also a reward that is NaN or infinite.
bool is_failure(const Meta& meta) {
    const bool done = meta.status == Status::completed || meta.status == Status::truncated;
    return !done || (meta.reward && !std::isfinite(*meta.reward));
}

}  // namespace

bool TappedGroups::Member::whole() const {
    std::uint16_t next = 0;
    for (const auto& [number, record] : records) {
        if (number != next++) return false;  // one before it is missing
        if (record.view.meta().last_subsequence) return true;
    }
    return false;
}

std::vector<const TappedGroups::Member*> TappedGroups::Group::final_members() const {
    std::vector<const Member*> found;
    std::optional<std::uint64_t> taken;
    for (const auto& [place, member] : members) {
        if (taken == std::get<0>(place) || !member.final()) continue;
        taken = std::get<0>(place);
        found.push_back(&member);
    }
    return found;
}

void TappedGroups::drop_records(Group& group, Member& member) {
    for (const auto& [number, record] : member.records) {
        group.bytes -= record.bytes;
        bytes_ -= record.bytes;
    }
    member.records.clear();
}

void TappedGroups::take(Group& group, const TapRecord& record) {
    const Meta& meta = record.view.meta();
    const std::uint64_t repetition = meta.repetition_id.has_value()
                                         ? meta.repetition_id.value_or(0)
                                         : (std::uint64_t{1} << 32) + group.unnumbered++;
    Member& member = group.members[{repetition, record.lane, record.epoch}];
    if (meta.attempt < member.attempt) return;
    if (meta.attempt > member.attempt) {
        drop_records(group, member);
        member = {.attempt = meta.attempt};
    }
    if (is_failure(meta)) member.failed = true;
    if (member.failed || member.records.contains(meta.subsequence_index)) return;
    const std::uint64_t bytes = record.bytes.size();
    auto* const memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}));
    std::memcpy(memory, record.bytes.data(), bytes);
    Record kept{std::unique_ptr<std::byte, Free>(memory), bytes, record.view};
    kept.view.follow(record.bytes.data(), memory);
    member.records.emplace(meta.subsequence_index, std::move(kept));
    group.bytes += bytes;
    bytes_ += bytes;
}

void TappedGroups::remember(const Key& key) {
    over_.insert(key);
    over_order_.push_back(key);
    if (over_order_.size() <= over_max) return;
    over_.erase(over_order_.front());
    over_order_.pop_front();
}

std::optional<TappedGroup> TappedGroups::add(const TapRecord& record) {
    last_ = {};
    const GroupKey of = record.view.group_key();
    const Key key{of.high, of.low};
    if (over_.contains(key)) return std::nullopt;
    const auto [at, is_new] = groups_.try_emplace(key);
    if (is_new) order_.push_back(key);
    Group& group = at->second;
    if (group.size == 0) group.size = record.view.meta().group_size;
    take(group, record);
    const std::uint32_t size = group.size == 0 ? size_ : group.size;
    if (group.final_members().size() < size) {
        while (bytes_ > bytes_max_ && groups_.size() > 1) give_up_oldest();
        return std::nullopt;
    }
    last_ = std::move(group);
    groups_.erase(at);
    bytes_ -= last_.bytes;
    remember(key);
    TappedGroup complete{.size = size, .records = {}};
    for (const Member* member : last_.final_members()) {
        if (member->failed) continue;
        for (const auto& [number, kept] : member->records) {
            complete.records.push_back(&kept.view);
            if (kept.view.meta().last_subsequence) break;
        }
    }
    return complete;
}

void TappedGroups::give_up_oldest() {
    while (!order_.empty()) {
        const Key oldest = order_.front();
        order_.pop_front();
        const auto found = groups_.find(oldest);
        if (found == groups_.end()) continue;  // it was completed
        bytes_ -= found->second.bytes;
        groups_.erase(found);
        remember(oldest);
        given_up_++;
        return;
    }
}

}  // namespace rollring::cli
