#pragma once
// Fills slots with the parts of a publication, piece by piece in their order: takes a slot without
// readers, queues copies into it, and the device reports when the part is complete.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "publication.hpp"
#include "published_tensors.hpp"
#include "seats.hpp"

namespace rollring::weights {

class SlotFiller {
  public:
    // All arguments must outlive this object. `plans`: by part; none: all parts are lent, or the
    // tensors are exposed, and a part is filled once the stream gets there.
    SlotFiller(const PublishedTensors& tensors,
               std::vector<std::unique_ptr<device::CopyPlan>> plans, device::Mover& mover,
               Seats& seats, Publication& publication)
        : tensors_(&tensors),
          plans_(std::move(plans)),
          mover_(&mover),
          seats_(&seats),
          publication_(&publication) {}
    // A device that is filling a slot calls back into this object: wait for Seats::all_filled().
    SlotFiller(const SlotFiller&) = delete;
    SlotFiller& operator=(const SlotFiller&) = delete;

    // A publication was begun: start with its first piece.
    void start();
    // Copies all pieces before `end` that are not copied yet, from `source` or, if it is null, from
    // their tensors' own addresses. After an error it can be retried, and resumes.
    Result<void> fill_up_to(std::uint32_t end, const void* source, Deadline deadline,
                            Stream stream);
    // Lends the next part's slot to the caller, which fills it: the whole part counts as put.
    // Replaces fill_up_to.
    Result<std::span<std::byte>> lend(Deadline deadline);
    // The oldest lent part is complete.
    Result<void> written();
    // The version is given up: the slot that is being filled gets no more pieces.
    void give_up();

    [[nodiscard]] std::uint32_t next_piece() const { return next_piece_; }
    // Time spent waiting for slots since start().
    [[nodiscard]] std::int64_t waited_ns() const { return waited_ns_; }

  private:
    // A part on its way into its slot.
    struct Filling {
        SlotFiller* self = nullptr;
        Slot* slot = nullptr;
        std::uint64_t part_number = 0;
    };

    [[nodiscard]] const Part& part() const { return tensors_->packing().parts[next_part_]; }
    [[nodiscard]] std::uint32_t part_end() const { return part().first_piece + part().pieces; }
    [[nodiscard]] bool has_packed_part() const {
        return filling_ != nullptr && next_piece_ == part_end();
    }
    [[nodiscard]] Result<void> check_source(const void* source) const;
    Result<void> open_part(Deadline deadline);
    Result<void> pack(std::uint32_t end, const void* source, Deadline deadline, Stream stream);
    Result<void> close_part();
    static void part_reached(void* filling);

    const PublishedTensors* tensors_;
    std::vector<std::unique_ptr<device::CopyPlan>> plans_;
    device::Mover* mover_;
    Seats* seats_;
    Publication* publication_;
    std::vector<std::unique_ptr<Filling>> fillings_;  // by slot

    std::uint32_t next_piece_ = 0;  // of all pieces
    std::uint32_t next_part_ = 0;
    std::deque<Filling*> lent_;
    Filling* filling_ = nullptr;  // the part that the next piece belongs to, if it has a slot
    Stream stream_;               // of the last piece
    std::int64_t waited_ns_ = 0;
};

}  // namespace rollring::weights
