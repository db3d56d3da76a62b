#include "rollring/ring.hpp"

#include <fmt/core.h>
#include <sys/mman.h>

#include "channel_names.hpp"
#include "companion.hpp"
#include "liveness.hpp"
#include "ring_geometry.hpp"
#include "round_up.hpp"
#include "schema_page.hpp"
#include "segment.hpp"

namespace rollring {
namespace {

constexpr std::int64_t create_timeout_ms = 5'000;

Result<SegmentPlan> plan_of(const RingOptions& options) {
    auto geometry = detail::geometry_of(options);
    if (!geometry) return std::unexpected(geometry.error());
    const std::uint64_t request_bytes =
        options.requests == 0 ? 0 : round_up(options.request_bytes, page_bytes);
    auto ledger = plan_ledger(options.ledger_dir, options.ledger_bytes, options.durable);
    if (!ledger) return std::unexpected(ledger.error());
    return SegmentPlan{
        *geometry,        to_page(options.schema), options.purpose,   options.overflow_dir,
        options.requests, request_bytes,           std::move(*ledger)};
}

}  // namespace

Result<void> create_ring(std::string_view name, const RingOptions& options) {
    auto plan = plan_of(options);
    if (!plan) return std::unexpected(plan.error());
    auto segment = Segment::create(name, *plan, Deadline::after_ms(create_timeout_ms));
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
    auto plan = plan_of(options);
    if (!plan) return std::unexpected(plan.error());
    std::optional<LifeLock> owner;
    auto segment = Segment::create(name, *plan, Deadline::after_ms(create_timeout_ms), &owner);
    if (!segment) return std::unexpected(segment.error());
    if (!owner) {
        return refused(Errc::busy, fmt::format("another process owns ring {}", name));
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

std::vector<std::string> list_rings() {
    return Segment::list();
}

std::vector<std::string> list_leftovers() {
    return stale_companions();
}

std::uint32_t remove_leftovers() {
    std::uint32_t removed = 0;
    for (const std::string& name : stale_companions()) removed += shm_unlink(name.c_str()) == 0;
    return removed;
}

SharedMemorySpace shared_memory_space() {
    for (const MemoryBound& bound : memory_bounds()) {
        if (bound.kind == MemoryBound::Kind::space) return {bound.free, bound.total};
    }
    return {0, 0};
}

}  // namespace rollring
