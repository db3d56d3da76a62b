#pragma once
// Keeps a producer from running too far ahead of a consumer that keeps reading.
//
// If the consumer is far behind, both sides work on memory that has left their caches, so the
// consumer is slower than it could be and stays behind: a lane that was full once stays full, at
// half the rate. Pacing gives a reading consumer time to catch up to within the soft wrap, which
// stays in cache, or to this lane's part of it where many lanes are read by turns. Records that it
// holds do not count, because waiting would not complete its batch. While it does not read (it
// trains), the whole lane may fill, and the backlog is checked less and less often.

#include <cstdint>

#include "near_bytes.hpp"
#include "ring_map.hpp"
#include "rollring/time.hpp"

namespace rollring {

class Pacer {
  public:
    Pacer() = default;
    // `may_spin`: there is a CPU to spin on.
    Pacer(const RingMap& map, std::uint32_t lane, bool may_spin);

    // Cheap test for each record: whether to check the backlog now.
    [[nodiscard]] bool due(std::uint64_t position) const { return position >= look_at_; }
    // Learns how many lanes are busy. Returns where this one, with records of this length, turns
    // back early.
    std::uint64_t near_bytes(std::uint64_t record_bytes);
    // Whether to wait for the consumer. The caller shows pending records before that.
    [[nodiscard]] bool behind(const NativeWriter& writer, Deadline deadline);
    void wait(const NativeWriter& writer, Deadline deadline);

  private:
    [[nodiscard]] std::uint64_t read_position() const;
    [[nodiscard]] bool pause_until_read(const NativeWriter& writer, std::int64_t until_ns) const;
    void look_again(const NativeWriter& writer, std::uint64_t bytes);

    const ReaderEntry* reader_ = nullptr;
    const ReaderControl* control_ = nullptr;
    NearBytes near_;
    std::uint64_t lane_bytes_ = 0;
    std::uint64_t most_bytes_ = 0;  // the largest backlog without pacing
    std::uint64_t step_bytes_ = 0;
    std::uint64_t look_at_ = 0;  // the position from which the backlog is checked
    std::uint64_t gap_bytes_ = 0;
    bool may_spin_ = false;
};

inline void spin_about_a_microsecond() {
    for (int i = 0; i < 64; i++) spin_pause();
}

}  // namespace rollring
