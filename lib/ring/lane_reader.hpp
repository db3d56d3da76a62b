#pragma once
// The consumer's half of a lane: poll, and release in any order. One thread at a time.
//
// The successor of a killed consumer reads these words:
//
//   head    <=  cursor  <=  (read, private)  <=  tail
//   free        released     delivered           committed
//
// Each record above the cursor has one released-bit per 64 bytes. They are set from its last line
// to its first, so a record counts as released from the moment its first bit is set, and a run of
// set bits always ends where a record ends. The cursor is the commit point of a release in order;
// bits below it are cleared before the head gives the memory back. Bits outside [head, tail) are
// zero. Skip frames have no bits (the dead memory they cover may be in use by a jump).

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "checked_frame.hpp"

namespace rollring {

enum class [[nodiscard]] LanePoll { record, empty, bad_tail, bad_frame };

struct Span {
    std::uint64_t position = 0;
    std::uint64_t bytes = 0;
};

template <class Platform>
class LaneReader {
    using Order = typename Platform::Order;
    using AtomicU64 = typename Platform::template Atomic<std::uint64_t>;
    static constexpr std::uint64_t word_bits = Platform::bits_per_word;

  public:
    // NOLINTNEXTLINE(readability-function-size): the parts of one object
    LaneReader(const AtomicU64& tail, AtomicU64& head, AtomicU64& cursor, AtomicU64* bits,
               typename Platform::Frames frames, std::uint64_t capacity_bytes)
        : shared_tail_(&tail),
          shared_head_(&head),
          shared_cursor_(&cursor),
          bits_(bits),
          frames_(frames),
          size_(capacity_bytes) {}

    // Takes over from a predecessor, dead or none. False if its words contradict each other: then
    // nothing is held, and only start_over() is left to do. Afterwards mark() may replay the
    // journal; poll() then passes over released records.
    //   delivered   a position up to which a predecessor has read: the end of the valid bytes if
    //               the tail itself is invalid; 0 if unknown
    //   restart_at  where the records of the lane's present producer begin. poll() returns no frame
    //               that crosses it, because the bytes below may have been damaged by another.
    bool recover(std::uint64_t delivered = 0, std::uint64_t restart_at = 0) {
        if (restore(delivered, restart_at)) return true;
        read_ = tail_ = cursor_;
        return false;
    }

    // The lane has no producer, and the records of its last one end here: regardless of the tail,
    // poll() finds nothing behind it until a producer has the lane again.
    void stop(std::uint64_t end) {
        tail_ = std::max(read_, end);
        stopped_ = true;
    }
    void go_on() { stopped_ = false; }

    // The next record, in the producer's order. Passes over skips and releases them, but only some
    // in one call: a producer that streams them must not keep us from the other lanes. An honest
    // one never leaves that many in a row.
    LanePoll poll(Frame& frame) {
        for (std::size_t skips = 0; skips < skips_.size();) {
            if (read_ == tail_) {
                if (stopped_) return LanePoll::empty;
                const std::uint64_t tail = shared_tail_->load(Order::read_tail);
                if (tail == read_) return LanePoll::empty;
                if (tail < read_ || tail - cursor_ > 2 * size_.bytes() || tail % line_bytes != 0) {
                    return LanePoll::bad_tail;
                }
                tail_ = tail;
                // All new bytes at once, instead of the frame, then its payload, and so on: each is
                // a miss, because the producer has just written it.
                const std::uint64_t offset = size_.offset(read_);
                frames_.prefetch(offset, std::min(tail - read_, size_.bytes() - offset));
            }
            if (!look(frame)) return LanePoll::bad_frame;
            const std::uint64_t at = read_;
            read_ += frame.bytes;
            if (is_skip(frame)) {
                if (!remember_skip({at, frame.bytes})) return LanePoll::bad_frame;
                skips++;
                if (cursor_ == at) move_cursor(at);
                continue;
            }
            if (at < recovered_to_ && bit(size_.offset(at))) {
                passed_ = frame;
                if (cursor_ == at) move_cursor(at);
                continue;
            }
            return LanePoll::record;
        }
        return LanePoll::empty;
    }

    // Releases one record, which poll() has returned and which is still held.
    void release(Span span) {
        if (span.position != cursor_) {
            mark(span);
            if (span.position < cursor_) move_cursor(cursor_);  // its bits were damaged: see mark()
            return;
        }
        shared_cursor_->store(cursor_ + span.bytes, Order::store_cursor);
        cursor_ += span.bytes;
        // A predecessor that was killed while it marked this record has set some of its later bits.
        if (span.position < recovered_to_) clear(span);
        move_cursor(cursor_);
    }

    // Only sets the released-bits: for the journal, which moves the cursor afterwards by advance().
    // Idempotent. Positions below the cursor were passed before a crash: ignored. If the cursor
    // lies within the record, the bits were overwritten: the rest is marked.
    void mark(Span span) {
        if (span.position < cursor_) {
            if (span.bytes <= cursor_ - span.position) return;
            span = {cursor_, span.bytes - (cursor_ - span.position)};
        }
        const std::uint64_t first = size_.offset(span.position) / line_bytes;
        std::uint64_t end = first + span.bytes / line_bytes;
        while (end > first) {
            const std::uint64_t word = (end - 1) / word_bits;
            const std::uint64_t from = std::max(first, word * word_bits);
            const std::uint64_t old = bits_[word].load(Order::recover);
            bits_[word].store(old | mask(from % word_bits, end - from), Order::store_bits);
            end = from;
        }
    }

    // Moves the cursor and the head over everything in front that is released.
    void advance() { move_cursor(cursor_); }

    // The next poll() returns its last frame again.
    void put_back(std::uint64_t position) { read_ = position; }

    // For a consumer that writes this lane itself: passes over its record, and the skips before it,
    // without reading memory that others may have overwritten. False: too many skips.
    [[nodiscard]] bool follow(Span written) {
        const std::uint64_t at = read_;
        if (written.position > at) {
            if (!remember_skip({at, written.position - at})) return false;
            read_ = written.position;
            if (cursor_ == at) move_cursor(at);
        }
        read_ = tail_ = written.position + written.bytes;
        return true;
    }

    // Behind a frame that poll() calls bad: passes over everything up to the next valid frame, as
    // poll() passes over a record, which is held until it is released. Returns the bytes; 0: a
    // predecessor has released them, and nothing is left to do.
    [[nodiscard]] std::uint64_t pass_damage() {
        const std::uint64_t at = read_;
        read_ = next_frame(frames_, size_, at, tail_);
        if (at >= recovered_to_ || !bit(size_.offset(at))) return read_ - at;
        if (cursor_ == at) move_cursor(at);
        return 0;
    }

    // Everything that poll() has returned is released, but the cursor is not there, because
    // released-bits were overwritten. True if that was so.
    bool pass_released() {
        if (cursor_ == read_) return false;
        const Span span{cursor_, read_ - cursor_};
        skip_count_ = 0;
        shared_cursor_->store(read_, Order::store_cursor);
        cursor_ = read_;
        clear_laps(span);
        store_head();
        return true;
    }

    // Stores the positions again if others have overwritten them.
    void show_again() {
        if (shared_cursor_->load(Order::recover) != cursor_) {
            shared_cursor_->store(cursor_, Order::store_cursor);
        }
        if (shared_head_->load(Order::recover) != head_) {
            shared_head_->store(head_, Order::store_head);
        }
    }

    // Gives up all unread bytes below `to`, where a record begins or will begin. Requires that
    // nothing is held: until then a successor may read more of the lane, and must find its bits
    // unchanged.
    void pass_over(std::uint64_t to) {
        const Span span{read_, to - read_};
        shared_cursor_->store(to, Order::store_cursor);
        cursor_ = read_ = to;
        tail_ = std::max(tail_, to);
        clear_damaged(span);
        store_head();
    }

    // Abandons a damaged lane whose producer is gone and whose delivered records are all released:
    // moves everything to a fresh position that no earlier frame can carry. The next producer
    // starts there. Returns the bytes given up, if the tail is plausible.
    std::uint64_t start_over() {
        const std::uint64_t tail = shared_tail_->load(Order::read_tail);
        const std::uint64_t given_up =
            tail > read_ && tail - read_ <= 2 * size_.bytes() ? tail - read_ : 0;
        const std::uint64_t words = size_.bytes() / line_bytes / word_bits;
        for (std::uint64_t i = 0; i < words; i++) bits_[i].store(0, Order::store_bits);
        const std::uint64_t highest = std::max({head_, cursor_, read_, given_up + read_});
        const std::uint64_t fresh = (highest / size_.bytes() + 4) * size_.bytes();
        shared_cursor_->store(fresh, Order::store_cursor);
        cursor_ = read_ = tail_ = recovered_to_ = fresh;
        passed_ = Frame{};
        skip_count_ = 0;
        store_head();
        return given_up;
    }

    // Whether a span from the journal lies where records can be, by the tail that was checked.
    [[nodiscard]] bool covers(Span span) const {
        return span.bytes != 0 && (span.position | span.bytes) % line_bytes == 0 &&
               span.bytes <= size_.bytes() - size_.offset(span.position) &&
               span.position <= recovered_to_ && span.bytes <= recovered_to_ - span.position;
    }
    // Whether a record at or above the head was released, possibly by a predecessor.
    [[nodiscard]] bool is_released(std::uint64_t position) const {
        return position < cursor_ || bit(size_.offset(position));
    }
    // Counts everything known to be committed: the tail may have been moved back to read_.
    [[nodiscard]] bool drained() const {
        return read_ == tail_ && (stopped_ || read_ == shared_tail_->load(Order::read_tail));
    }
    // The producer may overwrite the bytes below. Moved by release(), advance(), recover(), and by
    // a poll() that passes a skip, even if it then finds nothing: after each move, ring the
    // producer's bell.
    [[nodiscard]] std::uint64_t head() const { return head_; }
    [[nodiscard]] std::uint64_t cursor() const { return cursor_; }
    [[nodiscard]] std::uint64_t read_position() const { return read_; }
    // The frame at a position between the cursor and `end`, which must not exceed the bytes known
    // to be committed, now or by a predecessor. False if it is not valid.
    bool frame_at(std::uint64_t position, std::uint64_t end, Frame& frame) const {
        return position % line_bytes == 0 && position < end &&
               checked_frame(frames_, size_, position, end, frame);
    }
    // Whether a span lies where delivered and unreleased records can be. If released-bits were
    // overwritten, the cursor may lie within a record that is still held.
    [[nodiscard]] bool delivered(Span span) const {
        return span.position < read_ && span.bytes <= read_ - span.position &&
               span.position + span.bytes > cursor_;
    }
    // With a backlog the first lines of the next records are out of cache: they are fetched while a
    // record of `bytes` is handled, two records ahead if those are as long, because one ahead is
    // too late for short ones. Uncommitted bytes are left alone: the producer is writing them.
    void prefetch_ahead(std::uint64_t bytes) const {
        constexpr std::uint64_t wanted = 7 * line_bytes;  // frame, header, directory, instance_id
        const std::uint64_t at = read_ + 2 * bytes;
        if (tail_ < at + wanted) return;
        const std::uint64_t offset = size_.offset(at);
        if (size_.bytes() - offset >= wanted) frames_.prefetch(offset, wanted);
    }
    // The end of the bytes known to be committed; the tail may be further by now.
    [[nodiscard]] std::uint64_t known_tail() const { return tail_; }
    // The last record that poll() has passed over because a predecessor released it; no bytes:
    // none.
    [[nodiscard]] const Frame& passed() const { return passed_; }
    [[nodiscard]] std::uint64_t held_bytes() const { return read_ - cursor_; }
    // The tail at recovery, if it was plausible.
    [[nodiscard]] std::uint64_t recovered_to() const { return recovered_to_; }

  private:
    bool restore(std::uint64_t delivered, std::uint64_t restart_at) {
        head_ = shared_head_->load(Order::recover);
        cursor_ = shared_cursor_->load(Order::recover);
        tail_ = shared_tail_->load(Order::read_tail);
        if (cursor_ < head_ || (head_ | cursor_ | restart_at) % line_bytes != 0) return false;
        const auto possible = [&](std::uint64_t tail) {
            return tail >= cursor_ && tail - head_ <= 2 * size_.bytes() && tail % line_bytes == 0;
        };
        const std::uint64_t known = std::max(delivered, restart_at);
        if (tail_ < known || !possible(tail_)) {
            if (known == 0 || !possible(known)) return false;
            tail_ = known;
        }
        recovered_to_ = tail_;
        const auto end_from = [&](std::uint64_t at) {
            return at < restart_at ? restart_at : recovered_to_;
        };
        // The predecessor may have died between moving the cursor and clearing the bits below it.
        for (read_ = head_; read_ < cursor_;) {
            tail_ = end_from(read_);
            Frame frame;
            if (look(frame) && frame.bytes <= cursor_ - read_) {
                if (!is_skip(frame)) clear({read_, frame.bytes});
            } else if (read_ < restart_at) {  // damaged, and passed over
                frame.bytes = std::min(restart_at, cursor_) - read_;
                clear_damaged({read_, frame.bytes});
            } else {
                return false;
            }
            read_ += frame.bytes;
        }
        tail_ = end_from(cursor_);
        store_head();
        return read_ == cursor_;
    }

    // Reads the frame at read_.
    bool look(Frame& frame) const { return checked_frame(frames_, size_, read_, tail_, frame); }

    // Moves the cursor from `at` over skips and released records, clears their bits, frees them.
    void move_cursor(std::uint64_t at) {
        for (;;) {
            const std::uint64_t from = at;
            if (skip_count_ > 0 && skips_[0].position == at) {
                at += skips_[0].bytes;
                forget_skip();
                shared_cursor_->store(at, Order::store_cursor);
            } else if (at < read_ && bit(size_.offset(at))) {
                at = end_of_run(at);
                shared_cursor_->store(at, Order::store_cursor);
                clear({from, at - from});
            } else {
                break;
            }
        }
        cursor_ = at;
        store_head();
    }

    void store_head() {
        if (head_ == cursor_) return;
        shared_head_->store(cursor_, Order::store_head);
        head_ = cursor_;
    }

    [[nodiscard]] bool bit(std::uint64_t offset) const {
        const std::uint64_t index = offset / line_bytes;
        return bits_[index / word_bits].load(Order::recover) >> (index % word_bits) & 1;
    }

    // The position where the run of set bits from `at` on ends.
    [[nodiscard]] std::uint64_t end_of_run(std::uint64_t at) const {
        const std::uint64_t offset = size_.offset(at);
        const std::uint64_t bytes_max = std::min(size_.bytes() - offset, read_ - at);
        std::uint64_t index = offset / line_bytes;
        const std::uint64_t end = index + bytes_max / line_bytes;
        while (index < end) {
            const std::uint64_t shift = index % word_bits;
            const std::uint64_t word = bits_[index / word_bits].load(Order::recover) >> shift;
            const std::uint64_t ones = static_cast<std::uint64_t>(std::countr_one(word));
            index += std::min(ones, end - index);
            if (shift + ones < word_bits) break;
        }
        return at - offset + index * line_bytes;
    }

    void clear(Span span) {
        std::uint64_t index = size_.offset(span.position) / line_bytes;
        const std::uint64_t end = index + span.bytes / line_bytes;
        while (index < end) {
            const std::uint64_t word = index / word_bits;
            const std::uint64_t to = std::min(end, (word + 1) * word_bits);
            const std::uint64_t old = bits_[word].load(Order::recover);
            bits_[word].store(old & ~mask(index % word_bits, to - index), Order::store_bits);
            index = to;
        }
    }

    // The same for a span of several records. Bits of later records in the same memory stay.
    void clear_damaged(Span span) {
        const std::uint64_t lap_before = recovered_to_ - std::min(recovered_to_, size_.bytes());
        const std::uint64_t end = span.position + span.bytes;
        span.position = std::min(end, std::max(span.position, lap_before));
        span.bytes = end - span.position;
        clear_laps(span);
    }

    // The same for a span that may cross the lane's end.
    void clear_laps(Span span) {
        while (span.bytes > 0) {
            const std::uint64_t bytes =
                std::min(span.bytes, size_.bytes() - size_.offset(span.position));
            clear({span.position, bytes});
            span = {span.position + bytes, span.bytes - bytes};
        }
    }

    static constexpr std::uint64_t mask(std::uint64_t from, std::uint64_t count) {
        const std::uint64_t ones =
            count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
        return ones << from;
    }

    bool remember_skip(Span span) {
        if (skip_count_ == skips_.size()) {
            read_ = span.position;  // not passed, so not held either
            return false;
        }
        skips_[skip_count_++] = span;
        return true;
    }

    void forget_skip() {
        for (std::size_t i = 1; i < skip_count_; i++) skips_[i - 1] = skips_[i];
        skip_count_--;
    }

    const AtomicU64* shared_tail_;
    AtomicU64* shared_head_;
    AtomicU64* shared_cursor_;
    AtomicU64* bits_;
    typename Platform::Frames frames_;
    LaneSize size_;
    std::uint64_t head_ = 0;
    std::uint64_t cursor_ = 0;
    std::uint64_t read_ = 0;
    std::uint64_t tail_ = 0;  // last tail seen
    bool stopped_ = false;
    std::uint64_t recovered_to_ = 0;  // below it a record may have been released by a predecessor
    Frame passed_{};
    // Skips between cursor and tail: at most two a lap, and head to tail is less than two laps.
    std::array<Span, 8> skips_;
    std::size_t skip_count_ = 0;
};

}  // namespace rollring
