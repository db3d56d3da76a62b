#pragma once
// The producer's half of a lane: reserve, write in place, commit, show. Lock-free and wait-free; no
// allocation, no system call. One thread at a time.
//
// Nothing is visible before show() moves the tail, so a producer killed at any instruction leaves
// either a whole record or none, and nothing to repair.
//
// The next frame's offset. Let t be the write offset in this lap and h the head.
//
//   head in this lap:       [ free |h ..live.. t| free ]        write at t, or wrap
//   head in the lap before: [ ..live.. t| free |h ..live.. w|S| dead ]
//                                                   write at t while it stays below h, or jump to d
//
// A lap ends at w by a skip frame S, either because the record did not fit below the lane's end (a
// full lap) or early, because the consumer keeps up and the start of the lane is still in cache (a
// soft lap). After a soft lap everything above S is dead memory. If the consumer then starts to
// hold records and pins h, the producer jumps over the live bytes into that dead part.
//
// A jump gives up the bytes between t and d until the consumer has read all of the lap before, even
// if h moves on a moment later. So it is made only if it gains at least as much as it can cost.
// Then a consumer that pins no more than a third of a lane, less two records, never blocks the
// producer for good; with soft laps switched off it may pin all but two records (tests/model,
// "pin").

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "geometry.hpp"

namespace rollring {

enum class [[nodiscard]] Reserve {
    ok,
    full,       // show() was called, also for a skip that this call has written: ring the
                // consumer's bell if shown() has moved, even before a sleep
    too_large,  // can never fit into this lane
    corrupt,    // the head is impossible: the consumer's page was damaged
};

struct LapCounters {
    std::uint64_t soft = 0;
    std::uint64_t full = 0;
    std::uint64_t jumps = 0;
};

template <class Platform>
class LaneWriter {
    using Order = typename Platform::Order;
    using AtomicU64 = typename Platform::template Atomic<std::uint64_t>;

  public:
    LaneWriter(AtomicU64& tail, const AtomicU64& head, typename Platform::Frames frames,
               std::uint64_t capacity_bytes, std::uint64_t soft_bytes)
        : shared_tail_(&tail),
          shared_head_(&head),
          frames_(frames),
          capacity_(capacity_bytes),
          soft_(soft_bytes),
          tail_(tail.load(Order::read_tail) / line_bytes * line_bytes),  // even if it is damaged
          shown_(tail_),
          head_(head.load(Order::read_head)),
          lap_start_(tail_ - tail_ % capacity_),
          dead_from_(capacity_),
          end_(capacity_),
          look_at_(soft_bytes) {}

    // If only a part of the lane's memory is reserved: no record ends beyond `bytes`, and the line
    // behind it is reserved as well, for a skip. Never less than before.
    void set_end(std::uint64_t bytes) { end_ = bytes < capacity_ ? bytes : capacity_; }

    // Later laps turn back early behind this many bytes.
    void set_soft(std::uint64_t bytes) {
        soft_ = bytes;
        look_at_ = std::min(look_at_, std::max(soft_, offset()));
    }

    // For a writer that continues after another one: the lap before ended with the skip at this
    // position, and has nothing behind it.
    void lap_before_ended(std::uint64_t position) {
        if (position >= lap_start_ || lap_start_ - position > capacity_) return;
        dead_from_ = capacity_ - (lap_start_ - position) + line_bytes;
    }

    // Finds room for `bytes` (a multiple of 64, the frame included) in one piece.
    Reserve reserve(std::uint64_t bytes) {
        if (bytes > capacity_) return Reserve::too_large;
        if (offset() >= look_at_) {
            if (!refresh()) return Reserve::corrupt;
            look_at_ = offset() + soft_ / 8;  // check rarely under a backlog
        }
        Reserve found = place(bytes, Head::seen);
        if (found == Reserve::full) {
            if (!refresh()) return Reserve::corrupt;
            found = place(bytes, Head::fresh);
            if (found == Reserve::full) show();
        }
        if (found == Reserve::ok) reserved_ = bytes;
        return found;
    }

    [[nodiscard]] std::uint64_t position() const { return tail_; }
    [[nodiscard]] std::uint64_t offset() const { return tail_ - lap_start_; }
    [[nodiscard]] std::uint64_t shown() const { return shown_; }
    [[nodiscard]] std::uint64_t head() const { return head_; }  // as last seen
    [[nodiscard]] const LapCounters& laps() const { return laps_; }
    // Bytes from a position to here, without the dead part of a lap.
    [[nodiscard]] std::uint64_t written_since(std::uint64_t position) const {
        const std::uint64_t bytes = tail_ - std::min(position, tail_);
        if (bytes <= offset()) return bytes;
        return bytes - std::min(capacity_ - dead_from_, bytes);
    }

    // Ends the reservation with `frame` at its start; frame.bytes may be less than was reserved.
    // The record is not visible before show().
    void commit(Frame frame) {
        frame.magic = frame_magic;
        frame.kind = static_cast<std::uint16_t>(FrameKind::record);
        frame.position = tail_;
        frames_.write(offset(), frame);
        advance(frame.bytes);
        reserved_ = 0;
    }

    void abandon() { reserved_ = 0; }
    [[nodiscard]] std::uint64_t reserved() const { return reserved_; }

    // Makes everything committed visible. True if there was anything to show.
    bool show() {
        if (shown_ == tail_) return false;
        shared_tail_->store(tail_, Order::store_tail);
        shown_ = tail_;
        return true;
    }

  private:
    enum class Head { seen, fresh };

    bool refresh() {
        const std::uint64_t head = shared_head_->load(Order::read_head);
        if (head < head_ || head > shown_ || head % line_bytes != 0) return false;
        head_ = head;
        return true;
    }

    Reserve place(std::uint64_t bytes, Head head) {
        if (head_ < lap_start_) return place_behind(bytes, head);
        const std::uint64_t t = offset();
        const std::uint64_t head_offset = head_ - lap_start_;
        if (t >= soft_ && head_offset >= std::max(bytes + line_bytes, t / 2)) {
            wrap(laps_.soft);
            return Reserve::ok;
        }
        if (fits_above(t, bytes)) return Reserve::ok;
        wrap(laps_.full);
        return place_behind(bytes, head);
    }

    // The head is still in the lap before. One line stays free below it, for the skip of a jump. A
    // jump takes memory that has left the caches: it needs the newest head.
    Reserve place_behind(std::uint64_t bytes, Head head) {
        if (lap_start_ - head_ > capacity_) return Reserve::full;  // two laps behind, after a jump
        const std::uint64_t t = offset();
        const std::uint64_t head_offset = head_ - (lap_start_ - capacity_);
        if (t > head_offset) {  // has jumped
            return fits_above(t, bytes) ? Reserve::ok : Reserve::full;
        }
        if (head_offset - t >= bytes + line_bytes) return Reserve::ok;
        if (head == Head::fresh && t < head_offset &&
            fits_above(dead_from_, std::max(bytes, dead_from_ - t))) {
            skip(dead_from_ - t);
            laps_.jumps++;
            return Reserve::ok;
        }
        return Reserve::full;
    }

    [[nodiscard]] bool fits_above(std::uint64_t offset, std::uint64_t bytes) const {
        return offset <= end_ && end_ - offset >= bytes;
    }

    void wrap(std::uint64_t& counter) {
        const std::uint64_t t = offset();
        skip(capacity_ - t);
        dead_from_ = t + line_bytes;  // the skip itself is live until the consumer has passed it
        counter++;
    }

    void skip(std::uint64_t bytes) {
        Frame frame{};
        frame.magic = frame_magic;
        frame.kind = static_cast<std::uint16_t>(FrameKind::skip);
        frame.bytes = bytes;
        frame.position = tail_;
        frames_.write(offset(), frame);
        advance(bytes);
    }

    void advance(std::uint64_t bytes) {
        tail_ += bytes;
        if (tail_ - lap_start_ == capacity_) {
            lap_start_ = tail_;
            dead_from_ = capacity_;
            look_at_ = soft_;
        }
    }

    AtomicU64* shared_tail_;
    const AtomicU64* shared_head_;
    typename Platform::Frames frames_;
    std::uint64_t capacity_;
    std::uint64_t soft_;
    std::uint64_t tail_;       // end of the committed records, shown or not
    std::uint64_t shown_;      // the shared tail
    std::uint64_t head_;       // last head seen
    std::uint64_t lap_start_;  // position of offset 0 in this lap
    std::uint64_t dead_from_;  // offset above which the lap before left nothing
    std::uint64_t end_;        // offset at or below which records end
    std::uint64_t look_at_;    // offset from which a soft wrap is worth a load of the head
    std::uint64_t reserved_ = 0;
    LapCounters laps_;
};

}  // namespace rollring
