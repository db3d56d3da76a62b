#include "rollring/sequences.hpp"

#include <atomic>
#include <utility>

namespace rollring {

void Sequences::lease_to(std::shared_ptr<void> keeper, Batch* batch,
                         std::shared_ptr<const MappedLanes> lanes) {
    static std::atomic<std::uint64_t> leases_ever{0};
    lease_.state_ = std::make_shared<Lease::State>(++leases_ever, detail::forks, std::move(keeper),
                                                   batch, std::move(lanes));
}

void Sequences::begin(std::size_t sequences) {
    sequences_.reserve(sequences);
    rewards_.reserve(sequences);
    advantages_.reserve(sequences);
    repetition_ids_.reserve(sequences);
    versions_.reserve(sequences);
    cu_seqlens_.reserve(sequences + 1);
    cu_seqlens_.push_back(0);
    group_offsets_.push_back(0);
}

void Sequences::add(const TrajectoryView& view, std::uint32_t member, bool withheld, double reward,
                    double advantage) {
    sequences_.push_back({view, static_cast<std::uint32_t>(groups_.size()), member, withheld});
    rewards_.push_back(reward);
    advantages_.push_back(advantage);
    repetition_ids_.push_back(view.meta().repetition_id);
    versions_.push_back(view.meta().policy_version_min);
    cu_seqlens_.push_back(cu_seqlens_.back() + view.n_tokens());
}

void Sequences::end_group(const BatchGroupInfo& group) {
    groups_.push_back(group);
    group_offsets_.push_back(static_cast<std::uint32_t>(sequences_.size()));
}

void Sequences::clear() {
    groups_.clear();
    sequences_.clear();
    group_offsets_.clear();
    cu_seqlens_.clear();
    rewards_.clear();
    advantages_.clear();
    repetition_ids_.clear();
    versions_.clear();
}

}  // namespace rollring
