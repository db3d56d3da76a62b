#include "rollring/ring.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "channel_names.hpp"
#include "human.hpp"
#include "liveness.hpp"
#include "round_up.hpp"
#include "schema_page.hpp"
#include "segment.hpp"

namespace rollring {
namespace {

constexpr std::int64_t create_timeout_ms = 5'000;
// Of the spill, unless it is given: as much as all lanes, so that whatever lies in them can be
// moved; reserved as it is needed.
constexpr std::uint64_t spill_bytes_least = std::uint64_t{256} << 20;
constexpr std::uint64_t spill_bytes_most = std::uint64_t{64} << 30;
// Of the overflow file, likewise.
constexpr std::uint64_t overflow_spills = 4;
constexpr std::uint64_t overflow_bytes_most = std::uint64_t{64} << 30;

std::uint64_t default_soft_bytes() {
    constexpr std::uint64_t most = std::uint64_t{4} << 20;
    const long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache_bytes <= 0) return most;
    const std::uint64_t quarter = static_cast<std::uint64_t>(cache_bytes) / 4;
    return std::min(most, std::max(round_up(quarter, page_bytes), page_bytes));
}

// What is said of the overflow file, once the spill is known; empty if nothing is wrong with it.
std::string add_overflow(const RingOptions& options, Geometry& geometry) {
    const bool wanted = !options.overflow_dir.empty();
    if (!wanted && options.overflow_bytes) {
        return "overflow_bytes is given, but no overflow_dir to have them in";
    }
    if (!wanted) return {};
    if (geometry.spill_bytes == 0) {
        return "overflow_dir is given, but the spill that would go on there has none: spill_bytes "
               "is 0";
    }
    const std::uint64_t most = lane_bytes_max - geometry.spill_bytes;
    const std::uint64_t bytes = options.overflow_bytes.value_or(
        std::min({overflow_spills * geometry.spill_bytes, overflow_bytes_most, most}));
    if (bytes == 0 || bytes > most) {
        return fmt::format(
            "overflow_bytes is {}, must be at least 1 and at most {}: with the "
            "spill's {} no more than {}",
            human_bytes(bytes), human_bytes(most), human_bytes(geometry.spill_bytes),
            human_bytes(lane_bytes_max));
    }
    geometry.overflow_bytes = round_up(bytes, page_bytes);
    return {};
}

Result<Geometry> geometry_of(const RingOptions& options) {
    const auto refuse = [](std::string why) {
        return refused(Errc::invalid_argument, std::move(why));
    };
    if (options.lanes < 1 || options.lanes > lanes_max) {
        return refuse(fmt::format("lanes is {}, must be 1 to {}", options.lanes, lanes_max));
    }
    if (options.lane_bytes < 1 || options.lane_bytes > lane_bytes_max) {
        return refuse(fmt::format("lane_bytes is {}, must be {} to {}",
                                  human_bytes(options.lane_bytes), human_bytes(1),
                                  human_bytes(lane_bytes_max)));
    }
    if (options.journal_records < 1 || options.journal_records > (1U << 24)) {
        return refuse(fmt::format("journal_records is {}, must be 1 to {}",
                                  human_count(options.journal_records), human_count(1U << 24)));
    }
    if (options.spill_bytes.value_or(0) > lane_bytes_max) {
        return refuse(fmt::format("spill_bytes is {}, must be at most {}",
                                  human_bytes(*options.spill_bytes), human_bytes(lane_bytes_max)));
    }
    if (options.group_rows < 1 || options.group_rows > group_rows_max) {
        return refuse(fmt::format("group_rows is {}, must be 1 to {}",
                                  human_count(options.group_rows), human_count(group_rows_max)));
    }
    if (options.requests > requests_max) {
        return refuse(fmt::format("requests is {}, must be at most {}",
                                  human_count(options.requests), human_count(requests_max)));
    }
    if (options.requests != 0 &&
        (options.request_bytes < 1 || options.request_bytes > lane_bytes_max)) {
        return refuse(fmt::format("request_bytes is {}, must be {} to {}",
                                  human_bytes(options.request_bytes), human_bytes(1),
                                  human_bytes(lane_bytes_max)));
    }
    Geometry geometry{};
    geometry.lane_count = options.lanes;
    geometry.journal_records = options.journal_records;
    geometry.lane_bytes = round_up(options.lane_bytes, page_bytes);
    geometry.soft_bytes = options.soft_bytes == 0 ? default_soft_bytes() : options.soft_bytes;
    geometry.spill_bytes =
        round_up(options.spill_bytes.value_or(std::clamp(geometry.lane_count * geometry.lane_bytes,
                                                         spill_bytes_least, spill_bytes_most)),
                 page_bytes);
    geometry.group_rows = options.group_rows;
    geometry.requests = options.requests;
    if (options.requests != 0) geometry.request_bytes = round_up(options.request_bytes, page_bytes);
    geometry.soft_bytes = std::min(round_up(geometry.soft_bytes, line_bytes), geometry.lane_bytes);
    if (auto wrong = add_overflow(options, geometry); !wrong.empty()) {
        return refuse(std::move(wrong));
    }
    return geometry;
}

}  // namespace

Result<void> create_ring(std::string_view name, const RingOptions& options) {
    auto geometry = geometry_of(options);
    if (!geometry) return std::unexpected(geometry.error());
    auto segment = Segment::create(name, *geometry, to_page(options.schema),
                                   Deadline::after_ms(create_timeout_ms), options.overflow_dir);
    if (!segment) return std::unexpected(segment.error());
    return {};
}

struct OwnedRing::State {
    std::string name;
    LifeLock owner;
};

OwnedRing::OwnedRing(std::unique_ptr<State> state) : state_(std::move(state)) {}
OwnedRing::OwnedRing(OwnedRing&&) noexcept = default;

OwnedRing& OwnedRing::operator=(OwnedRing&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
}

OwnedRing::~OwnedRing() {
    // A forked child holds no life byte: the ring is its parent's.
    if (state_ && state_->owner.held()) static_cast<void>(remove_ring(state_->name, true));
}

const std::string& OwnedRing::name() const {
    return state_->name;
}

Result<OwnedRing> OwnedRing::create(std::string_view name, const RingOptions& options) {
    remove_orphaned_rings();
    auto geometry = geometry_of(options);
    if (!geometry) return std::unexpected(geometry.error());
    std::optional<LifeLock> owner;
    auto segment =
        Segment::create(name, *geometry, to_page(options.schema),
                        Deadline::after_ms(create_timeout_ms), options.overflow_dir, &owner);
    if (!segment) return std::unexpected(segment.error());
    if (!owner) {
        return refused(Errc::busy, fmt::format("the owner's byte of ring {} is taken", name));
    }
    return OwnedRing(std::make_unique<State>(State{std::string(name), std::move(*owner)}));
}

std::uint32_t remove_orphaned_rings() {
    std::uint32_t removed = 0;
    for (const std::string& name : Segment::list()) {
        if (!Segment::remove_orphan(name).value_or(false)) continue;
        channel::sweep(name, true);
        removed++;
    }
    return removed;
}

Result<void> remove_ring(std::string_view name, bool force) {
    auto removed = Segment::remove(name, force);
    if (removed) channel::sweep(name, true);
    return removed;
}

struct ServerSeat::State {
    LifeLock life;
};

ServerSeat::ServerSeat(std::unique_ptr<State> state) : state_(std::move(state)) {}
ServerSeat::ServerSeat(ServerSeat&&) noexcept = default;
ServerSeat& ServerSeat::operator=(ServerSeat&&) noexcept = default;
ServerSeat::~ServerSeat() = default;

Result<ServerSeat> ServerSeat::take(std::string_view ring) {
    const Deadline deadline = Deadline::after_ms(create_timeout_ms);
    for (;;) {
        auto segment = Segment::attach(ring, deadline);
        if (!segment) return std::unexpected(segment.error());
        auto life = LifeLock::take(segment->fd(), LifeByte::server());
        if (!life) return std::unexpected(life.error());
        if (!life->has_value()) {
            return refused(Errc::busy,
                           fmt::format("another process is the server of ring {}", ring));
        }
        auto stays = segment->stays(deadline);
        if (!stays) return std::unexpected(stays.error());
        if (*stays) return ServerSeat(std::make_unique<State>(State{std::move(**life)}));
    }
}

std::vector<std::string> list_rings() {
    return Segment::list();
}

SharedMemorySpace shared_memory_space() {
    const auto space = Segment::shared_memory();
    return {space.free_bytes, space.total_bytes};
}

}  // namespace rollring
