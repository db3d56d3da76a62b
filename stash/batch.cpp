// A batch: filled when it is leased, given back by ack or nack, remembered by its receipt.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "fault_point.hpp"
#include "prefetch.hpp"
#include "stash_impl.hpp"

namespace rollring {
namespace {

constexpr std::uint64_t receipt_magic = 0x3154504352'4c4c52;  // "RLLRCPT1"

// A receipt is this head and then one entry a record; native byte order, for it stays on one
// machine.
struct ReceiptHead {
    std::uint64_t magic;
    std::uint64_t ring_id;
    std::uint64_t count;
    std::uint64_t reserved;
};
// Where the record lay, and who it is: it may be moved before the receipt is settled.
struct ReceiptEntry {
    std::uint64_t position;
    std::uint64_t sequence;
    std::uint32_t lane;
    std::uint32_t producer_lane;
    std::uint32_t producer_epoch;
    std::uint32_t reserved;
};
static_assert(sizeof(ReceiptHead) == 32 && sizeof(ReceiptEntry) == 32);

using Identity = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;

Identity identity_of(const Frame& frame) {
    return {frame.lane, frame.epoch, frame.sequence};
}
Identity identity_of(const ReceiptEntry& entry) {
    return {entry.producer_lane, entry.producer_epoch, entry.sequence};
}

Result<std::vector<ReceiptEntry>> read_receipt(std::string_view receipt, std::uint64_t ring_id) {
    const auto refuse = [](std::string why) {
        return std::unexpected(Error{Errc::invalid_argument, 0, std::move(why)});
    };
    ReceiptHead head{};
    if (receipt.size() >= sizeof head) std::memcpy(&head, receipt.data(), sizeof head);
    if (head.magic != receipt_magic || (receipt.size() - sizeof head) % sizeof(ReceiptEntry) != 0 ||
        head.count != (receipt.size() - sizeof head) / sizeof(ReceiptEntry)) {
        return refuse(fmt::format("these {} bytes are no receipt of a batch", receipt.size()));
    }
    if (head.ring_id != ring_id) {
        return refuse("the receipt is of another ring: this one was created anew since");
    }
    std::vector<ReceiptEntry> entries(head.count);
    std::memcpy(entries.data(), receipt.data() + sizeof head, receipt.size() - sizeof head);
    return entries;
}

}  // namespace

// Fills the batch from the plan: views over the records where they lie.
void Stash::Impl::lease(Batch& batch, Stash& stash) {
    static std::atomic<std::uint64_t> leases_ever{0};
    batch.clear();
    batch.lease_.state_ =
        std::make_shared<Lease::State>(++leases_ever, fork_generation(), stash.impl_, &batch);
    leases.push_back(batch.lease_.state_);
    batch.id_ = plan.id;
    const std::size_t count = plan.segments.size();
    batch.sequences_.reserve(count);
    batch.rewards_.reserve(count);
    batch.advantages_.reserve(count);
    batch.repetition_ids_.reserve(count);
    batch.versions_.reserve(count);
    batch.cu_seqlens_.reserve(count + 1);
    batch.refs_.reserve(count + plan.settled_marks.size());
    batch.held_.reserve(count + plan.settled_marks.size());
    for (const MemberSegment& mark : plan.settled_marks) {
        batch.refs_.push_back(held[mark.tag].ref);
        batch.held_.push_back(mark.tag);
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
        group_advantages(rewards, options.advantages, advantages);
        for (std::uint32_t m = 0; m < members.size(); m++) {
            const BatchMember& member = members[m];
            for (const MemberSegment& segment : plan.segments_of(member)) {
                prefetch_to_read(held[segment.tag], record_bytes_used);
                batch.sequences_.push_back({held[segment.tag].view,
                                            static_cast<std::uint32_t>(batch.groups_.size()), m,
                                            member.withheld});
                batch.rewards_.push_back(rewards[m]);
                batch.advantages_.push_back(advantages[m]);
                batch.repetition_ids_.push_back(member.repetition_id);
                batch.versions_.push_back(held[segment.tag].view.meta().policy_version_min);
                batch.refs_.push_back(held[segment.tag].ref);
                batch.held_.push_back(segment.tag);
                batch.cu_seqlens_.push_back(batch.cu_seqlens_.back() + segment.n_tokens);
            }
        }
        batch.groups_.push_back({group.key, group.size, static_cast<std::uint32_t>(members.size()),
                                 group.bad_rewards, unrewarded});
        batch.group_offsets_.push_back(static_cast<std::uint32_t>(batch.sequences_.size()));
    }
}

void Stash::Impl::end_lease(const std::shared_ptr<Lease::State>& lease) {
    lease->held = false;
    std::erase(leases, lease);
}

// The bounds stay for producers until the next trainer comes, or a plain consumer, who lifts them.
void Stash::Impl::close() {
    // In a forked child the batches may be gone.
    const bool usable = ring().usable();
    for (const auto& lease : leases) {
        lease->held = false;
        if (usable) lease->batch->clear();
    }
    leases.clear();
    if (usable) ring().close();
}

Result<std::uint64_t> Stash::Impl::settle(std::string_view receipt, std::int64_t step) {
    if (auto usable = ring().check_usable(); !usable) return std::unexpected(usable.error());
    if (polled) {
        return std::unexpected(Error{Errc::invalid_argument, 0,
                                     "settle a receipt before the first next_batch(): its records "
                                     "may be in another batch by now"});
    }
    auto entries = read_receipt(receipt, ring().map.ring_id());
    if (!entries) return std::unexpected(entries.error());
    std::vector<RecordRef> found;
    std::map<Identity, bool> elsewhere;
    RecordRef ref{};
    Frame frame;
    for (const ReceiptEntry& entry : *entries) {
        const auto& feeds = ring().feeds;
        // Positions never come again: what lies there unreleased is it, whatever its frame says.
        const bool here = entry.lane < feeds.size() && feeds[entry.lane] &&
                          feeds[entry.lane]->undelivered(entry.position, ref, frame);
        if (here) {
            found.push_back(ref);
        } else {
            elsewhere.emplace(identity_of(entry), true);
        }
    }
    // Those that were nacked and then moved to the spill before the trainer died.
    const auto& spill = ring().feeds.back();
    for (std::uint64_t at = spill ? spill->oldest_position() : 0;
         spill && !elsewhere.empty() && spill->frame_at(at, frame); at += frame.bytes) {
        if (frame.kind != static_cast<std::uint16_t>(FrameKind::record)) continue;
        if (!spill->undelivered(at, ref, frame)) continue;
        if (elsewhere.erase(identity_of(frame)) != 0) found.push_back(ref);
    }
    if (found.empty()) return std::uint64_t{0};
    // One that was leased later may have been acknowledged before.
    if (step >= 0) step = std::max(step, consumer.last_acked_step());
    if (auto checked = ring().check_step(step); !checked) return std::unexpected(checked.error());
    // Their groups are over, as after ack().
    const std::int64_t now = monotonic_ns();
    std::vector<GroupKey> keys;
    for (const RecordRef& one : found) {
        TrajectoryView view;
        if (!consumer.view(one, view)) continue;
        const GroupKey key = view.group_key();
        if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
    board->dig(keys, now);
    auto released = ring().release_all(found, step, false);
    if (!released) return std::unexpected(released.error());
    for (const GroupKey& key : keys) groups.bury(key, now);
    publish_account(true);
    return found.size();
}

std::string Batch::receipt() const {
    if (!leased()) return {};
    const Stash::Impl& stash = Stash::Impl::of(*lease_.state_);
    const Consumer::Impl& ring = stash.ring();
    const ReceiptHead head{receipt_magic, ring.map.ring_id(), refs_.size(), 0};
    std::string bytes(sizeof head + refs_.size() * sizeof(ReceiptEntry), '\0');
    std::memcpy(bytes.data(), &head, sizeof head);
    for (std::size_t i = 0; i < refs_.size(); i++) {
        // As it was checked when the record came.
        const Record& record = stash.held[held_[i]];
        const ReceiptEntry entry{refs_[i].position,    record.sequence,       refs_[i].lane,
                                 record.producer_lane, record.producer_epoch, 0};
        std::memcpy(bytes.data() + sizeof head + i * sizeof entry, &entry, sizeof entry);
    }
    return bytes;
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
    held_ = std::move(other.held_);
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
    held_.clear();
}

Batch::~Batch() {
    nack();
}

Result<void> Batch::check_leased() const {
    if (leased()) return {};
    if (lease_.state_ == nullptr) {
        return std::unexpected(
            Error{Errc::not_leased, 0,
                  "the batch is not leased: it was acknowledged or given back before"});
    }
    if (lease_.state_->forks != fork_generation()) {
        return std::unexpected(Error{Errc::forked, 0,
                                     "the batch is leased to the process that forked this one, and "
                                     "only that may acknowledge it"});
    }
    return std::unexpected(
        Error{Errc::not_leased, 0,
              "the batch is not leased any more, for its stash is gone: its groups come again to "
              "the ring's next stash"});
}

Result<void> Batch::ack(std::int64_t step) {
    if (auto held = check_leased(); !held) return held;
    Stash::Impl& impl = Stash::Impl::of(*lease_.state_);
    if (auto checked = impl.ring().check_step(step); !checked) return checked;
    const std::int64_t now = monotonic_ns();
    std::vector<GroupKey> keys;
    keys.reserve(groups_.size());
    for (const BatchGroupInfo& group : groups_) keys.push_back(group.key);
    impl.board->dig(keys, now);
    FAULT_POINT("ack.after_dig");
    auto released = impl.ring().release_all(refs_, step, true);
    if (!released) return released;  // still leased: nothing was given back
    const Lease ended = std::exchange(lease_, {});
    impl.end_lease(ended.state_);
    for (const std::uint32_t place : held_) impl.held.give_back(place);
    clear();
    impl.groups.ack(id_, now);
    impl.show_touched(now, true);
    impl.publish_account(true);
    FAULT_POINT("ack.after_account");
    return {};
}

// A batch whose stash is gone, or another process's, is just let go.
void Batch::nack() {
    const bool held = leased();
    const Lease ended = std::exchange(lease_, {});
    clear();
    if (!held) return;
    Stash::Impl& impl = Stash::Impl::of(*ended.state_);
    impl.end_lease(ended.state_);
    FAULT_POINT("nack.before");
    impl.groups.nack(id_);
    impl.show_touched(monotonic_ns());
    FAULT_POINT("nack.before_account");
    impl.publish_account(true);
    FAULT_POINT("nack.after");
}

}  // namespace rollring
