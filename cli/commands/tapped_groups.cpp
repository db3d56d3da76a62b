#include "cli/commands/tapped_groups.hpp"

#include <cstring>

namespace rollring::cli {

void TappedGroups::take(Group& group, const TapRecord& record) {
    const Meta& meta = record.view.meta();
    // A record without a repetition ID is a member of its own.
    const std::uint64_t member = meta.repetition_id.has_value()
                                     ? meta.repetition_id.value_or(0)
                                     : (std::uint64_t{1} << 32) + group.records.size();
    const std::pair place{member, meta.subsequence_index};
    const auto before = group.records.find(place);
    if (before != group.records.end()) {
        if (before->second.view.meta().attempt >= meta.attempt) return;
        group.bytes -= before->second.bytes;
        bytes_ -= before->second.bytes;
        group.records.erase(before);
    }
    const std::uint64_t bytes = record.bytes.size();
    auto* const memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}));
    std::memcpy(memory, record.bytes.data(), bytes);
    Record kept{std::unique_ptr<std::byte, Free>(memory), bytes, record.view};
    kept.view.follow(record.bytes.data(), memory);
    group.records.emplace(place, std::move(kept));
    group.bytes += bytes;
    bytes_ += bytes;
}

std::uint32_t TappedGroups::complete_members(const Group& group) {
    std::uint32_t complete = 0;
    std::uint16_t next = 0;  // subsequence of the member
    std::uint64_t member = ~std::uint64_t{0};
    for (const auto& [place, record] : group.records) {
        if (place.first != member) next = 0;
        member = place.first;
        if (place.second != next) continue;  // one before it is missing
        next++;
        if (record.view.meta().last_subsequence) complete++;
    }
    return complete;
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
    if (complete_members(group) < (group.size == 0 ? size_ : group.size)) {
        while (bytes_ > bytes_max_ && groups_.size() > 1) give_up_oldest();
        return std::nullopt;
    }
    last_ = std::move(group);
    groups_.erase(at);
    bytes_ -= last_.bytes;
    over_.insert(key);
    over_order_.push_back(key);
    if (over_order_.size() > over_max) {
        over_.erase(over_order_.front());
        over_order_.pop_front();
    }
    TappedGroup complete{.size = last_.size == 0 ? size_ : last_.size, .records = {}};
    for (const auto& [place, kept] : last_.records) {
        if (kept.view.n_tokens() != 0) complete.records.push_back(&kept.view);
    }
    return complete;
}

void TappedGroups::give_up_oldest() {
    while (!order_.empty()) {
        const auto found = groups_.find(order_.front());
        order_.pop_front();
        if (found == groups_.end()) continue;  // it was completed
        bytes_ -= found->second.bytes;
        groups_.erase(found);
        given_up_++;
        return;
    }
}

}  // namespace rollring::cli
