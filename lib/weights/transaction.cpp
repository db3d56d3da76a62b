// One version on its way out: begin, put, publish, commit or abort.

#include <fmt/format.h>

#include <utility>

#include "fault_point.hpp"
#include "publisher_impl.hpp"
#include "publisher_wait.hpp"
#include "refuse.hpp"

namespace rollring {
namespace weights {

Result<void> PublisherImpl::check_open() const {
    if (!life_->held()) {
        return refused(Errc::invalid_argument,
                       "this publisher was made before a fork and works in its parent only");
    }
    if (open_) return {};
    return refused(Errc::invalid_argument, "no version is open");
}

std::optional<std::uint64_t> PublisherImpl::sums_offset() const {
    if (!manifest_.checksums) return {};
    return manifest_.packing.sums_offset;
}

Error PublisherImpl::silent(std::string_view stage, std::string_view who) const {
    return {Errc::timed_out, 0,
            fmt::format("version {}: by the deadline {} had not {}; wait again, expel them, or end "
                        "their processes",
                        version_, who, stage)};
}

Result<void> PublisherImpl::begin(std::int64_t version) {
    if (!life_->held()) return check_open();
    if (open_) return refused(Errc::busy, fmt::format("version {} is still open", version_));
    const std::int64_t last = std::max(version_, link_.version());
    if (version <= last || version < 0) {
        return refused(Errc::stale_version,
                       fmt::format("version {} is not above {}, the last one begun or committed in "
                                   "ring {}",
                                   version, last, ring_name_));
    }
    if (!link_.linked()) {
        return refused(Errc::not_found,
                       fmt::format("ring {} was removed: make it again, and a new publisher with "
                                   "it",
                                   ring_name_));
    }
    open_publication(version, false);
    return {};
}

void PublisherImpl::open_publication(std::int64_t version, bool only_behind) {
    seats_.drop_dead();
    version_ = version;
    report_ = CommitReport{};
    report_.version = version;
    begun_ns_ = monotonic_ns();
    put_done_ = false;
    next_piece_ = next_part_ = 0;
    filling_ = nullptr;
    end_position_ = next_position_ + manifest_.packing.parts.size();
    filled_ns_ = 0;
    seats_.open(++publication_, version, next_position_, only_behind);
    open_ = true;
    FAULT_POINT("weights.begun");
}

Result<Slot*> PublisherImpl::wait_slot(Deadline deadline) {
    const std::int64_t start_ns = monotonic_ns();
    Slot* slot = nullptr;
    wait(control_.bell(ControlPlaces::publisher_bell()), deadline, [&] {
        slot = seats_.take_slot(next_position_, &filling_index_);
        return slot != nullptr;
    });
    report_.times.wait_slot_ns += monotonic_ns() - start_ns;
    if (slot != nullptr) return slot;
    if (auto healthy = backend_.mover->health(); !healthy) return std::unexpected(healthy.error());
    const std::string holders = seats_.slot_holders();
    if (holders.empty()) {
        return refused(
            Errc::timed_out,
            fmt::format("version {}: the device did not finish packing by the deadline", version_));
    }
    return std::unexpected(silent("finished reading and freed a slot (read_done)", holders));
}

// Takes a slot for the next part, if there is none yet.
Result<void> PublisherImpl::open_part(Deadline deadline) {
    if (filling_ != nullptr) return {};
    auto slot = wait_slot(deadline);
    if (!slot) return std::unexpected(slot.error());
    filling_ = *slot;
    PartLine& line = page().parts[next_position_ % parts_kept];
    publish(line.part, next_part_);
    publish(line.slot, filling_index_);
    publish(line.position, next_position_);
    FAULT_POINT("weights.slot_taken");
    return {};
}

// All pieces of the part are queued: it is filled when the stream gets there.
Result<void> PublisherImpl::close_part(Stream stream) {
    if (filling_index_ >= arrivals_.size()) arrivals_.resize(filling_index_ + 1);
    auto& arrival = arrivals_[filling_index_];
    if (!arrival) arrival = std::make_unique<Arrival>();
    *arrival = {this, filling_, next_position_};
    FAULT_POINT("weights.packed");
    if (auto queued = backend_.mover->when_reached(stream, part_reached, arrival.get()); !queued) {
        return queued;
    }
    filling_ = nullptr;
    next_position_++;
    next_part_++;
    return {};
}

// On a thread of the driver, or inside close_part.
void PublisherImpl::part_reached(void* context) {
    const Arrival arrival = *static_cast<Arrival*>(context);
    PublisherImpl& self = *arrival.self;
    {
        const std::scoped_lock lock(self.arrivals_mutex_);
        self.arrived_.insert(arrival.position);
        std::uint64_t filled = peek(self.page().filled);
        while (self.arrived_.erase(filled) == 1) filled++;
        publish(self.page().filled, filled);
        self.filled_ns_ = monotonic_ns();
    }
    self.seats_.ring_all();
    // Last: from here on the slot, and at its end the publisher, may be gone.
    self.seats_.arrived(*arrival.slot);
}

Result<void> PublisherImpl::put_all(Deadline deadline, Stream stream) {
    if (auto fine = check_open(); !fine) return fine;
    const Packing& packing = manifest_.packing;
    if (!unaddressed_.empty()) {
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' has no address: put it by name", unaddressed_));
    }
    while (next_part_ < packing.parts.size()) {
        const Part& part = packing.parts[next_part_];
        if (auto opened = open_part(deadline); !opened) return opened;
        if (next_piece_ > part.first_piece && stream.handle != put_stream_.handle) {
            if (auto waited = backend_.mover->wait(put_stream_, deadline); !waited) return waited;
        }
        put_stream_ = stream;
        CopyPlan& plan = *plans_[next_part_];
        std::byte* slot = filling_->chunk->data();
        Result<void> packed;
        if (next_piece_ == part.first_piece) {
            packed = plan.pack(slot, sums_offset(), stream);
            next_piece_ = part.first_piece + part.pieces;
        }
        for (; packed && next_piece_ < part.first_piece + part.pieces; next_piece_++) {
            const void* data = tensors_[packing.pieces[next_piece_].tensor].data;
            packed =
                plan.pack_one(next_piece_ - part.first_piece, data, slot, sums_offset(), stream);
        }
        if (!packed) return packed;
        if (auto closed = close_part(stream); !closed) return closed;
    }
    return {};
}

Result<void> PublisherImpl::put(std::string_view name, const void* source, Deadline deadline,
                                Stream stream) {
    if (auto fine = check_open(); !fine) return fine;
    const auto found = index_.find(name);
    if (found == index_.end()) {
        return refused(Errc::invalid_argument,
                       fmt::format("this channel has no tensor '{}'", name));
    }
    const Packing& packing = manifest_.packing;
    const std::uint32_t tensor = found->second;
    if (packing.tensors[tensor].pieces == 0) return {};  // tied, or without elements
    const void* data = source != nullptr ? source : tensors_[tensor].data;
    if (data == nullptr) {
        return refused(Errc::invalid_argument, fmt::format("tensor '{}' has no address", name));
    }
    if (next_piece_ >= packing.pieces.size() || packing.pieces[next_piece_].tensor != tensor) {
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' is out of order: {} is next", name,
                                   next_piece_ >= packing.pieces.size()
                                       ? "nothing"
                                       : packing.tensors[packing.pieces[next_piece_].tensor].name));
    }
    while (next_piece_ < packing.pieces.size() && packing.pieces[next_piece_].tensor == tensor) {
        const Part& part = packing.parts[next_part_];
        if (auto opened = open_part(deadline); !opened) return opened;
        // A part is complete when the stream of its last piece gets there.
        if (next_piece_ > part.first_piece && stream.handle != put_stream_.handle) {
            if (auto waited = backend_.mover->wait(put_stream_, deadline); !waited) return waited;
        }
        put_stream_ = stream;
        auto packed = plans_[next_part_]->pack_one(next_piece_ - part.first_piece, data,
                                                   filling_->chunk->data(), sums_offset(), stream);
        if (!packed) return packed;
        next_piece_++;
        if (next_piece_ == part.first_piece + part.pieces) {
            if (auto closed = close_part(stream); !closed) return closed;
        }
    }
    return {};
}

Result<void> PublisherImpl::publish_all() {
    if (auto fine = check_open(); !fine) return fine;
    const Packing& packing = manifest_.packing;
    if (next_piece_ < packing.pieces.size()) {
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' was not put",
                                   packing.tensors[packing.pieces[next_piece_].tensor].name));
    }
    if (put_done_) return {};
    put_done_ = true;
    put_done_ns_ = monotonic_ns();
    report_.times.put_ns = put_done_ns_ - begun_ns_;
    publish(page().publications[publication_ % publications_kept].put, 1U);
    seats_.ring_all();
    FAULT_POINT("weights.published");
    return {};
}

Result<void> PublisherImpl::wait_staged(Deadline deadline) {
    Seats::Progress now;
    const auto all = [&] {
        if (observe(page().filled) < end_position_) return false;
        now = seats_.progress(false);
        return !now.rejected.empty() || now.staged == now.readers;
    };
    const bool done = wait(control_.bell(ControlPlaces::publisher_bell()), deadline, all);
    if (!now.rejected.empty()) {
        return refused(Errc::rejected, fmt::format("version {} was rejected by subscriber {}",
                                                   version_, now.rejected));
    }
    if (!done && observe(page().filled) < end_position_) {
        if (auto healthy = backend_.mover->health(); !healthy) return healthy;
        return refused(
            Errc::timed_out,
            fmt::format("version {}: the device did not finish packing by the deadline", version_));
    }
    if (!done) return std::unexpected(silent("staged it", seats_.progress(true).waiting));
    report_.subscribers = now.staged;
    return {};
}

Result<void> PublisherImpl::decide_with_group(Deadline deadline) {
    if (options_.ranks == 1) return {};
    if (!group_) {
        auto joined = GroupLink::join(
            ring_name_, {options_.rank, options_.ranks, link_.ring_id(), token_}, deadline);
        if (!joined) return std::unexpected(joined.error());
        group_ = std::move(*joined);
        publish(page().group_id, group_->id());
    }
    if (options_.rank == 0) {
        std::string missing;
        std::string dead;
        const auto settled = [&] {
            missing = group_->missing(version_);
            dead = missing.empty() ? "" : group_->dead();
            return missing.empty() || !dead.empty() || group_->decision(version_);
        };
        if (!wait(group_->bell(), deadline, settled)) {
            return std::unexpected(silent("staged it", "ranks " + missing));
        }
        if (!dead.empty() && !group_->decision(version_)) {
            return refused(
                Errc::peer_gone,
                fmt::format("version {}: ranks {} went before they had staged it", version_, dead));
        }
        if (group_->decide(version_, Outcome::committed) == Outcome::committed) return {};
    } else {
        group_->vote(version_);
        FAULT_POINT("weights.voted");
        const auto decided = [&] { return group_->decision(version_) || !group_->alive(); };
        const bool done = wait(group_->bell(), deadline, decided);
        const auto decision = group_->decision(version_);
        if (decision == Outcome::committed) return {};
        if (!decision && !done) return std::unexpected(silent("decided", "rank 0"));
        if (!decision) {
            group_.reset();
            return refused(Errc::peer_gone,
                           fmt::format("version {}: rank 0 is gone, undecided", version_));
        }
    }
    return refused(Errc::aborted, fmt::format("version {} was aborted by another rank", version_));
}

void PublisherImpl::finish_commit() {
    FAULT_POINT("weights.decided");
    // Any rank may be the first to know that all have staged; none is ahead of another here.
    if (link_.version() < version_) link_.commit(version_, observe(page().group_id));
    FAULT_POINT("weights.stamped");
    publish(page().committed, version_);
    seats_.close(Outcome::committed, "");
    FAULT_POINT("weights.committed");
    committed_ = version_;
    open_ = false;
    report_.payload_bytes = manifest_.packing.payload_bytes;
    add(page().syncs, std::uint64_t{1});
    const SyncTimes& times = report_.times;
    const std::int64_t all[] = {times.wait_slot_ns, times.put_ns, times.publish_ns, times.staged_ns,
                                times.commit_ns};
    for (std::size_t i = 0; i < std::size(all); i++) poke(page().times[i], all[i]);
}

Result<CommitReport> PublisherImpl::commit(Deadline deadline) {
    if (auto fine = check_open(); !fine) return std::unexpected(fine.error());
    if (!put_done_) {
        return refused(Errc::invalid_argument,
                       fmt::format("version {} was not published yet", version_));
    }
    if (auto staged = wait_staged(deadline); !staged) return std::unexpected(staged.error());
    const std::int64_t staged_ns = monotonic_ns();
    FAULT_POINT("weights.staged_seen");
    if (auto decided = decide_with_group(deadline); !decided) {
        return std::unexpected(decided.error());
    }
    const std::int64_t filled_ns = std::max<std::int64_t>(filled_ns_, put_done_ns_);
    report_.times.publish_ns = filled_ns - put_done_ns_;
    report_.times.staged_ns = staged_ns - filled_ns;
    report_.times.commit_ns = monotonic_ns() - staged_ns;
    finish_commit();
    return report_;
}

void PublisherImpl::abort(std::string_view why) {
    if (!open_ || !life_->held()) return;
    if (options_.ranks > 1 && !group_ && !resending_) {
        // Not met yet, and rank 0, if it is there, would wait for our vote.
        auto joined =
            GroupLink::join(ring_name_, {options_.rank, options_.ranks, link_.ring_id(), token_},
                            Deadline::after_ms(100));
        if (joined) group_ = std::move(*joined);
        if (group_) publish(page().group_id, group_->id());
    }
    // After a vote the others may have committed: then so do we.
    if (group_ && !resending_ && group_->decide(version_, Outcome::aborted) == Outcome::committed) {
        finish_commit();
        return;
    }
    seats_.close(Outcome::aborted, why);
    add(page().aborts, std::uint64_t{1});
    if (filling_ != nullptr) {
        // A device that failed calls nobody back: the slot is ours again all the same.
        if (!close_part(put_stream_)) {
            part_reached(arrivals_[filling_index_].get());
            filling_ = nullptr;
            next_position_++;
        }
    }
    open_ = false;
}

Result<CommitReport> PublisherImpl::resend(Deadline deadline, Stream stream) {
    if (!life_->held()) return std::unexpected(check_open().error());
    if (open_) return refused(Errc::busy, fmt::format("version {} is still open", version_));
    if (committed_ < 0) {
        return refused(Errc::invalid_argument, "there is no committed version to send again");
    }
    const std::int64_t last = version_;
    open_publication(committed_, true);
    resending_ = true;
    auto done = put_all(deadline, stream);
    if (done) done = publish_all();
    if (done) done = wait_staged(deadline);
    if (done) {
        seats_.close(Outcome::committed, "");
        open_ = false;
        report_.payload_bytes = manifest_.packing.payload_bytes;
    } else {
        abort("sending it again failed: " + done.error().message);
    }
    resending_ = false;
    version_ = last;
    if (!done) return std::unexpected(done.error());
    return report_;
}

}  // namespace weights

Transaction::Transaction(weights::PublisherImpl* impl)
    : impl_(impl), publication_(impl->publication()) {}
Transaction::Transaction(Transaction&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)), publication_(other.publication_) {}
Transaction& Transaction::operator=(Transaction&& other) noexcept {
    std::swap(impl_, other.impl_);
    std::swap(publication_, other.publication_);
    return *this;
}
Transaction::~Transaction() {
    abort();
}

bool Transaction::mine() const {
    return impl_ != nullptr && impl_->is_open() && impl_->publication() == publication_;
}

std::int64_t Transaction::version() const {
    return mine() ? impl_->version() : -1;
}

namespace {
std::unexpected<Error> transaction_over() {
    return std::unexpected(
        Error{Errc::invalid_argument, 0, "this transaction is over: begin another version"});
}
}  // namespace

Result<void> Transaction::put_all(Deadline deadline, Stream stream) {
    if (!mine()) return transaction_over();
    return impl_->put_all(deadline, stream);
}

Result<void> Transaction::put(std::string_view tensor, const void* source, Deadline deadline,
                              Stream stream) {
    if (!mine()) return transaction_over();
    return impl_->put(tensor, source, deadline, stream);
}

Result<void> Transaction::publish() {
    if (!mine()) return transaction_over();
    return impl_->publish_all();
}

Result<CommitReport> Transaction::commit(Deadline deadline) {
    if (!mine()) return transaction_over();
    auto report = impl_->commit(deadline);
    if (report) impl_ = nullptr;  // over: the publisher may go before this object does
    return report;
}

void Transaction::abort(std::string_view why) noexcept {
    if (mine()) impl_->abort(why);
    impl_ = nullptr;
}

}  // namespace rollring
