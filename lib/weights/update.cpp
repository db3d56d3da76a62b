// One version on its way in: next, part, done_reading, stage, adopt or reject.

#include <fmt/format.h>

#include <utility>

#include "doorbell.hpp"
#include "fault_point.hpp"
#include "refuse.hpp"
#include "subscriber_impl.hpp"

namespace rollring {
namespace weights {

std::string SubscriberImpl::what_is_held() const {
    if (state_ == SubscriberState::poisoned || (updating_ && touched_)) {
        return "this subscriber is poisoned until it gets a whole version";
    }
    if (live_version_ < 0) return "this subscriber holds no version yet";
    return fmt::format("this subscriber holds version {} whole", live_version_);
}

void SubscriberImpl::set_state(SubscriberState state) {
    state_ = state;
    publish(control_->own().state, static_cast<std::uint32_t>(state));
}

void SubscriberImpl::ring_publisher() const {
    ring_plain(control_->bell(ControlPlaces::publisher_bell()));
}

Result<void> SubscriberImpl::check_peer_alive() const {
    if (!life_->held()) {
        return refused(Errc::invalid_argument,
                       "this subscriber was made before a fork and works in its parent only");
    }
    const bool closed = observe(publisher().closed) != 0;
    if (!closed && alive(control_->memory().fd(), LifeByte::publisher())) return {};
    return refused(Errc::peer_gone,
                   fmt::format("the publisher of ring {} {}; {}; attach again", ring_name_,
                               closed ? "has closed" : "died", what_is_held()));
}

Result<void> SubscriberImpl::check_admitted() const {
    if (!expelled()) return {};
    return refused(Errc::expelled,
                   fmt::format("the publisher of ring {} went on without '{}'; {}; attach again",
                               ring_name_, options_.name, what_is_held()));
}

template <class Look>
Result<void> SubscriberImpl::wait(std::string_view what, Deadline deadline, const Look& look) {
    constexpr std::int64_t between_ns = 50'000'000;
    std::int64_t looked_ns = 0;  // the first look checks life, too
    Result<void> problem;
    const auto found = [&] {
        if (look()) return true;
        problem = check_admitted();
        if (!problem) return true;
        const std::int64_t now = monotonic_ns();
        if (now - looked_ns < between_ns) return false;
        looked_ns = now;
        problem = check_peer_alive();
        if (problem) problem = backend_.mover->health();
        // What it did before it went counts.
        if (!problem && look()) problem = {};
        return !problem || look();
    };
    if (wait_plain(bell(), options_.spin_ns, deadline, found)) return problem;
    return refused(Errc::timed_out, fmt::format("'{}' waited for {} until the deadline; {}",
                                                options_.name, what, what_is_held()));
}

Result<void> SubscriberImpl::next(Deadline deadline) {
    if (updating_) {
        return refused(Errc::busy, fmt::format("version {} is not over yet", version_));
    }
    // What the device reads of a version that was given up is not to be refilled.
    if (in_flight_ != 0 && !drain(deadline)) {
        if (auto healthy = backend_.mover->health(); !healthy) return healthy;
        return refused(Errc::timed_out,
                       fmt::format("'{}' waited for its device to finish reading version {}; {}",
                                   options_.name, version_, what_is_held()));
    }
    PublicationView view{};
    const auto there = [&] {
        const std::uint64_t reads = observe(control_->admission(seat_).reads);
        if (reads <= publication_) return false;
        const auto seen = look_up(publisher(), reads);
        if (!seen) return false;
        if (seen->outcome == Outcome::aborted) {
            publication_ = reads;
            publish(control_->own().settled, reads);
            ring_publisher();
            return false;
        }
        const bool begun = seen->put || seen->outcome == Outcome::committed ||
                           observe(publisher().filled) > seen->first_position;
        if (!begun) return false;
        view = *seen;
        publication_ = reads;
        return true;
    };
    if (auto waited = wait("the next version", deadline, there); !waited) return waited;
    version_ = view.version;
    came_late_ = view.outcome == Outcome::committed;
    first_position_ = view.first_position;
    {
        const std::scoped_lock lock(readings_mutex_);
        read_.clear();
        publish(control_->own().read_done, first_position_);
    }
    parts_lent_ = parts_done_ = 0;
    touched_ = staged_ = false;
    updating_ = true;
    if (state_ != SubscriberState::poisoned) set_state(SubscriberState::reading);
    FAULT_POINT("weights.seen");
    return {};
}

bool SubscriberImpl::expelled() const {
    return observe(control_->admission(seat_).epoch) != epoch_;
}

Outcome SubscriberImpl::outcome() const {
    if (const auto view = look_up(publisher(), publication_)) return view->outcome;
    if (came_late_) return Outcome::committed;  // it was, when we came
    // Its line is used again. It was given up, for it could not be committed without us, unless we
    // do not count any more.
    return expelled() ? Outcome::open : Outcome::aborted;
}

// Says that nothing is read any more, once that is so: the device may be reading still.
void SubscriberImpl::settle() {
    {
        const std::scoped_lock lock(readings_mutex_);
        settling_ = publication_;
        if (in_flight_ == 0) publish(control_->own().settled, settling_);
    }
    ring_publisher();
}

std::unexpected<Error> SubscriberImpl::give_up(Error why) {
    updating_ = false;
    problem_ = fmt::format("version {}: {}", version_, why.message);
    if (!life_->held()) return std::unexpected(std::move(why));  // the page is our parent's
    const bool lost_whole = touched_ || state_ == SubscriberState::poisoned;
    publish(control_->own().staged_version, lost_whole ? std::int64_t{-1} : live_version_);
    control_->own().problem.store(problem_);
    set_state(lost_whole ? SubscriberState::poisoned : SubscriberState::ready);
    // Unless it was the publisher's doing, the publisher has to know: it waits for us.
    if (why.code != Errc::aborted && why.code != Errc::peer_gone && why.code != Errc::expelled) {
        publish(control_->own().rejected, publication_);
    }
    settle();
    return std::unexpected(std::move(why));
}

Result<std::uint32_t> SubscriberImpl::slot_of(std::uint32_t part) const {
    const std::uint64_t position = first_position_ + part;
    const PartLine& line = publisher().parts[position % parts_kept];
    const std::uint32_t slot = observe(line.slot);
    if (observe(line.position) != position || observe(line.part) != part || slot >= slots_limit) {
        return refused(Errc::bad_manifest,
                       fmt::format("the publisher's line for part {} is damaged", part));
    }
    return slot;
}

Result<std::span<const TensorPiece>> SubscriberImpl::part(std::uint32_t part, Deadline deadline) {
    const Packing& packing = manifest_.packing;
    if (!updating_) return refused(Errc::invalid_argument, "this update is over");
    if (part != parts_lent_ || parts_lent_ != parts_done_ || part >= packing.parts.size()) {
        return refused(Errc::invalid_argument,
                       fmt::format("part {} is out of order: {} is next of {}, after done_reading "
                                   "of the one before it",
                                   part, parts_lent_, packing.parts.size()));
    }
    Outcome now = Outcome::open;
    const auto filled = [&] {
        // In this order: a part that is filled after its version was aborted is not whole.
        const bool there = observe(publisher().filled) > first_position_ + part;
        now = outcome();
        return there || now == Outcome::aborted;
    };
    if (auto waited = wait(fmt::format("part {} of version {}", part, version_), deadline, filled);
        !waited) {
        if (waited.error().code == Errc::timed_out) return std::unexpected(waited.error());
        return give_up(std::move(waited.error()));
    }
    // Behind `filled`: slots that were filled after we were expelled do not wait for us.
    if (auto admitted = check_admitted(); !admitted) return give_up(std::move(admitted.error()));
    if (now == Outcome::aborted) {
        const PublicationLine& line = publisher().publications[publication_ % publications_kept];
        return give_up({Errc::aborted, 0,
                        fmt::format("version {} was given up ({}); {}", version_, line.why.load(),
                                    what_is_held())});
    }
    const auto slot = slot_of(part);
    if (!slot) return give_up(slot.error());
    if (auto fetched = fetch_slot(*slot, deadline); !fetched) {
        if (fetched.error().code == Errc::timed_out) return std::unexpected(fetched.error());
        return give_up(std::move(fetched.error()));
    }
    const Chunk& chunk = *chunks_[*slot];
    if (auto verified = verify(part, chunk); !verified) {
        return give_up(std::move(verified.error()));
    }
    lent_slot_ = *slot;
    parts_lent_++;
    touched_ = touched_ || options_.in_place;
    views_.clear();
    const Part& at = packing.parts[part];
    for (const Piece& piece : std::span(packing.pieces).subspan(at.first_piece, at.pieces)) {
        views_.push_back({.tensor = piece.tensor,
                          .first_element = piece.first_element,
                          .elements = piece.elements,
                          .data = chunk.data() + piece.slot_offset});
    }
    FAULT_POINT("weights.part_seen");
    return std::span<const TensorPiece>(views_);
}

Result<void> SubscriberImpl::verify(std::uint32_t part, const Chunk& chunk) {
    if (sums_.empty()) return {};
    const Packing& packing = manifest_.packing;
    const auto differs = sums_[part]->verify(chunk.data(), packing.sums_offset, {});
    if (!differs) return std::unexpected(differs.error());
    if (!*differs) return {};
    const Piece& piece = packing.pieces[packing.parts[part].first_piece + **differs];
    return refused(Errc::checksum_mismatch,
                   fmt::format("tensor '{}' of version {} did not arrive as it was sent",
                               packing.tensors[piece.tensor].name, version_));
}

// On a thread of the driver, or inside done_reading.
void SubscriberImpl::part_reached(void* context) {
    const Reading reading = *static_cast<Reading*>(context);
    SubscriberImpl& self = *reading.self;
    {
        const std::scoped_lock lock(self.readings_mutex_);
        self.read_.insert(reading.position);
        std::atomic<std::uint64_t>& word = self.control_->own().read_done;
        std::uint64_t done = peek(word);
        while (self.read_.erase(done) == 1) done++;
        publish(word, done);
        if (self.in_flight_ == 1 && self.settling_ > peek(self.control_->own().settled)) {
            publish(self.control_->own().settled, self.settling_);
        }
    }
    self.ring_publisher();
    ring_plain(self.bell());
    self.in_flight_--;  // last: the subscriber may be gone from here on
}

Result<void> SubscriberImpl::done_reading(std::uint32_t part, Stream stream) {
    if (!updating_ || part + 1 != parts_lent_ || parts_done_ == parts_lent_) {
        return refused(Errc::invalid_argument, fmt::format("part {} is not being read", part));
    }
    FAULT_POINT("weights.reading");
    if (lent_slot_ >= readings_.size()) readings_.resize(lent_slot_ + 1);
    auto& reading = readings_[lent_slot_];
    if (!reading) reading = std::make_unique<Reading>();
    *reading = {this, first_position_ + part};
    {
        const std::scoped_lock lock(readings_mutex_);
        in_flight_++;
    }
    if (auto queued = backend_.mover->when_reached(stream, part_reached, reading.get()); !queued) {
        in_flight_--;
        return give_up(std::move(queued.error()));
    }
    parts_done_++;
    FAULT_POINT("weights.read_done");
    return {};
}

Result<void> SubscriberImpl::load(Deadline deadline, Stream stream) {
    const auto parts = static_cast<std::uint32_t>(manifest_.packing.parts.size());
    if (plans_.size() != parts) {
        return refused(Errc::invalid_argument,
                       "load needs the engine's tensors: give them to attach");
    }
    // After a timed_out it goes on where it was.
    for (std::uint32_t i = parts_lent_; i < parts; i++) {
        if (auto views = part(i, deadline); !views) return std::unexpected(views.error());
        auto copied = plans_[i]->unpack(chunks_[lent_slot_]->data(), stream);
        if (!copied) return give_up(std::move(copied.error()));
        if (auto done = done_reading(i, stream); !done) return done;
    }
    return {};
}

bool SubscriberImpl::drain(Deadline deadline) {
    while (in_flight_ != 0) {
        if (deadline.passed() || !backend_.mover->health()) return false;
        nap();
    }
    return true;
}

Result<void> SubscriberImpl::stage(Deadline deadline) {
    if (!updating_) return refused(Errc::invalid_argument, "this update is over");
    const std::uint64_t end = first_position_ + manifest_.packing.parts.size();
    if (first_position_ + parts_done_ != end) {
        return refused(Errc::invalid_argument, fmt::format("{} of {} parts were read", parts_done_,
                                                           manifest_.packing.parts.size()));
    }
    const SubscriberPage& page = control_->own();
    const auto read = [&] { return peek(page.read_done) >= end; };
    if (auto waited = wait("its device to finish reading", deadline, read); !waited) {
        if (waited.error().code == Errc::timed_out) return waited;
        return give_up(std::move(waited.error()));
    }
    staged_ = true;
    set_state(SubscriberState::staged);
    publish(control_->own().staged_version, version_);
    publish(control_->own().staged, publication_);
    FAULT_POINT("weights.staged");
    ring_publisher();
    return {};
}

Result<void> SubscriberImpl::adopt(Deadline deadline) {
    if (!updating_) return refused(Errc::invalid_argument, "this update is over");
    if (!staged_) return refused(Errc::invalid_argument, "stage the version before adopting it");
    Outcome now = Outcome::open;
    const auto decided = [&] { return (now = outcome()) != Outcome::open; };
    if (auto waited = wait(fmt::format("the commit of version {}", version_), deadline, decided);
        !waited) {
        if (waited.error().code == Errc::timed_out) return waited;
        // It may have died between its commit and telling us.
        if (!link_.committed(version_, observe(publisher().group_id))) {
            return give_up(std::move(waited.error()));
        }
        now = Outcome::committed;
    }
    FAULT_POINT("weights.commit_seen");
    if (now == Outcome::aborted) {
        // Or our publication's line is used again, which takes an expulsion.
        const PublicationLine& line = publisher().publications[publication_ % publications_kept];
        return give_up({Errc::aborted, 0,
                        fmt::format("version {} was given up ({}); {}", version_, line.why.load(),
                                    what_is_held())});
    }
    live_version_ = version_;
    updating_ = false;
    problem_.clear();
    control_->own().problem.store("");
    publish(control_->own().live_version, version_);
    publish(control_->own().settled, publication_);
    set_state(SubscriberState::ready);
    FAULT_POINT("weights.live");
    ring_publisher();
    return {};
}

void SubscriberImpl::reject(std::string_view why, std::string_view tensor) {
    if (!updating_ || !life_->held()) return;
    const std::string message =
        tensor.empty() ? std::string(why) : fmt::format("tensor '{}': {}", tensor, why);
    static_cast<void>(give_up({Errc::rejected, 0, message}));
}

}  // namespace weights

Update::Update(weights::SubscriberImpl* impl)
    : impl_(impl), publication_(impl->publication()), version_(impl->version()) {}
Update::Update(Update&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)),
      publication_(other.publication_),
      version_(other.version_) {}
Update& Update::operator=(Update&& other) noexcept {
    std::swap(impl_, other.impl_);
    std::swap(publication_, other.publication_);
    std::swap(version_, other.version_);
    return *this;
}
Update::~Update() {
    reject("the engine dropped it");
}

bool Update::mine() const {
    return impl_ != nullptr && impl_->updating() && impl_->publication() == publication_;
}

namespace {
std::unexpected<Error> update_over() {
    return std::unexpected(Error{Errc::invalid_argument, 0, "this update is over"});
}
}  // namespace

std::uint32_t Update::parts() const {
    return mine() ? static_cast<std::uint32_t>(impl_->manifest().packing.parts.size()) : 0;
}
Result<std::span<const TensorPiece>> Update::part(std::uint32_t part, Deadline deadline) {
    if (!mine()) return update_over();
    return impl_->part(part, deadline);
}
Result<void> Update::done_reading(std::uint32_t part, Stream stream) {
    if (!mine()) return update_over();
    return impl_->done_reading(part, stream);
}
Result<void> Update::load(Deadline deadline, Stream stream) {
    if (!mine()) return update_over();
    return impl_->load(deadline, stream);
}
Result<void> Update::stage(Deadline deadline) {
    if (!mine()) return update_over();
    return impl_->stage(deadline);
}
Result<void> Update::adopt(Deadline deadline) {
    if (!mine()) return update_over();
    auto adopted = impl_->adopt(deadline);
    if (adopted) impl_ = nullptr;  // over: the subscriber may go before this object does
    return adopted;
}
void Update::reject(std::string_view why, std::string_view tensor) noexcept {
    if (mine()) impl_->reject(why, tensor);
    impl_ = nullptr;
}

}  // namespace rollring
