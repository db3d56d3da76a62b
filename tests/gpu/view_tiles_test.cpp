// The tables and the kernel of views, without a GPU: the test plays all lanes of all warps. It
// cannot play a warp that copies a long row together.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "../weights/view_model.hpp"
#include "copy_view.hpp"
#include "host_mover.hpp"
#include "job_tables.hpp"
#include "subscriber_tensors.hpp"

namespace rollring::test {
namespace {

using device::CopyJob;

constexpr std::uint64_t alignment = 512;

// The parts of a GPU's plan; its other jobs are left to the CPU.
class PlayedPlan : public device::CopyPlan {
  public:
    PlayedPlan(std::vector<CopyJob> jobs, std::uint64_t tile_bytes, std::set<std::uint32_t>& seen)
        : tile_bytes_(tile_bytes), seen_(seen) {
        for (CopyJob& job : jobs) {
            tables_.add(job, tile_bytes);
            if (tables_.jobs.back().view == cuda::view_none) others_.push_back(std::move(job));
        }
    }
    Result<void> pack(std::byte*, std::optional<std::uint64_t>, Stream) override { return {}; }
    Result<void> pack_one(std::size_t, const void*, std::byte*, std::optional<std::uint64_t>,
                          Stream) override {
        return {};
    }
    Result<std::optional<std::size_t>> verify(const std::byte*, std::uint64_t, Deadline) override {
        return std::nullopt;
    }
    Result<void> unpack(const std::byte* slot, Stream stream) override {
        cuda::KernelArgs args{};
        args.jobs = tables_.jobs.data();
        args.layouts = tables_.layouts.data();
        args.tile_bytes = tile_bytes_;
        args.slot = reinterpret_cast<std::uint64_t>(slot);
        for (const cuda::Tile& tile : tables_.view_tiles) play(args, tile);
        device::HostMover cpu;
        auto plan = cpu.plan(others_);
        if (!plan) return std::unexpected(plan.error());
        return (*plan)->unpack(slot, stream);
    }

  private:
    void play(const cuda::KernelArgs& args, const cuda::Tile& tile) {
        const cuda::DeviceJob& job = args.jobs[tile.job];
        const cuda::Layout& layout = args.layouts[job.layout - 1];
        const cuda::ViewTile part = cuda::view_tile(args, tile);
        seen_.insert(job.view == cuda::view_rows ? 100 : part.shift);
        if (job.view == cuda::view_rows) {
            cuda::copy_view_rows(
                part, layout, [](std::uint64_t to, std::uint64_t from, std::uint32_t bytes) {
                    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
                });
            return;
        }
        CHECK((job.tensor | args.slot | job.slot_offset) % (1U << part.shift) == 0);
        for (std::uint32_t lane = 0; lane < cuda::warp_lanes; lane++) {
            cuda::copy_view_units(part, layout, lane);
        }
    }

    cuda::Tables tables_;
    std::vector<CopyJob> others_;
    std::uint64_t tile_bytes_;
    std::set<std::uint32_t>& seen_;
};

class PlayedMover : public device::HostMover {
  public:
    explicit PlayedMover(std::uint64_t tile_bytes) : tile_bytes_(tile_bytes) {}
    Result<std::unique_ptr<device::CopyPlan>> plan(std::vector<CopyJob> jobs) override {
        for (const CopyJob& job : jobs) CHECK(cuda::fault_of(job) == "");
        return std::make_unique<PlayedPlan>(std::move(jobs), tile_bytes_, seen);
    }
    std::set<std::uint32_t> seen;  // shifts of units; 100 for long rows

  private:
    std::uint64_t tile_bytes_;
};

// Bytes that begin where memory of a GPU does.
class Aligned {
  public:
    explicit Aligned(const std::vector<std::byte>& bytes) : memory_(bytes.size() + alignment) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
        start_ = (alignment - address % alignment) % alignment;
        std::ranges::copy(bytes, data());
    }
    [[nodiscard]] std::byte* data() { return memory_.data() + start_; }

  private:
    std::vector<std::byte> memory_;
    std::size_t start_ = 0;
};

}  // namespace

TEST_CASE("random views, in units of all sizes and by rows") {
    PlayedMover mover(16384);
    PlayedMover small_tiles(cuda::tile_bytes_min);
    constexpr std::array<std::uint64_t, 5> slot_bytes = {512, 3584, 16384, 100'000, 0};
    for (unsigned seed = 1; seed <= 80; seed++) {
        CAPTURE(seed);
        std::mt19937_64 dice(seed);
        const bool large = seed % 4 == 0;
        const ViewCase given = random_views({.elements_max = large ? 30'000U : 4000U,
                                             .extent_max = large ? 6000U : 300U,
                                             .row_multiple = seed % 3 == 0 ? 64U : 1U,
                                             .slot_bytes = slot_bytes[seed % 5]},
                                            dice);
        Aligned arena(given.arena);
        auto tensors = weights::SubscriberTensors::compile(
            given.manifest, given.placed(arena.data()), true, seed % 2 == 0 ? mover : small_tiles);
        REQUIRE(tensors.has_value());
        for (std::uint32_t part = 0; part < given.slots.size(); part++) {
            REQUIRE(tensors->load(part, Aligned(given.slots[part]).data(), {}).has_value());
        }
        REQUIRE(std::memcmp(arena.data(), given.wanted.data(), given.wanted.size()) == 0);
    }
    CHECK(mover.seen == std::set<std::uint32_t>{0, 1, 2, 3, 4, 100});
    CHECK(small_tiles.seen == mover.seen);
}

TEST_CASE("the numbers of units are divided as they should be, to the last that can be") {
    std::mt19937_64 dice(3);
    for (int round = 0; round < 20'000; round++) {
        const auto extent = static_cast<std::int64_t>(2 + dice() % (1ULL << (dice() % 30)));
        const auto rows = static_cast<std::int64_t>(
            1 + dice() % ((std::uint64_t{1} << 40) / static_cast<std::uint64_t>(extent)));
        const std::uint64_t units = static_cast<std::uint64_t>(rows * extent);
        const CopyJob job{.elements = units,
                          .element_bytes = 1,
                          .shape = {rows, extent},
                          .strides = {extent + 1, 1},
                          .view = true,
                          .packed_strides = {extent + 3, 1}};
        if (!cuda::fault_of(job).empty()) {
            CHECK(static_cast<std::uint64_t>(extent) > (std::uint64_t{1} << 58) / units);
            continue;
        }
        cuda::Tables tables;
        tables.add(job, std::uint64_t{1} << 30);
        const std::uint32_t shift = tables.jobs[0].element_shift;
        for (const std::uint64_t byte : {dice() % units, units - 1, units - 1 - dice() % 2}) {
            std::uint64_t unit[1] = {byte >> shift};
            std::uint64_t to[1];
            std::uint64_t from[1];
            cuda::find_units(tables.layouts[0], cuda::ViewTile{}, unit, to, from);
            const std::uint64_t at = byte >> shift << shift;
            const std::uint64_t row = at / static_cast<std::uint64_t>(extent);
            REQUIRE(to[0] == at + row);
            REQUIRE(from[0] == at + 3 * row);
        }
    }
}

}  // namespace rollring::test
