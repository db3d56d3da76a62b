#include "pacer.hpp"

#include <algorithm>
#include <utility>

namespace rollring {
namespace {

constexpr std::uint64_t most_bytes_least = std::uint64_t{512} << 10;  // less is in cache anyway
constexpr std::int64_t wait_ns_max = 200'000;                         // of one pause
constexpr std::int64_t idle_ns = 60'000;  // without progress of the consumer, which may train
constexpr int look_us = 4;                // between loads of the consumer's line

}  // namespace

Pacer::Pacer(const Geometry& geometry, const ReaderEntry& reader, bool may_spin)
    : reader_(&reader),
      lane_bytes_(geometry.lane_bytes),
      most_bytes_(std::max(geometry.soft_bytes, most_bytes_least)),
      step_bytes_(most_bytes_ / 8),
      may_spin_(may_spin) {}

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

void Pacer::wait(const NativeWriter& writer, Deadline deadline) {
    const std::uint64_t from = read_position();
    const std::int64_t began = monotonic_ns();
    const std::int64_t until = std::min(began + wait_ns_max, deadline.at_ns);
    std::uint64_t read = from;
    std::int64_t read_ns = began;
    for (std::int64_t now = began; now < until; now = monotonic_ns()) {
        for (int i = 0; i < look_us; i++) spin_about_a_microsecond();
        const std::uint64_t before = std::exchange(read, peek(reader_->delivered));
        if (read >= from + step_bytes_) return look_again(writer, step_bytes_);
        if (read != before) read_ns = now;
        if (now - read_ns > idle_ns) break;
    }
    look_again(writer, std::max(step_bytes_, 2 * gap_bytes_));
}

}  // namespace rollring
