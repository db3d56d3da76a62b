#include "pacer.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace rollring {
namespace {

constexpr std::uint64_t alone_least = std::uint64_t{512} << 10;  // of one lane: in cache anyway
constexpr std::int64_t wait_ns_max = 4'000'000;                  // of one pause
constexpr std::int64_t spin_ns_max = 200'000;                    // of that
constexpr std::chrono::microseconds nap(50);                     // afterwards, between looks
constexpr std::int64_t idle_ns = 60'000;  // without progress of the consumer, which may train
constexpr int look_us = 4;                // between loads of the consumer's line

// Whether the consumer reads, this lane or others.
class Progress {
  public:
    Progress(const ReaderControl& control, std::uint64_t read, std::int64_t now_ns)
        : control_(&control), turns_(peek(control.turns)), read_(read), moved_ns_(now_ns) {}

    // False once it has read nothing for some time. The count of turns lies in a line that all
    // waiting producers share, so it is read only where this lane says nothing.
    bool goes_on(std::uint64_t read, std::int64_t now_ns) {
        if (std::exchange(read_, read) != read) moved_ns_ = now_ns;
        if (now_ns - moved_ns_ <= idle_ns) return true;
        const std::uint64_t turns = peek(control_->turns);
        if (std::exchange(turns_, turns) == turns) return false;
        moved_ns_ = now_ns;
        return true;
    }

  private:
    const ReaderControl* control_;
    std::uint64_t turns_;
    std::uint64_t read_;
    std::int64_t moved_ns_;
};

}  // namespace

Pacer::Pacer(const RingMap& map, std::uint32_t lane, bool may_spin)
    : reader_(&map.entry(lane)),
      control_(&map.control()),
      near_(map.geometry().soft_bytes, map.geometry().lane_bytes),
      lane_bytes_(map.geometry().lane_bytes),
      may_spin_(may_spin) {
    near_bytes(0);
}

std::uint64_t Pacer::near_bytes(std::uint64_t record_bytes) {
    const std::uint32_t lanes = peek(control_->busy_lanes);
    const std::uint64_t bytes = near_.of_lane(lanes, record_bytes);
    most_bytes_ = lanes <= 1 ? std::max(bytes, alone_least) : bytes;
    step_bytes_ = most_bytes_ / 8;
    return bytes;
}

// Below restart_at there are no records of ours, and none that are still read.
std::uint64_t Pacer::read_position() const {
    return std::max(peek(reader_->delivered), peek(reader_->restart_at));
}

void Pacer::look_again(const NativeWriter& writer, std::uint64_t bytes) {
    gap_bytes_ = std::min(bytes, lane_bytes_);
    look_at_ = writer.position() + gap_bytes_;
}

bool Pacer::behind(const NativeWriter& writer, Deadline deadline) {
    const bool behind = may_spin_ && writer.written_since(read_position()) > most_bytes_;
    if (behind && !deadline.passed()) return true;
    look_again(writer, std::max(step_bytes_, behind ? 2 * gap_bytes_ : gap_bytes_ / 2));
    return false;
}

// A consumer that has read as much as comes between two looks catches up, however slowly.
void Pacer::wait(const NativeWriter& writer, Deadline deadline) {
    const std::uint64_t from = read_position();
    const std::int64_t until = std::min(monotonic_ns() + wait_ns_max, deadline.at_ns);
    const bool caught_up = pause_until_read(writer, until);
    const bool catches_up =
        caught_up || read_position() - from >= std::max(gap_bytes_, step_bytes_);
    look_again(writer, catches_up ? step_bytes_ : std::max(step_bytes_, 2 * gap_bytes_));
}

// True once the backlog is within its bound, less a step. A consumer of many lanes comes back to
// this one after some hundred microseconds, so most of that time is slept.
bool Pacer::pause_until_read(const NativeWriter& writer, std::int64_t until_ns) const {
    const std::int64_t began = monotonic_ns();
    Progress progress(*control_, read_position(), began);
    for (std::int64_t now = began; now < until_ns; now = monotonic_ns()) {
        if (now - began < spin_ns_max) {
            for (int i = 0; i < look_us; i++) spin_about_a_microsecond();
        } else {
            std::this_thread::sleep_for(nap);
        }
        const std::uint64_t read = read_position();
        if (writer.written_since(read) + step_bytes_ <= most_bytes_) return true;
        if (!progress.goes_on(read, monotonic_ns())) return false;
    }
    return false;
}

}  // namespace rollring
