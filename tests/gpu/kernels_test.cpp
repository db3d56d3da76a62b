// Kernels against the reference: whole images are compared, so that a byte written beside its place
// is found, and so is a byte of a neighbour that a kernel put back as it was before.

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <array>
#include <cstring>
#include <optional>

#include "device.hpp"
#include "plan.hpp"
#include "reference.hpp"

namespace rollring::test {
namespace {

using cuda::make_plan;
using cuda::Tuning;
using device::Cast;
using device::CopyJob;

constexpr std::byte untouched{0xa5};

void check_same(const Bytes& got, const Bytes& wanted, const JobList& list, std::string_view what) {
    const std::int64_t at = first_difference(got, wanted);
    if (at < 0) return;
    const auto index = static_cast<std::size_t>(at);
    FAIL_CHECK(
        fmt::format("{}: byte {} of {} is {:#04x} and not {:#04x} ({} jobs, checksums from "
                    "byte {})",
                    what, at, wanted.size(), static_cast<unsigned>(got[index]),
                    static_cast<unsigned>(wanted[index]), list.jobs.size(), list.sums_offset));
}

// Pack without sums, pack with them, verify, and unpack (if there are no casts).
void check_all(const JobList& list, Random& random, const Tuning& tuning = {}) {
    const Bytes arena = random_bytes(list.arena_bytes, random);
    const DeviceBytes device_arena(arena);
    const DeviceBytes device_slot(list.slot_bytes);
    const auto plan = need(make_plan(gpu(), list.placed(device_arena.data()), tuning));

    Bytes wanted(list.slot_bytes, untouched);
    device_slot.set(wanted);
    list.pack(arena, wanted);
    need(plan->pack(device_slot.data(), std::nullopt, {}));
    check_same(device_slot.get(), wanted, list, "pack");

    device_slot.set(Bytes(list.slot_bytes, untouched));
    for (std::size_t i = 0; i < list.jobs.size(); i++) list.sum_job(i, wanted);
    need(plan->pack(device_slot.data(), list.sums_offset, {}));
    check_same(device_slot.get(), wanted, list, "pack with checksums");
    check_same(device_arena.get(), arena, list, "the tensors after pack");
    const auto differs = need(plan->verify(device_slot.data(), list.sums_offset, gpu_patience()));
    CHECK_MESSAGE(!differs, "verify finds job ", differs.value_or(0), " to differ");
}

void check_unpack(const JobList& list, Random& random, const Tuning& tuning = {}) {
    const Bytes slot = random_bytes(list.slot_bytes, random);
    Bytes wanted = random_bytes(list.arena_bytes, random);
    const DeviceBytes device_arena(wanted);
    const DeviceBytes device_slot(slot);
    list.unpack(slot, wanted);
    const auto plan = need(make_plan(gpu(), list.placed(device_arena.data()), tuning));
    need(plan->unpack(device_slot.data(), {}));
    check_same(device_arena.get(), wanted, list, "unpack");
    check_same(device_slot.get(), slot, list, "the slot after unpack");
}

TEST_SUITE_BEGIN("gpu");

TEST_CASE("contiguous jobs of any size and alignment") {
    for (unsigned seed = 1; seed <= 20; seed++) {
        CAPTURE(seed);
        Random random(seed);
        const JobList list = random_jobs({.jobs = 200}, random);
        check_all(list, random);
        check_unpack(list, random);
    }
}

TEST_CASE("contiguous jobs of several MiB") {
    Random random(7);
    const JobList list = random_jobs({.jobs = 40, .bytes_max = 6'000'000}, random);
    check_all(list, random);
    check_unpack(list, random);
}

TEST_CASE("every misalignment at sizes around those of vectors, warps and tiles") {
    Random random(11);
    for (const std::uint64_t middle : {0, 16, 512, 4096, 8192, 16384, 3 * 16384}) {
        CAPTURE(middle);
        JobList list;
        for (std::uint64_t skew = 0; skew < 16; skew++) {
            for (std::uint64_t bytes = middle < 18 ? 0 : middle - 18; bytes <= middle + 18;
                 bytes++) {
                list.add({.elements = bytes, .element_bytes = 1}, bytes, skew);
            }
        }
        list.finish();
        check_all(list, random);
        check_unpack(list, random);
    }
}

TEST_CASE("tiles and grids of other sizes") {
    constexpr std::array<Tuning, 6> tunings = {
        {{.tile_bytes = 2048},
         {.over_link = true},
         {.tile_bytes = 16384, .over_link = true},
         {.tile_bytes = 4096, .waves = 1},
         {.tile_bytes = 65536, .waves = 64, .launch_bytes = 200'000},
         {.tile_bytes = 1 << 20, .waves = 1000}}};
    for (const Tuning& tuning : tunings) {
        CAPTURE(tuning.tile_bytes);
        Random random(tuning.tile_bytes);
        const JobList list =
            random_jobs({.jobs = 100, .bytes_max = 400'000, .strided_percent = 10}, random);
        check_all(list, random, tuning);
        check_unpack(list, random, tuning);
    }
}

TEST_CASE("strided jobs") {
    for (unsigned seed = 1; seed <= 20; seed++) {
        CAPTURE(seed);
        Random random(100 + seed);
        check_all(random_jobs({.jobs = 100, .strided_percent = 70, .overlapping = true}, random),
                  random);
        check_unpack(random_jobs({.jobs = 100, .strided_percent = 70}, random), random);
    }
}

TEST_CASE("casts among other jobs") {
    for (unsigned seed = 1; seed <= 20; seed++) {
        CAPTURE(seed);
        Random random(200 + seed);
        const unsigned strided = seed % 2 == 0 ? 30 : 0;
        check_all(
            random_jobs(
                {.jobs = 100, .strided_percent = strided, .cast_percent = 60, .overlapping = true},
                random),
            random);
    }
}

// All upper halves of an f32 (sign, exponent, 7 bits) with the lower halves where rounding to bf16
// and to f16 changes: ties, one below, one above. NaN, infinities and denormals are among them.
TEST_CASE("every kind of f32 as bf16 and as f16") {
    constexpr std::array<std::uint32_t, 14> lowers = {0,      1,      0x0fff, 0x1000, 0x1001,
                                                      0x2000, 0x2fff, 0x3000, 0x3001, 0x7fff,
                                                      0x8000, 0x8001, 0xefff, 0xffff};
    std::vector<std::uint32_t> values;
    for (std::uint32_t upper = 0; upper < 1u << 16; upper++) {
        for (const std::uint32_t lower : lowers) values.push_back(upper << 16 | lower);
    }
    JobList list;
    for (const Cast cast : {Cast::f32_to_bf16, Cast::f32_to_f16}) {
        for (const std::uint64_t skew : {0, 4, 2}) {
            list.add({.elements = values.size(), .element_bytes = 4, .cast = cast},
                     values.size() * 4, skew);
        }
    }
    list.finish();
    Bytes arena(list.arena_bytes);
    for (const CopyJob& job : list.jobs) {
        std::memcpy(arena.data() + reinterpret_cast<std::uint64_t>(job.tensor), values.data(),
                    values.size() * 4);
    }
    const DeviceBytes device_arena(arena);
    const DeviceBytes device_slot(Bytes(list.slot_bytes, untouched));
    Bytes wanted(list.slot_bytes, untouched);
    list.pack(arena, wanted);
    const auto plan = need(make_plan(gpu(), list.placed(device_arena.data())));
    need(plan->pack(device_slot.data(), std::nullopt, {}));
    const Bytes got = device_slot.get();
    std::size_t wrong = 0;
    for (const CopyJob& job : list.jobs) {
        for (std::size_t i = 0; i < values.size(); i++) {
            std::uint16_t seen = 0;
            std::uint16_t right = 0;
            std::memcpy(&seen, got.data() + job.slot_offset + i * 2, 2);
            std::memcpy(&right, wanted.data() + job.slot_offset + i * 2, 2);
            if (seen == right || ++wrong > 10) continue;
            FAIL_CHECK(fmt::format("{:#010x} becomes {:#06x} as {} and not {:#06x}", values[i],
                                   seen, job.cast == Cast::f32_to_bf16 ? "bf16" : "f16", right));
        }
    }
    CHECK(wrong == 0);
    check_same(got, wanted, list, "around the casts");
}

TEST_CASE("a million tiny jobs") {
    Random random(5);
    JobList list;
    for (std::size_t i = 0; i < 1'000'000; i++) {
        const std::uint64_t bytes = random() % 300;
        list.add({.elements = bytes, .element_bytes = 1}, bytes, random() % 4 == 0 ? 2 : 0);
    }
    list.finish();
    check_all(list, random);
    check_unpack(list, random);
}

TEST_CASE("no jobs, and jobs of nothing") {
    Random random(3);
    JobList none;
    none.finish();
    check_all(none, random);
    check_unpack(none, random);
    JobList empty;
    for (int i = 0; i < 10; i++) empty.add({.elements = 0, .element_bytes = 4}, 0, 0);
    empty.finish();
    const DeviceBytes slot(Bytes(empty.slot_bytes, untouched));
    const auto plan = need(make_plan(gpu(), empty.jobs));
    need(plan->pack(slot.data(), empty.sums_offset, {}));
    CHECK(need(plan->verify(slot.data(), empty.sums_offset, gpu_patience())) == std::nullopt);
    need(plan->pack_one(3, nullptr, slot.data(), empty.sums_offset, {}));
}

TEST_CASE("jobs one by one, from addresses that the plan does not know") {
    Random random(13);
    const JobList list = random_jobs(
        {.jobs = 60, .strided_percent = 30, .cast_percent = 30, .overlapping = true}, random);
    const Bytes arena = random_bytes(list.arena_bytes, random);
    const DeviceBytes device_arena(arena);
    const DeviceBytes device_slot(Bytes(list.slot_bytes, untouched));
    std::vector<CopyJob> jobs = list.jobs;
    for (CopyJob& job : jobs) job.tensor = nullptr;
    const auto plan = need(make_plan(gpu(), jobs));
    CHECK(plan->pack(device_slot.data(), std::nullopt, {}).error().code == Errc::invalid_argument);
    Bytes wanted(list.slot_bytes, untouched);
    list.pack(arena, wanted);
    const std::vector<CopyJob> placed = list.placed(device_arena.data());
    for (std::size_t i = 0; i < placed.size(); i++) {
        list.sum_job(i, wanted);
        need(plan->pack_one(i, placed[i].tensor, device_slot.data(), list.sums_offset, {}));
    }
    check_same(device_slot.get(), wanted, list, "pack_one");
    CHECK(need(plan->verify(device_slot.data(), list.sums_offset, gpu_patience())) == std::nullopt);
    CHECK(plan->pack_one(placed.size(), device_arena.data(), device_slot.data(), {}, {})
              .error()
              .code == Errc::invalid_argument);
}

TEST_CASE("verify finds one flipped bit, and says in which job") {
    Random random(17);
    const JobList list = random_jobs({.jobs = 50}, random);
    const DeviceBytes device_arena(random_bytes(list.arena_bytes, random));
    const DeviceBytes device_slot(Bytes(list.slot_bytes, untouched));
    const auto plan = need(make_plan(gpu(), list.placed(device_arena.data())));
    need(plan->pack(device_slot.data(), list.sums_offset, {}));
    const Bytes packed = device_slot.get();
    for (std::size_t i = 0; i < list.jobs.size(); i++) {
        const std::uint64_t bytes = list.jobs[i].packed_bytes();
        if (bytes == 0) continue;
        Bytes flipped = packed;
        flipped[list.jobs[i].slot_offset + random() % bytes] ^= std::byte{1} << random() % 8;
        device_slot.set(flipped);
        CHECK(need(plan->verify(device_slot.data(), list.sums_offset, gpu_patience())) == i);
    }
}

TEST_CASE("jobs that no kernel can run are refused") {
    const auto refused = [](CopyJob job) {
        const auto plan = make_plan(gpu(), {std::move(job)});
        return !plan && plan.error().code == Errc::invalid_argument;
    };
    CHECK(refused({.elements = 1, .element_bytes = 3}));
    CHECK(refused({.elements = 1, .element_bytes = 0}));
    CHECK(refused({.elements = 1, .element_bytes = 16}));
    CHECK(refused({.elements = 1, .slot_offset = 256, .element_bytes = 1}));
    CHECK(refused({.elements = 1, .element_bytes = 2, .cast = Cast::f32_to_bf16}));
    CHECK(refused({.elements = 7, .element_bytes = 1, .shape = {2, 3}, .strides = {3, 1}}));
    CHECK(refused({.elements = 1, .element_bytes = 1, .shape = {2}, .strides = {}}));
    CHECK(refused({.elements = 1, .element_bytes = 1, .shape = {2, 0}, .strides = {1, 1}}));
    const auto view = [&](const auto& change) {
        CopyJob job{.elements = 6,
                    .slot_offset = 2,
                    .element_bytes = 2,
                    .shape = {2, 3},
                    .strides = {3, 1},
                    .view = true,
                    .packed_strides = {8, 1}};
        change(job);
        return job;
    };
    CHECK_FALSE(refused(view([](CopyJob&) {})));
    CHECK(refused(view([](CopyJob& job) { job.slot_offset = 3; })));
    CHECK(refused(view([](CopyJob& job) { job.view = false; })));
    CHECK(refused(view([](CopyJob& job) { job.elements = 5; })));
    CHECK(refused(view([](CopyJob& job) { job.first_element = 1; })));
    CHECK(refused(view([](CopyJob& job) { job.packed_strides = {1}; })));
    CHECK(refused(view([](CopyJob& job) { job.packed_strides = {-8, 1}; })));
    CHECK(refused(view([](CopyJob& job) { job.shape = {6, 1, 0}; })));
    const DeviceBytes slot(1024);
    const auto plan = need(make_plan(gpu(), {}));
    CHECK(plan->pack(slot.data() + 16, std::nullopt, {}).error().code == Errc::invalid_argument);
    CHECK(plan->pack(slot.data(), 4, {}).error().code == Errc::invalid_argument);
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
