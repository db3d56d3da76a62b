// The slots of a publisher, and the subscribers that read them.

#include <fmt/core.h>

#include <algorithm>

#include "doorbell.hpp"
#include "seats.hpp"

namespace rollring::weights {

void Seats::add_slot(std::unique_ptr<SharedBlock> block) {
    const std::scoped_lock lock(mutex_);
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->block = std::move(block);
}

std::size_t Seats::slot_count() {
    const std::scoped_lock lock(mutex_);
    return slots_.size();
}

std::size_t Seats::usable_slots(const std::string& without) {
    const std::scoped_lock lock(mutex_);
    SeatSet expelled;
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        expelled[i] = seats_[i].state == Seat::State::expelled ||
                      (seats_[i].state == Seat::State::joined && seats_[i].name == without);
    }
    return static_cast<std::size_t>(std::ranges::count_if(slots_, [&](const auto& slot) {
        for (std::uint32_t i = 0; i < seats_.size(); i++) {
            if (expelled[i] && slot->readers[i] && !passed(i, *slot)) return false;
        }
        return true;
    }));
}

std::vector<std::pair<WireTicket, int>> Seats::slots_for_wire() {
    const std::scoped_lock lock(mutex_);
    std::vector<std::pair<WireTicket, int>> all;
    all.reserve(slots_.size());
    for (const auto& slot : slots_) all.emplace_back(to_wire(*slot->block), slot->block->fd());
    return all;
}

Slot* Seats::take_slot(std::uint64_t part_number, std::uint32_t* index) {
    const std::scoped_lock lock(mutex_);
    Slot* best = nullptr;
    const auto sooner = [](const Slot& a, const Slot& b) { return a.part_number < b.part_number; };
    for (std::uint32_t i = 0; i < slots_.size(); i++) {
        Slot& slot = *slots_[i];
        if (!slot.filled) continue;
        // The committed version stays, for engines that come late and after an abort.
        if (together_ && keeps_committed(slot)) continue;
        bool read = false;
        for (std::uint32_t seat = 0; seat < seats_.size() && !read; seat++) {
            if (slot.readers[seat] && passed(seat, slot)) slot.readers.reset(seat);
            read = slot.readers[seat];
        }
        // The slot that was used longest ago: a version stays complete in the slots as long as
        // possible.
        if (!read && (best == nullptr || sooner(slot, *best) || slot.publication == 0)) {
            best = &slot;
            *index = i;
            if (slot.publication == 0) break;
        }
    }
    if (best == nullptr) return nullptr;
    best->publication = publication_;
    best->part_number = part_number;
    best->filled = false;
    best->readers = readers_;
    next_part_number_ = part_number + 1;
    return best;
}

void Seats::slot_filled(Slot& slot) {
    const std::scoped_lock lock(mutex_);
    slot.filled = true;
    ring_plain(control_->bell(ControlOffsets::publisher_bell()));
}

bool Seats::all_filled() {
    const std::scoped_lock lock(mutex_);
    return std::ranges::all_of(slots_, [](const auto& slot) { return slot->filled; });
}

std::vector<std::uint32_t> Seats::committed_slots() {
    const std::scoped_lock lock(mutex_);
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < slots_.size(); i++) {
        if (keeps_committed(*slots_[i])) found.push_back(i);
    }
    std::ranges::sort(found, {}, [&](std::uint32_t slot) { return slots_[slot]->part_number; });
    return found;
}

void Seats::offer_again(const Publication& publication, std::span<const std::uint32_t> slots,
                        std::uint64_t first_part_number) {
    const std::scoped_lock lock(mutex_);
    publication_ = publication.number();
    version_ = publication.version();
    first_part_number_ = first_part_number;
    next_part_number_ = first_part_number + slots.size();
    rejected_.clear();
    ended_.clear();
    readers_.reset();
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        const SubscriberPage* at = takes_part(i) ? page(i) : nullptr;
        readers_[i] = at != nullptr &&
                      (observe(at->live_version) < version_ ||
                       observe(at->state) == static_cast<std::uint32_t>(SubscriberState::poisoned));
    }
    for (std::uint32_t part = 0; part < slots.size(); part++) {
        Slot& slot = *slots_[slots[part]];
        for (std::uint32_t seat = 0; seat < seats_.size(); seat++) {
            if (slot.readers[seat] && passed(seat, slot)) slot.readers.reset(seat);
        }
        slot.publication = publication_;
        slot.part_number = first_part_number + part;
        slot.readers |= readers_;
    }
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        if (readers_[i]) store_release(control_->admission(i).reads, publication_);
    }
}

void Seats::free_aborted() {
    const std::scoped_lock lock(mutex_);
    for (auto& slot : slots_) {
        if (slot->publication == publication_) slot->readers.reset();
    }
}

bool Seats::passed(std::uint32_t seat, const Slot& slot) const {
    const SubscriberPage* at = page(seat);
    if (at == nullptr) return false;
    return observe(at->read_done) > slot.part_number ||
           observe(at->publications_read) >= slot.publication;
}

bool Seats::holds_slot(std::uint32_t seat) const {
    return std::ranges::any_of(
        slots_, [&](const auto& slot) { return slot->readers[seat] && !passed(seat, *slot); });
}

bool Seats::is_read() {
    const std::scoped_lock lock(mutex_);
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        if (holds_slot(i)) return false;
    }
    return true;
}

std::string Seats::slot_holders() {
    const std::scoped_lock lock(mutex_);
    std::string names;
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        if (holds_slot(i)) {
            names += fmt::format("{}'{}'{}", names.empty() ? "" : ", ", seats_[i].name,
                                 seats_[i].state == Seat::State::expelled ? " (expelled)" : "");
        }
    }
    return names;
}

void Seats::expel_holders() {
    const std::scoped_lock lock(mutex_);
    for (std::uint32_t i = 0; i < seats_.size(); i++) {
        if (seats_[i].state == Seat::State::joined && holds_slot(i)) set_aside(i);
    }
}

// They came while the ranks decided, and learn of it from their admission.
void Seats::turn_away_late() {
    for (std::uint32_t seat = 0; seat < seats_.size(); seat++) {
        const SubscriberPage* at = holds_slot(seat) ? page(seat) : nullptr;
        if (at == nullptr || observe(at->staged) >= publication_) continue;
        store_release(control_->admission(seat).too_late, publication_);
        for (auto& slot : slots_) slot->readers.reset(seat);
    }
}

}  // namespace rollring::weights
