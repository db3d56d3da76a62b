#pragma once
// Checks the epoch and the sequence number of a lane's next frame.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "layout.hpp"

namespace rollring {

class EpochBook {
  public:
    enum class Turn { next, repeated, impossible };

    // The start of the present producer and the epoch before it, from our entry. They are read
    // once, because other processes may overwrite them.
    void recover(std::uint64_t restart_at, std::uint32_t restart_epoch) {
        restart_at_ = restart_at;
        restart_epoch_ = restart_epoch;
    }
    // A producer has taken the lane anew, and this consumer reads all of its records.
    void begin(std::uint32_t epoch) {
        epoch_ = whole_epoch_ = epoch;
        records_ = 0;
    }
    // A predecessor may have read some of its records.
    void begun_before() { whole_epoch_ = 0; }
    // The records of this producer end here, and those of the next one begin.
    void end(std::uint64_t position) {
        restart_epoch_ = epoch_;
        restart_at_ = position;
    }
    // No earlier frame remains to compare with.
    void start_over() { last_epoch_ = 0; }
    void restart(std::uint64_t position) { restart_at_ = position; }

    // Whether a frame of this epoch is possible at its position.
    [[nodiscard]] bool of_its_time(const Frame& frame) const {
        if (frame.position < restart_at_) return frame.epoch <= restart_epoch_;
        return frame.epoch == epoch_;
    }

    // Accounts for a record that a predecessor released out of order, and that the reader passed
    // over: it is not a gap. False if the frame is of no use.
    bool pass(const Frame& passed) {
        if (passed.bytes == 0 || passed.epoch < last_epoch_ || !of_its_time(passed)) return false;
        const std::uint64_t next = passed.sequence + 1;
        next_sequence_ = passed.epoch == last_epoch_ ? std::max(next_sequence_, next) : next;
        last_epoch_ = passed.epoch;
        return true;
    }

    // Accounts for a frame that is possible at its position. `lost`: the missing records before it.
    [[nodiscard]] Turn take(const Frame& frame, std::uint64_t& lost) {
        if (frame.epoch < last_epoch_) return Turn::impossible;
        next_sequence_ = expected(frame.epoch).value_or(frame.sequence);
        last_epoch_ = frame.epoch;
        if (frame.sequence < next_sequence_) return Turn::repeated;
        lost = frame.sequence - next_sequence_;
        next_sequence_ = frame.sequence + 1;
        return Turn::next;
    }
    void count_record() { records_++; }

    // The number of records of the present epoch so far, if it is known.
    [[nodiscard]] std::optional<std::uint64_t> records_seen() const { return expected(epoch_); }
    // The records of the epoch that this consumer delivered.
    [[nodiscard]] std::uint64_t records() const { return records_; }
    [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
    [[nodiscard]] std::uint64_t restart_at() const { return restart_at_; }
    [[nodiscard]] std::uint32_t restart_epoch() const { return restart_epoch_; }

  private:
    // The sequence number of the epoch's next record. Unknown until this consumer has seen a
    // record: a predecessor may have read and released any number of them. Afterwards it sees all.
    [[nodiscard]] std::optional<std::uint64_t> expected(std::uint32_t epoch) const {
        if (last_epoch_ == epoch) return next_sequence_;
        if (last_epoch_ != 0 || whole_epoch_ == epoch) return 0;
        return std::nullopt;
    }

    std::uint64_t restart_at_ = 0;
    std::uint32_t restart_epoch_ = 0;
    std::uint32_t epoch_ = 0;
    std::uint32_t whole_epoch_ = 0;    // this consumer reads all records of this one
    std::uint32_t last_epoch_ = 0;     // of the last record that was read or passed; 0: none yet
    std::uint64_t next_sequence_ = 0;  // after it
    std::uint64_t records_ = 0;
};

}  // namespace rollring
