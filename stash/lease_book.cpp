#include "lease_book.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "prefetch.hpp"

namespace rollring {

void LeaseBook::lease(Batch& batch, const BatchPlan& plan, std::shared_ptr<void> stash) {
    batch.clear();
    const std::shared_ptr<const MappedLanes> lanes(stash, lanes_);
    batch.lease_to(std::move(stash), &batch, lanes);
    out_.push_back(batch.lease_.state_);
    batch.id_ = plan.id;
    const std::size_t count = plan.subsequences.size();
    batch.begin(count);
    batch.refs_.reserve(count + plan.failure_marks.size());
    batch.indices_.reserve(count + plan.failure_marks.size());
    for (const Subsequence& mark : plan.failure_marks) {
        batch.refs_.push_back((*records_)[mark.record].ref);
        batch.indices_.push_back(mark.record);
    }
    std::vector<double> rewards;
    std::vector<double> advantages;
    std::uint64_t rewarded = 0;
    double sum = 0;
    for (const BatchGroup& group : plan.groups) {
        rewards.clear();
        const auto members = plan.members_of(group);
        std::uint32_t unrewarded = 0;
        for (const BatchMember& member : members) {
            rewards.push_back(member.reward.value_or(std::numeric_limits<double>::quiet_NaN()));
            unrewarded += member.reward ? 0 : 1;
            if (!std::isfinite(rewards.back())) continue;
            rewarded++;
            sum += rewards.back();
        }
        advantages.assign(rewards.size(), 0.0);
        group_advantages(rewards, formula_, advantages);
        for (std::uint32_t m = 0; m < members.size(); m++) {
            const BatchMember& member = members[m];
            for (const Subsequence& one : plan.subsequences_of(member)) {
                fetch_behind(plan, one);
                batch.add((*records_)[one.record].view, m, member.withheld, rewards[m],
                          advantages[m]);
                batch.refs_.push_back((*records_)[one.record].ref);
                batch.indices_.push_back(one.record);
            }
        }
        batch.end_group({group.key, group.size, static_cast<std::uint32_t>(members.size()),
                         group.bad_rewards, unrewarded});
    }
    latest_ = {count, static_cast<std::uint64_t>(batch.cu_seqlens().back()), rewarded,
               rewarded == 0 ? 0 : sum / static_cast<double>(rewarded)};
}

// Prefetches, because views lie far apart, in the order in which the records were read.
void LeaseBook::fetch_behind(const BatchPlan& plan, const Subsequence& one) const {
    constexpr std::size_t ahead = 8;
    constexpr std::size_t bytes = 320;  // of a view: its header's fields and the first columns
    const auto next = static_cast<std::size_t>(&one - plan.subsequences.data()) + ahead;
    if (next >= plan.subsequences.size()) return;
    const Record& record = (*records_)[plan.subsequences[next].record];
    prefetch_to_read(&record.ref);
    prefetch_to_read(record.view, bytes);
}

void LeaseBook::end(const std::shared_ptr<Lease::State>& lease) {
    lease->leased = false;
    std::erase(out_, lease);
}

void LeaseBook::end_all(bool reachable) {
    for (const auto& lease : out_) {
        lease->leased = false;
        if (reachable) lease->batch->clear();
    }
    out_.clear();
}

}  // namespace rollring
