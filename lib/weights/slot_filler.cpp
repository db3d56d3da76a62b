#include "slot_filler.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "gpu_turns.hpp"

namespace rollring::weights {

void SlotFiller::start() {
    next_piece_ = next_part_ = 0;
    filling_ = nullptr;
    lent_.clear();
    waited_ns_ = 0;
}

// Takes a slot for the next part unless it has one.
Result<void> SlotFiller::open_part(Deadline deadline) {
    if (filling_ != nullptr) return {};
    if (auto there = tensors_->check_exposed(); !there) return there;
    const std::int64_t start_ns = monotonic_ns();
    Slot* slot = nullptr;
    std::uint32_t index = 0;
    const auto taken = [&] {
        slot = seats_->take_slot(publication_->next_part_number(), &index);
        return slot != nullptr;
    };
    seats_->wait(deadline, taken, mover_->gpu().is_gpu() ? turn_spin : turn_spin.zero());
    waited_ns_ += monotonic_ns() - start_ns;
    if (slot == nullptr) {
        if (auto healthy = mover_->health(); !healthy) return healthy;
        const std::string holders = seats_->slot_holders();
        if (holders.empty()) return publication_->still_packing();
        return publication_->silent("finished reading and freed a slot (read_done)", holders);
    }
    if (index >= fillings_.size()) fillings_.resize(index + 1);
    if (!fillings_[index]) fillings_[index] = std::make_unique<Filling>();
    filling_ = fillings_[index].get();
    *filling_ = {this, slot, publication_->place_part(next_part_, index)};
    FAULT_POINT("weights.slot_taken");
    return {};
}

// Packs the next piece, or the whole next part if it is wanted from the addresses that were
// compiled.
Result<void> SlotFiller::pack(std::uint32_t end, const void* source, Deadline deadline,
                              Stream stream) {
    const std::uint32_t job = next_piece_ - part().first_piece;
    // A part is filled when the stream of its last piece gets there.
    if (job > 0 && stream.handle != stream_.handle) {
        if (auto waited = mover_->wait(stream_, deadline); !waited) return waited;
    }
    stream_ = stream;
    if (tensors_->is_exposed()) {
        next_piece_ = std::min(end, part_end());
        return {};
    }
    device::CopyPlan& plan = *plans_[next_part_];
    std::byte* slot = filling_->slot->block->data();
    const auto sums = tensors_->sums_offset();
    if (job == 0 && source == nullptr && part_end() <= end) {
        if (auto packed = plan.pack(slot, sums, stream); !packed) return packed;
        next_piece_ = part_end();
        return {};
    }
    const void* from = source;
    if (from == nullptr) from = tensors_->address(tensors_->packing().pieces[next_piece_].tensor);
    if (auto packed = plan.pack_one(job, from, slot, sums, stream); !packed) return packed;
    next_piece_++;
    return {};
}

// All pieces of the part are queued: it is filled when the stream gets there.
Result<void> SlotFiller::close_part() {
    FAULT_POINT("weights.packed");
    if (auto queued = mover_->when_reached(stream_, part_reached, filling_); !queued) return queued;
    filling_ = nullptr;
    next_part_++;
    return {};
}

// Runs on a thread of the driver, or inside close_part.
void SlotFiller::part_reached(void* context) {
    const Filling filling = *static_cast<Filling*>(context);
    filling.self->publication_->part_filled(filling.part_number);
    filling.self->seats_->ring_all();
    // Last: from here on the slot and, at its end, the publisher may be gone.
    filling.self->seats_->slot_filled(*filling.slot);
}

// Of the next piece.
Result<void> SlotFiller::check_source(const void* source) const {
    const std::uint32_t tensor = tensors_->packing().pieces[next_piece_].tensor;
    if (!tensors_->is_exposed()) return {};
    if (source == nullptr || source == tensors_->address(tensor)) return {};
    return refused(
        Errc::unsupported,
        fmt::format("tensor '{}' is put from {}, but engines read it at {}: it has "
                    "moved since this publisher was made (PayloadMemory::direct); make "
                    "the publisher anew, or one without direct",
                    tensors_->packing().tensors[tensor].name, source, tensors_->address(tensor)));
}

Result<void> SlotFiller::fill_up_to(std::uint32_t end, const void* source, Deadline deadline,
                                    Stream stream) {
    if (plans_.empty() && !tensors_->is_exposed() && next_piece_ < end) {
        return refused(Errc::invalid_argument, "this publisher lends parts, so they cannot be put");
    }
    if (next_piece_ < end) {
        if (auto same = check_source(source); !same) return same;
    }
    // Exposed tensors are checked with their allocations, when the part is opened.
    if (!tensors_->is_exposed()) {
        const std::uint32_t to = std::max(end, next_piece_);
        auto there = tensors_->check_memory(*mover_, next_piece_, to, source);
        if (!there) return there;
    }
    while (next_piece_ < end || has_packed_part()) {
        if (!has_packed_part()) {
            if (auto opened = open_part(deadline); !opened) return opened;
            if (auto packed = pack(end, source, deadline, stream); !packed) return packed;
        }
        if (!has_packed_part()) continue;
        if (auto closed = close_part(); !closed) return closed;
    }
    return {};
}

Result<std::span<std::byte>> SlotFiller::lend(Deadline deadline) {
    if (tensors_->is_exposed()) {
        return refused(Errc::unsupported, "the tensors are read where they lie: no part is lent");
    }
    if (filling_ != nullptr || next_part_ == tensors_->packing().parts.size()) {
        return refused(Errc::invalid_argument, filling_ != nullptr
                                                   ? "this part is being put, and cannot be lent"
                                                   : "all parts have been put or lent");
    }
    if (auto opened = open_part(deadline); !opened) return std::unexpected(opened.error());
    const std::span lent(filling_->slot->block->data(), tensors_->bytes_of(part()));
    next_piece_ = part_end();
    next_part_++;
    lent_.push_back(std::exchange(filling_, nullptr));
    return lent;
}

Result<void> SlotFiller::written() {
    if (lent_.empty()) return refused(Errc::invalid_argument, "no part is lent");
    part_reached(lent_.front());
    lent_.pop_front();
    return {};
}

void SlotFiller::give_up() {
    for (; !lent_.empty(); lent_.pop_front()) part_reached(lent_.front());
    if (filling_ == nullptr || close_part()) return;
    // A failed device makes no callback: the slot is ours again nevertheless.
    part_reached(filling_);
    filling_ = nullptr;
}

}  // namespace rollring::weights
