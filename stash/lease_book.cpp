#include "lease_book.hpp"

#include <atomic>
#include <limits>
#include <utility>

#include "liveness.hpp"

namespace rollring {

void LeaseBook::lease(Batch& batch, const BatchPlan& plan, std::shared_ptr<void> stash) {
    static std::atomic<std::uint64_t> leases_ever{0};
    batch.clear();
    batch.lease_.state_ =
        std::make_shared<Lease::State>(++leases_ever, fork_generation(), std::move(stash), &batch);
    out_.push_back(batch.lease_.state_);
    batch.id_ = plan.id;
    const std::size_t count = plan.subsequences.size();
    batch.sequences_.reserve(count);
    batch.rewards_.reserve(count);
    batch.advantages_.reserve(count);
    batch.repetition_ids_.reserve(count);
    batch.versions_.reserve(count);
    batch.cu_seqlens_.reserve(count + 1);
    batch.refs_.reserve(count + plan.failure_marks.size());
    batch.indices_.reserve(count + plan.failure_marks.size());
    for (const Subsequence& mark : plan.failure_marks) {
        batch.refs_.push_back((*records_)[mark.record].ref);
        batch.indices_.push_back(mark.record);
    }
    batch.cu_seqlens_.push_back(0);
    batch.group_offsets_.push_back(0);
    std::vector<double> rewards;
    std::vector<double> advantages;
    for (const BatchGroup& group : plan.groups) {
        rewards.clear();
        const auto members = plan.members_of(group);
        std::uint32_t unrewarded = 0;
        for (const BatchMember& member : members) {
            rewards.push_back(member.reward.value_or(std::numeric_limits<double>::quiet_NaN()));
            unrewarded += member.reward ? 0 : 1;
        }
        advantages.assign(rewards.size(), 0.0);
        group_advantages(rewards, advantages_, advantages);
        for (std::uint32_t m = 0; m < members.size(); m++) {
            const BatchMember& member = members[m];
            for (const Subsequence& one : plan.subsequences_of(member)) {
                batch.sequences_.push_back({(*records_)[one.record].view,
                                            static_cast<std::uint32_t>(batch.groups_.size()), m,
                                            member.withheld});
                batch.rewards_.push_back(rewards[m]);
                batch.advantages_.push_back(advantages[m]);
                batch.repetition_ids_.push_back(member.repetition_id);
                batch.versions_.push_back((*records_)[one.record].view.meta().policy_version_min);
                batch.refs_.push_back((*records_)[one.record].ref);
                batch.indices_.push_back(one.record);
                batch.cu_seqlens_.push_back(batch.cu_seqlens_.back() + one.n_tokens);
            }
        }
        batch.groups_.push_back({group.key, group.size, static_cast<std::uint32_t>(members.size()),
                                 group.bad_rewards, unrewarded});
        batch.group_offsets_.push_back(static_cast<std::uint32_t>(batch.sequences_.size()));
    }
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
