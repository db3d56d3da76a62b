#include "seats.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "doorbell.hpp"
#include "liveness.hpp"

namespace rollring::weights {
namespace {

void list(std::string& names, const std::string& name) {
    if (!names.empty()) names += ", ";
    names += name;
}

std::unexpected<Error> name_taken(const std::string& name, const SubscriberPage* by) {
    const std::string pid = by == nullptr ? "" : fmt::format(" (pid {})", observe(by->pid));
    return refused(Errc::busy, fmt::format("a subscriber '{}' is attached already{}: names are "
                                           "unique",
                                           name, pid));
}

}  // namespace

Result<Seats::SeatId> Seats::reserve(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    free_dead();
    const auto taken = [&](const Seat& seat) {
        return seat.name == name &&
               (seat.state == Seat::State::joining || seat.state == Seat::State::joined);
    };
    if (const auto other = std::ranges::find_if(seats_, taken); other != seats_.end()) {
        return name_taken(name, page(static_cast<std::uint32_t>(other - seats_.begin())));
    }
    // A seat whose last holder has closed, but still holds its byte, is not free yet.
    auto seat = std::ranges::find_if(seats_, [&](const Seat& one) {
        const auto index = static_cast<std::uint32_t>(&one - seats_.data());
        return one.state == Seat::State::free &&
               !alive(control_->memory().fd(), LifeByte::subscriber(index));
    });
    if (seat == seats_.end()) {
        if (seats_.size() == control_->offsets().subscribers_max) {
            return refused(Errc::busy,
                           fmt::format("all {} seats of this weight channel are taken: raise the "
                                       "publisher's subscribers_max",
                                       seats_.size()));
        }
        seat = seats_.emplace(seats_.end());
        seats_used_ = static_cast<std::uint32_t>(seats_.size());
    }
    *seat = {.state = Seat::State::joining, .epoch = ++epoch_, .name = name};
    const auto index = static_cast<std::uint32_t>(seat - seats_.begin());
    poke(control_->admission(index).reads, std::uint64_t{0});
    store_release(control_->admission(index).epoch, seat->epoch);
    return SeatId{index, seat->epoch};
}

// Whether all parts that the current publication has filled so far are still in slots.
bool Seats::still_whole() const {
    const auto of_it = std::ranges::count_if(
        slots_, [&](const auto& slot) { return slot->publication == publication_; });
    return static_cast<std::uint64_t>(of_it) == next_part_number_ - first_part_number_;
}

void Seats::join(SeatId id) {
    const std::scoped_lock lock(mutex_);
    Seat& seat = seats_[id.seat];
    if (seat.epoch != id.epoch || seat.state != Seat::State::joining) return;
    seat.state = Seat::State::joined;
    if (!together_) let_read(id.seat);
}

void Seats::let_read(std::uint32_t seat) {
    if (publication_ == 0 || !joinable_ || !still_whole()) return;
    const SubscriberPage* at = page(seat);
    if (at != nullptr && observe(at->live_version) >= version_) return;
    readers_.set(seat);
    for (auto& slot : slots_) {
        if (slot->publication == publication_) slot->readers.set(seat);
    }
    store_release(control_->admission(seat).reads, publication_);
    ring_plain(control_->bell(ControlOffsets::subscriber_bell(seat)));
}

void Seats::confirm(SeatId id) {
    const std::scoped_lock lock(mutex_);
    Seat& seat = seats_[id.seat];
    if (seat.epoch != id.epoch || seat.state != Seat::State::joined || seat.confirmed) return;
    seat.confirmed = true;
    if (together_) let_read(id.seat);
}

void Seats::confirm_attached() {
    if (!together_) return;
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        Seat& seat = seats_[i];
        const SubscriberPage* at = page(i);
        if (seat.state != Seat::State::joined || seat.confirmed || at == nullptr) continue;
        if (observe(at->attached) == 0) continue;
        seat.confirmed = true;
        let_read(i);
    }
}

bool Seats::takes_part(std::uint32_t seat) const {
    return seats_[seat].state == Seat::State::joined && (seats_[seat].confirmed || !together_);
}

void Seats::vacate(SeatId id) {
    const std::scoped_lock lock(mutex_);
    Seat& seat = seats_[id.seat];
    if (seat.epoch != id.epoch) return;
    const bool reads = seat.state == Seat::State::joined || seat.state == Seat::State::expelled;
    const SubscriberPage* at = page(id.seat);
    const bool closed = at != nullptr && observe(at->closed) != 0;
    keep_rejection(id.seat);
    // A closed connection does not prove that its process has stopped reading slots.
    if (reads && !closed && alive(control_->memory().fd(), LifeByte::subscriber(id.seat))) {
        note_ended(id.seat);
        set_aside(id.seat);
    } else {
        free_seat(id.seat);
    }
}

void Seats::free_seat(std::uint32_t seat) {
    if (seats_[seat].state == Seat::State::free) return;
    keep_rejection(seat);
    note_ended(seat);
    seats_[seat] = {};
    readers_.reset(seat);
    for (auto& slot : slots_) slot->readers.reset(seat);
    store_release(control_->admission(seat).epoch, std::uint64_t{0});
}

// A rejection of the version is final: it counts after the subscriber has left, too.
void Seats::keep_rejection(std::uint32_t seat) {
    const SubscriberPage* at = readers_[seat] ? page(seat) : nullptr;
    if (at == nullptr || publication_ == 0 || observe(at->rejected) != publication_) return;
    rejected_ = fmt::format("'{}' (ended): {}", seats_[seat].name, at->problem.load());
}

// An engine that has staged the version has done its part, whatever becomes of it.
void Seats::note_ended(std::uint32_t seat) {
    if (!together_ || !open_ || !readers_[seat]) return;
    const SubscriberPage* at = page(seat);
    if (at != nullptr && observe(at->staged) >= publication_) return;
    ended_ = fmt::format("'{}'", seats_[seat].name);
}

const SubscriberPage* Seats::page(std::uint32_t seat) const {
    const SubscriberPage& page = control_->subscriber(seat);
    return observe(page.epoch) == seats_[seat].epoch ? &page : nullptr;
}

bool Seats::lacks(std::uint32_t seat, std::int64_t committed) const {
    if (!takes_part(seat)) return false;
    const SubscriberPage* at = page(seat);
    if (at == nullptr) return false;
    const bool poisoned =
        observe(at->state) == static_cast<std::uint32_t>(SubscriberState::poisoned);
    const bool wants = poisoned || observe(at->staged_version) < committed;
    const std::uint64_t reads = peek(control_->admission(seat).reads);
    // An engine of a sharded trainer learns late that a version was aborted: when all ranks offer
    // another one.
    const bool is_aborted =
        together_ && reads != committed_ && (reads != publication_ || !joinable_);
    const bool is_too_late = reads != 0 && peek(control_->admission(seat).too_late) >= reads;
    return wants && (is_aborted || is_too_late || reads <= observe(at->publications_read));
}

void Seats::open(const Publication& publication, bool only_behind) {
    {
        const std::scoped_lock lock(mutex_);
        confirm_attached();
        publication_ = publication.number();
        version_ = publication.version();
        first_part_number_ = next_part_number_ = publication.next_part_number();
        // Other ranks may have sent it again by the time that a late one comes.
        joinable_ = !(only_behind && in_place_ && together_);
        rejected_.clear();
        ended_.clear();
        open_ = true;
        readers_.reset();
        for (std::uint32_t i = 0; i < seats_.size(); i++) {
            readers_[i] = only_behind ? lacks(i, version_) : takes_part(i);
            if (readers_[i]) store_release(control_->admission(i).reads, publication_);
        }
    }
    ring_all();
}

void Seats::close(bool joinable) {
    {
        const std::scoped_lock lock(mutex_);
        joinable_ = joinable && !in_place_;
        open_ = false;
        if (joinable && in_place_ && together_) turn_away_late();
        if (joinable) committed_ = publication_;
    }
    ring_all();
}

void Seats::drop_dead() {
    const std::scoped_lock lock(mutex_);
    free_dead();
}

void Seats::free_dead() {
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        // A joining subscriber holds no byte yet: its connection proves its life.
        if (seats_[i].state != Seat::State::joined && seats_[i].state != Seat::State::expelled) {
            continue;
        }
        // Closed: it has unmapped everything, even if its end of the socket stays open.
        const SubscriberPage* at = page(i);
        const bool closed = at != nullptr && observe(at->closed) != 0;
        if (closed || !alive(control_->memory().fd(), LifeByte::subscriber(i))) free_seat(i);
    }
}

void Seats::set_aside(std::uint32_t seat) {
    seats_[seat].state = Seat::State::expelled;
    readers_.reset(seat);
    store_release(control_->admission(seat).epoch, std::uint64_t{0});
    ring_plain(control_->bell(ControlOffsets::subscriber_bell(seat)));
    if (!in_place_) return;
    for (auto& slot : slots_) slot->readers.reset(seat);  // it only reads, and learns of its end
}

bool Seats::expel(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        if (seats_[i].name != name || seats_[i].state != Seat::State::joined) continue;
        set_aside(i);
        return true;
    }
    return false;
}

Seats::Progress Seats::progress(bool with_names) {
    const std::scoped_lock lock(mutex_);
    confirm_attached();
    Progress now{.waiting = {}, .rejected = rejected_, .ended = ended_};
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        if (!readers_[i]) continue;
        now.readers++;
        const SubscriberPage* at = page(i);
        if (at != nullptr && observe(at->rejected) == publication_) {
            now.rejected = fmt::format("'{}': {}", seats_[i].name, at->problem.load());
        } else if (at != nullptr && observe(at->staged) >= publication_) {
            now.staged++;
        } else if (with_names) {
            list(now.waiting, fmt::format("'{}'", seats_[i].name));
        }
    }
    // In the same step: an engine that came between would read bytes of the next version.
    if (in_place_ && !together_ && now.staged == now.readers) joinable_ = false;
    return now;
}

std::uint32_t Seats::joined() {
    const std::scoped_lock lock(mutex_);
    return static_cast<std::uint32_t>(std::ranges::count_if(seats_, [](const Seat& seat) {
        return seat.state == Seat::State::joined && seat.confirmed;
    }));
}

bool Seats::empty() {
    const std::scoped_lock lock(mutex_);
    return std::ranges::all_of(seats_,
                               [](const Seat& seat) { return seat.state == Seat::State::free; });
}

std::uint32_t Seats::live(std::int64_t version) {
    const std::scoped_lock lock(mutex_);
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        const SubscriberPage* at = seats_[i].state == Seat::State::joined ? page(i) : nullptr;
        if (at != nullptr && observe(at->live_version) >= version) count++;
    }
    return count;
}

std::uint32_t Seats::behind(std::int64_t committed) {
    const std::scoped_lock lock(mutex_);
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < seats_.size(); i++) count += lacks(i, committed) ? 1 : 0;
    return count;
}

void Seats::ring_all() const {
    const std::uint32_t used = seats_used_;
    for (std::uint32_t i = 0; i < used; i++) {
        ring_plain(control_->bell(ControlOffsets::subscriber_bell(i)));
    }
}

}  // namespace rollring::weights
