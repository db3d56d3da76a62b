// A batch in the hands of the trainer: given back by ack or nack, remembered by its receipt.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "receipt.hpp"
#include "stash_impl.hpp"

namespace rollring {

std::string Batch::receipt() const {
    if (!leased()) return {};
    const Stash::Impl& stash = Stash::Impl::of(*lease_.state_);
    std::vector<ReceiptEntry> entries;
    entries.reserve(refs_.size());
    for (std::size_t i = 0; i < refs_.size(); i++) {
        // As it was checked when the record came.
        const Record& record = stash.records[indices_[i]];
        entries.push_back({refs_[i].position, record.sequence, refs_[i].lane, record.producer_lane,
                           record.producer_epoch, 0});
    }
    return write_receipt(entries, stash.core.map().ring_id());
}

Batch::Batch() = default;
Batch::Batch(Batch&& other) noexcept {
    *this = std::move(other);
}

Batch& Batch::operator=(Batch&& other) noexcept {
    if (this == &other) return *this;
    nack();
    lease_ = std::exchange(other.lease_, {});
    if (lease_.state_ != nullptr) lease_.state_->batch = this;
    id_ = other.id_;
    groups_ = std::move(other.groups_);
    sequences_ = std::move(other.sequences_);
    group_offsets_ = std::move(other.group_offsets_);
    cu_seqlens_ = std::move(other.cu_seqlens_);
    rewards_ = std::move(other.rewards_);
    advantages_ = std::move(other.advantages_);
    repetition_ids_ = std::move(other.repetition_ids_);
    versions_ = std::move(other.versions_);
    refs_ = std::move(other.refs_);
    indices_ = std::move(other.indices_);
    return *this;
}

void Batch::clear() {
    groups_.clear();
    sequences_.clear();
    group_offsets_.clear();
    cu_seqlens_.clear();
    rewards_.clear();
    advantages_.clear();
    repetition_ids_.clear();
    versions_.clear();
    refs_.clear();
    indices_.clear();
}

Batch::~Batch() {
    nack();
}

Result<void> Batch::check_leased() const {
    if (leased()) return {};
    if (lease_.state_ == nullptr) {
        return refused(Errc::not_leased,
                       "the batch is not leased: it was acknowledged or given back before");
    }
    if (lease_.state_->forks != fork_generation()) {
        return refused(Errc::forked,
                       "the batch is leased to the process that forked this one, and "
                       "only that may acknowledge it");
    }
    return refused(
        Errc::not_leased,
        "the batch is not leased any more, for its stash is gone: its groups come again to "
        "the ring's next stash");
}

Result<void> Batch::ack(std::int64_t step) {
    if (auto checked = check_leased(); !checked) return checked;
    Stash::Impl& impl = Stash::Impl::of(*lease_.state_);
    if (auto checked = impl.core.check_step(step); !checked) return checked;
    const std::int64_t now = monotonic_ns();
    std::vector<GroupKey> keys;
    keys.reserve(groups_.size());
    for (const BatchGroupInfo& group : groups_) keys.push_back(group.key);
    impl.shown.prepare_tombstones(keys, now);
    FAULT_POINT("ack.after_tombstones");
    auto released = impl.core.release_all(refs_, step, true);
    if (!released) return released;  // still leased: nothing was given back
    const Lease ended = std::exchange(lease_, {});
    impl.leases.end(ended.state_);
    for (const std::uint32_t index : indices_) impl.records.give_back(index);
    clear();
    impl.groups.ack(id_, now);
    impl.shown.show_touched(now, true);
    impl.shown.show_account(true);
    FAULT_POINT("ack.after_account");
    return {};
}

// A batch whose stash is gone, or another process's, is just let go.
void Batch::nack() {
    const bool was_leased = leased();
    const Lease ended = std::exchange(lease_, {});
    clear();
    if (!was_leased) return;
    Stash::Impl& impl = Stash::Impl::of(*ended.state_);
    impl.leases.end(ended.state_);
    FAULT_POINT("nack.before");
    impl.groups.nack(id_);
    impl.shown.show_touched(monotonic_ns());
    FAULT_POINT("nack.before_account");
    impl.shown.show_account(true);
    FAULT_POINT("nack.after");
}

}  // namespace rollring
