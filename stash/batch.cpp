// A leased batch: returned by ack or nack, and named by its receipt.

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "receipt.hpp"
#include "stash_impl.hpp"
#include "ticket.hpp"
#include "turn.hpp"

namespace rollring {
namespace {

constexpr std::int64_t readers_patience_ms = 10'000;

Result<void> check(const RankShare& share) {
    const std::uint64_t same = std::uint64_t{share.tensor} * share.pipeline;
    if (same != 0 && share.world % same == 0 && share.rank < share.world) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("rank {} of {}: a rank must be below the number of ranks, and that "
                               "number must be a multiple of tensor ({}) times pipeline ({})",
                               share.rank, share.world, share.tensor, share.pipeline));
}

}  // namespace

std::string Batch::receipt() const {
    if (!leased()) return {};
    const Stash::Impl& stash = Stash::Impl::of(*lease_.state_);
    std::vector<ReceiptEntry> entries;
    entries.reserve(refs_.size());
    for (std::size_t i = 0; i < refs_.size(); i++) {
        // The identity as it was checked when the record was read.
        const Record& record = stash.records[indices_[i]];
        entries.push_back({refs_[i].position, record.sequence, refs_[i].lane, record.producer_lane,
                           record.producer_epoch, 0});
    }
    return write_receipt(entries, stash.core.map().ring_id());
}

Result<std::string> Batch::ticket(const RankShare& share) {
    if (auto checked = check_leased(); !checked) return std::unexpected(checked.error());
    if (auto checked = check(share); !checked) return std::unexpected(checked.error());
    const auto shares = split(*this, share.by, share.parts());
    if (!shares) return std::unexpected(shares.error());
    Stash::Impl& stash = Stash::Impl::of(*lease_.state_);
    if (shared_ == 0) {
        const auto shared = stash.shares.share();
        if (!shared) return std::unexpected(shared.error());
        shared_ = shared->number;
        shared_row_ = shared->row;
    }
    Ticket ticket;
    ticket.head.ring_id = stash.core.map().ring_id();
    ticket.head.number = shared_;
    ticket.head.row = shared_row_;
    ticket.head.epoch = peek(stash.core.control().epoch);
    ticket.head.rank = share.rank;
    ticket.head.world = share.world;
    const std::size_t marks = refs_.size() - sequences().size();  // failure marks, which come first
    std::uint32_t group_before = 0;
    for (const std::uint32_t i : shares->parts[share.part()]) {
        const Sequence& one = sequences()[i];
        if (ticket.groups.empty() || one.group != group_before) {
            const BatchGroupInfo& group = groups()[one.group];
            ticket.groups.push_back({group.key.low, group.key.high, group.size, group.members,
                                     group.bad_rewards, group.unrewarded, 0, 0});
            group_before = one.group;
        }
        ticket.groups.back().records++;
        const RecordRef& ref = refs_[marks + i];
        const Record& record = stash.records[indices_[marks + i]];
        ticket.records.push_back({ref.position, record.sequence, ref.lane, ref.lines,
                                  record.producer_lane, record.producer_epoch, i, one.member,
                                  one.view.n_tokens(), one.withheld ? 1U : 0U, rewards()[i],
                                  advantages()[i]});
    }
    return ticket.write();
}

Batch::Batch() = default;
Batch::Batch(Batch&& other) noexcept : Sequences() {
    *this = std::move(other);
}

Batch& Batch::operator=(Batch&& other) noexcept {
    if (this == &other) return *this;
    nack();
    Sequences::operator=(std::move(static_cast<Sequences&>(other)));  // own members follow
    if (lease_.state_ != nullptr) lease_.state_->batch = this;
    id_ = other.id_;
    shared_ = std::exchange(other.shared_, 0);
    shared_row_ = other.shared_row_;
    refs_ = std::move(other.refs_);
    indices_ = std::move(other.indices_);
    return *this;
}

void Batch::clear() {
    Sequences::clear();
    shared_ = 0;
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
                       "the batch is not leased: it has already been acknowledged or given back");
    }
    if (lease_.state_->forks != fork_generation()) {
        return refused(
            Errc::forked,
            "the batch is leased to the parent process, and only that process may acknowledge it");
    }
    return refused(Errc::not_leased,
                   "the batch is no longer leased, because its stash is gone: the ring's next "
                   "stash delivers its groups again");
}

Result<void> Batch::ack(std::int64_t step) {
    return ack(step, shared_ != 0 ? Deadline::after_ms(readers_patience_ms) : Deadline::now());
}

Result<void> Batch::ack(std::int64_t step, Deadline readers) {
    if (auto checked = check_leased(); !checked) return checked;
    const Stash::Impl& impl = Stash::Impl::of(*lease_.state_);
    if (auto checked = impl.core.check_step(step); !checked) return checked;
    return end_lease(step, readers, std::nullopt);
}

Result<void> Batch::discard(DropReason reason) {
    if (auto checked = check_leased(); !checked) return checked;
    if (reason >= DropReason::count) {
        return refused(Errc::invalid_argument, "no such reason to drop records");
    }
    constexpr std::int64_t no_step = -1;
    return end_lease(no_step, Deadline::after_ms(readers_patience_ms), reason);
}

Result<void> Batch::end_lease(std::int64_t step, Deadline readers,
                              std::optional<DropReason> dropped) {
    Stash::Impl& impl = Stash::Impl::of(*lease_.state_);
    const ShareBook::Shared shared{shared_, shared_row_};
    if (shared_ != 0) {
        if (auto recalled = impl.shares.recall(shared, readers); !recalled) return recalled;
    }
    const std::size_t marks = refs_.size() - sequences().size();  // failure marks, which come first
    if (auto noted = impl.note_in_ledger(indices_, marks, step, dropped.has_value()); !noted) {
        if (shared_ != 0) impl.shares.restore(shared);
        return noted;
    }
    const std::int64_t now = monotonic_ns();
    std::vector<GroupKey> keys;
    keys.reserve(groups().size());
    for (const BatchGroupInfo& group : groups()) keys.push_back(group.key);
    impl.shown.prepare_tombstones(keys, now);
    FAULT_POINT("ack.after_tombstones");
    auto released = impl.core.release_all(refs_, step, true);
    if (!released) {  // still leased: nothing was released
        if (impl.ledger != nullptr) impl.ledger->ack_failed();
        if (shared_ != 0) impl.shares.restore(shared);
        return released;
    }
    const Lease ended = std::exchange(lease_, {});
    impl.leases.end(ended.state_);
    for (const std::uint32_t index : indices_) impl.records.give_back(index);
    clear();
    {
        Stash::Impl::Turn turn(impl, now);
        turn.has_tombstones();
        turn.shows_account(true);
        turn.groups().ack(id_, now, dropped);
    }
    FAULT_POINT("ack.after_account");
    return {};
}

// A batch of another process, or of a stash that is gone, is only forgotten.
void Batch::nack() {
    const bool was_leased = leased();
    const Lease ended = std::exchange(lease_, {});
    const std::uint64_t shared = shared_;
    clear();
    if (!was_leased) return;
    Stash::Impl& impl = Stash::Impl::of(*ended.state_);
    impl.leases.end(ended.state_);
    FAULT_POINT("nack.before");
    if (shared != 0) impl.shares.end({shared, shared_row_});
    {
        Stash::Impl::Turn turn(impl, monotonic_ns());
        turn.shows_account(true);
        turn.groups().nack(id_);
        turn.show_groups();
        FAULT_POINT("nack.before_account");
    }
    FAULT_POINT("nack.after");
}

}  // namespace rollring
