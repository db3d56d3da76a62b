#include "near_bytes.hpp"

#include <unistd.h>

#include <algorithm>

#include "layout.hpp"
#include "round_up.hpp"

namespace rollring {
namespace {

constexpr std::uint64_t soft_bytes_most = std::uint64_t{4} << 20;
constexpr std::uint64_t least_bytes = std::uint64_t{64} << 10;  // a turn of the consumer

// 0: unknown.
std::uint64_t last_level_cache() {
    return static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
}

}  // namespace

std::uint64_t default_soft_bytes() {
    const std::uint64_t cache = last_level_cache();
    if (cache == 0) return soft_bytes_most;
    return std::min(soft_bytes_most, std::max(round_up(cache / 4, page_bytes), page_bytes));
}

// A sixteenth of the cache, because other programs and the producers' own data need most of it, and
// a lane's lap has twice the bytes that are unread.
NearBytes::NearBytes(std::uint64_t soft_bytes, std::uint64_t lane_bytes)
    : soft_bytes_(soft_bytes),
      lane_bytes_(lane_bytes),
      all_bytes_(std::max(soft_bytes, last_level_cache() / 16)) {}

// Room for one record that is read, one that is written, and a quarter, so that a producer whose
// second record is unread waits for the first alone.
std::uint64_t NearBytes::of_lane(std::uint32_t busy_lanes, std::uint64_t record_bytes) const {
    if (busy_lanes <= 1 || soft_bytes_ >= lane_bytes_) return soft_bytes_;
    const std::uint64_t share =
        std::max({all_bytes_ / busy_lanes, record_bytes + record_bytes / 4, least_bytes});
    return std::min(soft_bytes_, round_up(share, line_bytes));
}

}  // namespace rollring
