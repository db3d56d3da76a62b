// Tensors of more than 4 GiB, whose offsets do not fit into 32 bits.

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <algorithm>

#include "device.hpp"
#include "plan.hpp"
#include "reference.hpp"
#include "round_up.hpp"

namespace rollring::test {
namespace {

using device::CopyJob;

constexpr std::uint64_t period = 67'108'859;  // a prime: no two places of interest look alike
constexpr std::uint64_t sample = 70'000;

// Byte i of the tensor is byte i % period of the pattern.
void fill(std::byte* device, std::uint64_t bytes, const Bytes& pattern) {
    for (std::uint64_t at = 0; at < bytes; at += period) {
        to_device(device + at, std::span(pattern).first(std::min(period, bytes - at)));
    }
}

// Compares samples: the ends, both sides of 4 GiB, and places in between.
template <class Wanted>
void check_samples(const std::byte* device, std::uint64_t bytes, const Wanted& wanted) {
    Random random(23);
    std::vector<std::uint64_t> places = {0, bytes - sample, (std::uint64_t{1} << 32) - sample / 2};
    for (int i = 0; i < 30; i++) places.push_back(random() % (bytes - sample));
    for (const std::uint64_t place : places) {
        const Bytes got = from_device(device + place, sample);
        for (std::uint64_t i = 0; i < sample; i++) {
            if (got[i] == wanted(place + i)) continue;
            FAIL_CHECK(fmt::format("byte {} is {:#04x} and not {:#04x}", place + i,
                                   static_cast<unsigned>(got[i]),
                                   static_cast<unsigned>(wanted(place + i))));
            break;
        }
    }
}

bool too_little_memory(std::uint64_t bytes) {
    if (free_device_bytes() > bytes + (std::uint64_t{1} << 30)) return false;
    MESSAGE("skipped: ", bytes, " B of GPU memory are not free");
    return true;
}

TEST_SUITE_BEGIN("gpu");

TEST_CASE("a tensor of more than 4 GiB, misaligned") {
    constexpr std::uint64_t bytes = (std::uint64_t{4} << 30) + 123'457;
    if (too_little_memory(2 * bytes)) return;
    Random random(19);
    const Bytes pattern = random_bytes(period, random);
    const DeviceBytes tensor(bytes + 16);
    const DeviceBytes slot(bytes + 512);
    fill(tensor.data() + 3, bytes, pattern);
    const auto at = [&](std::uint64_t i) { return pattern[i % period]; };
    const std::uint64_t sums = round_up(bytes, 8);
    const auto plan = need(cuda::make_plan(
        gpu(), {{.tensor = tensor.data() + 3, .elements = bytes, .element_bytes = 1}}));
    need(plan->pack(slot.data(), sums, {}));
    check_samples(slot.data(), bytes, at);
    CHECK(need(plan->verify(slot.data(), sums, gpu_patience())) == std::nullopt);
    fill(tensor.data(), bytes, Bytes(period));
    need(plan->unpack(slot.data(), {}));
    check_samples(tensor.data() + 3, bytes, at);
}

TEST_CASE("a transposed tensor of more than 4 Gi elements") {
    constexpr std::uint64_t rows = 65'543;
    constexpr std::uint64_t columns = 65'536;
    if (too_little_memory(2 * rows * columns)) return;
    Random random(29);
    const Bytes pattern = random_bytes(period, random);
    const DeviceBytes tensor(rows * columns);
    const DeviceBytes slot(rows * columns);
    fill(tensor.data(), rows * columns, pattern);
    const auto plan = need(cuda::make_plan(gpu(), {{.tensor = tensor.data(),
                                                    .elements = rows * columns,
                                                    .element_bytes = 1,
                                                    .shape = {columns, rows},
                                                    .strides = {1, columns}}}));
    need(plan->pack(slot.data(), std::nullopt, {}));
    check_samples(slot.data(), rows * columns, [&](std::uint64_t i) {
        return pattern[(i % rows * columns + i / rows) % period];
    });
}

TEST_CASE("views of more than 4 Gi units: columns but the first, and those transposed") {
    constexpr std::uint64_t rows = 65'543;
    constexpr std::uint64_t columns = 65'537;
    constexpr std::uint64_t taken = columns - 1;
    if (too_little_memory(2 * rows * columns)) return;
    Random random(31);
    const Bytes pattern = random_bytes(period, random);
    const DeviceBytes slot(rows * columns);
    const DeviceBytes tensor(rows * taken);
    fill(slot.data(), rows * columns, pattern);
    CopyJob view{.tensor = tensor.data(),
                 .elements = rows * taken,
                 .slot_offset = 1,
                 .element_bytes = 1,
                 .shape = {rows, taken},
                 .strides = {taken, 1},
                 .view = true,
                 .packed_strides = {columns, 1}};
    need(need(cuda::make_plan(gpu(), {view}))->unpack(slot.data(), {}));
    check_samples(tensor.data(), rows * taken, [&](std::uint64_t i) {
        return pattern[(i / taken * columns + 1 + i % taken) % period];
    });
    view.shape = {taken, rows};
    view.strides = {rows, 1};
    view.packed_strides = {1, columns};
    need(need(cuda::make_plan(gpu(), {view}))->unpack(slot.data(), {}));
    check_samples(tensor.data(), rows * taken, [&](std::uint64_t i) {
        return pattern[(i % rows * columns + 1 + i / rows) % period];
    });
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
