// Views of published tensors, cut out of slots by the kernels: the same random ones as on the host.
// The whole memory of the engine is compared, so that a byte written beside its place is found.

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <utility>

#include "../weights/view_model.hpp"
#include "backends.hpp"
#include "device.hpp"
#include "host_mover.hpp"
#include "plan.hpp"
#include "reference.hpp"
#include "remote_staging.hpp"
#include "subscriber_tensors.hpp"

namespace rollring::test {
namespace {

using cuda::make_plan;
using cuda::Tuning;
using device::CopyJob;

// Plans of the GPU, with any tiles.
class TunedMover : public device::HostMover {
  public:
    explicit TunedMover(const Tuning& tuning) : tuning_(tuning) {}
    Result<std::unique_ptr<device::CopyPlan>> plan(std::vector<CopyJob> jobs) override {
        return make_plan(test::gpu(), jobs, tuning_);
    }

  private:
    Tuning tuning_;
};

void check_load(const ViewCase& given, const Tuning& tuning) {
    TunedMover mover(tuning);
    const DeviceBytes arena(given.arena);
    auto tensors = need(weights::SubscriberTensors::compile(
        given.manifest, given.placed(arena.data()), true, mover));
    for (std::uint32_t part = 0; part < given.slots.size(); part++) {
        const DeviceBytes slot(given.slots[part]);
        need(tensors.load(part, slot.data(), {}));
        CHECK((slot.get() == given.slots[part]));
    }
    CHECK(first_difference(arena.get(), given.wanted) == -1);
}

// In two steps, of which the second reads no slot.
void check_staged(const ViewCase& given) {
    const device::Backend own = need(cuda::make_backend(Device::cuda(0), PayloadMemory::vmm));
    const DeviceBytes arena(given.arena);
    const auto parts = need(
        weights::compile_planned(given.manifest.packing, given.placed(arena.data()), *own.mover));
    const auto staging = need(weights::RemoteStaging::make(parts, *own.memory, *own.mover));
    for (std::uint32_t part = 0; part < given.slots.size(); part++) {
        const DeviceBytes slot(given.slots[part]);
        need(staging->fetch(part, slot.data(), {}));
        need(own.mover->wait({}, gpu_patience()));
        CHECK((slot.get() == given.slots[part]));
    }
    CHECK(first_difference(arena.get(), given.arena) == -1);
    for (std::uint32_t part = 0; part < given.slots.size(); part++) need(staging->place(part, {}));
    need(own.mover->wait({}, gpu_patience()));
    CHECK(first_difference(arena.get(), given.wanted) == -1);
}

TEST_SUITE_BEGIN("gpu");

TEST_CASE("random views out of slots that are cut within rows") {
    constexpr std::array<std::uint64_t, 5> slot_bytes = {512, 3584, 16384, 100'000, 0};
    for (unsigned seed = 1; seed <= 150; seed++) {
        CAPTURE(seed);
        Random random(seed);
        const ViewSizes sizes{.row_multiple = seed % 3 == 0 ? 8U : 1U,
                              .slot_bytes = slot_bytes[seed % 5]};
        const ViewCase given = random_views(sizes, random);
        check_load(given, {});
        check_staged(given);
    }
}

TEST_CASE("views of long rows, aligned and not, in tiles of several sizes") {
    constexpr std::array<Tuning, 4> tunings = {{{},
                                                {.tile_bytes = 2048, .waves = 1},
                                                {.tile_bytes = 65536},
                                                {.tile_bytes = 16384, .over_link = true}}};
    for (unsigned seed = 1; seed <= 60; seed++) {
        CAPTURE(seed);
        Random random(1000 + seed);
        const ViewSizes sizes{.elements_max = 60'000,
                              .extent_max = 6000,
                              .row_multiple = seed % 2 == 0 ? 64U : 1U,
                              .slot_bytes = seed % 4 == 0 ? 40'000U : 0U};
        check_load(random_views(sizes, random), tunings[seed % tunings.size()]);
    }
}

// A shard of a row-parallel matrix: its rows go into a tensor of their own, of any length.
TEST_CASE(
    "columns of every alignment and of lengths around those of units, vectors and long rows") {
    Random random(41);
    constexpr std::uint64_t rows = 37;
    for (const std::uint64_t pitch : {5000, 4992, 4999}) {
        CAPTURE(pitch);
        const Bytes slot = random_bytes(rows * pitch, random);
        const DeviceBytes device_slot(slot);
        for (const std::uint64_t length :
             {1, 8, 15, 16, 48, 192, 255, 256, 384, 1000, 2047, 2048, 2064, 4096}) {
            CAPTURE(length);
            std::vector<CopyJob> jobs;
            Bytes wanted(16 * (rows * (length + 16) + 32), std::byte{0xa5});
            const DeviceBytes arena(wanted);
            for (std::uint64_t skew = 0; skew < 16; skew++) {
                // Aligned to each other, and not; dense, and with gaps.
                const std::uint64_t first = skew % 2 == 0 ? skew : 3 * skew;
                const std::uint64_t step = length + (skew % 3 == 0 ? 0 : 16);
                const std::uint64_t at = skew * (rows * (length + 16) + 32) / 16 * 16 + skew;
                jobs.push_back({.tensor = arena.data() + at,
                                .elements = rows * length,
                                .slot_offset = first,
                                .element_bytes = 1,
                                .shape = {rows, static_cast<std::int64_t>(length)},
                                .strides = {static_cast<std::int64_t>(step), 1},
                                .view = true,
                                .packed_strides = {static_cast<std::int64_t>(pitch), 1}});
                for (std::uint64_t row = 0; row < rows; row++) {
                    std::copy_n(slot.begin() + static_cast<std::ptrdiff_t>(first + row * pitch),
                                length,
                                wanted.begin() + static_cast<std::ptrdiff_t>(at + row * step));
                }
            }
            need(need(make_plan(gpu(), jobs))->unpack(device_slot.data(), {}));
            CHECK(first_difference(arena.get(), wanted) == -1);
        }
    }
}

TEST_CASE("a plan with views only unpacks") {
    const DeviceBytes tensor(64);
    const DeviceBytes slot(1024);
    const auto plan = need(make_plan(gpu(), {{.tensor = tensor.data(),
                                              .elements = 4,
                                              .slot_offset = 8,
                                              .element_bytes = 4,
                                              .view = true}}));
    CHECK(plan->pack(slot.data(), {}, {}).error().code == Errc::invalid_argument);
    CHECK(plan->pack_one(0, tensor.data(), slot.data(), {}, {}).error().code ==
          Errc::invalid_argument);
    CHECK(plan->verify(slot.data(), 512, gpu_patience()).error().code == Errc::invalid_argument);
    need(plan->unpack(slot.data(), {}));
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
