// view_rate: how fast views come out of a slot, against cuMemcpyDtoDAsync of as many bytes in the
// same run. A matrix that fills the slot is cut into columns, as ranks take them; one rank's are
// written into a tensor of their own. One JSON line per measurement; medians of ten, by events.
//
//   view_rate            one of 8 ranks, and one of 2
//   view_rate --sweep    tile sizes and waves, too

#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device.hpp"
#include "gpu_clock.hpp"
#include "plan.hpp"

namespace rollring::test {
namespace {

using cuda::Tuning;
using device::CopyJob;

constexpr std::uint64_t slot_bytes = 512 * mib;

class Bench {
  public:
    Bench() : slot_(slot_bytes), tensor_(slot_bytes) {}

    // `skew`: bytes that the columns begin beside a multiple of 16.
    void columns(std::uint64_t row_bytes, std::uint64_t ranks, std::uint64_t skew,
                 const Tuning& tuning) {
        const std::uint64_t pitch = row_bytes * ranks;
        const std::uint64_t rows = slot_bytes / pitch - 1;
        const std::uint64_t elements = rows * row_bytes / 2;
        run("columns", row_bytes, ranks, skew, tuning,
            {.tensor = tensor_.data(),
             .elements = elements,
             .slot_offset = row_bytes + skew,
             .element_bytes = 2,
             .shape = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(row_bytes / 2)},
             .strides = {static_cast<std::int64_t>(row_bytes / 2), 1},
             .view = true,
             .packed_strides = {static_cast<std::int64_t>(pitch / 2), 1}});
    }

    void rows(std::uint64_t skew) {
        const std::uint64_t bytes = slot_bytes / 2;
        run("rows", bytes, 1, skew, {},
            {.tensor = tensor_.data(),
             .elements = bytes / 2,
             .slot_offset = bytes / 2 + skew,
             .element_bytes = 2,
             .view = true});
    }

    // As a transposed matrix of 2-byte elements.
    void transposed() {
        constexpr std::int64_t side = 8192;
        run("transposed", 2, 1, 0, {},
            {.tensor = tensor_.data(),
             .elements = std::uint64_t{side} * side,
             .element_bytes = 2,
             .shape = {side, side},
             .strides = {side, 1},
             .view = true,
             .packed_strides = {1, side}});
    }

  private:
    // NOLINTNEXTLINE(readability-function-size): the columns of one row of its output
    void run(std::string_view what, std::uint64_t row_bytes, std::uint64_t ranks,
             std::uint64_t skew, const Tuning& tuning, const CopyJob& job) {
        const std::uint64_t bytes = job.elements * job.element_bytes;
        const double copied = clock_.median([&](CUstream stream) {
            need(api().cuMemcpyDtoDAsync(tensor_.address(), slot_.address(), bytes, stream),
                 "copy");
        });
        const auto plan = need(cuda::make_plan(gpu(), {job}, tuning));
        const double ms =
            clock_.median([&](CUstream stream) { need(plan->unpack(slot_.data(), {stream})); });
        fmt::print(
            "{{\"what\": \"{}\", \"row_bytes\": {}, \"ranks\": {}, \"skew\": {}, "
            "\"tile_bytes\": {}, \"waves\": {}, \"bytes\": {}, \"ms\": {:.4f}, "
            "\"gb_per_s\": {:.1f}, \"of_copy\": {:.3f}}}\n",
            what, row_bytes, ranks, skew, tuning.tile_bytes, tuning.waves, 2 * bytes, ms,
            static_cast<double>(2 * bytes) / ms / 1e6, copied / ms);
        static_cast<void>(std::fflush(stdout));
    }

    DeviceBytes slot_;
    DeviceBytes tensor_;
    Clock clock_;
};

int run(const std::vector<std::string_view>& arguments) {
    const bool sweep = arguments.size() == 1 && arguments[0] == "--sweep";
    if (!arguments.empty() && !sweep) {
        fmt::print(stderr, "usage: view_rate [--sweep]\n");
        return 2;
    }
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    const cuda::Context::Scope scope(gpu()->context());
    Bench bench;
    for (const std::uint64_t skew : {0, 8, 2}) bench.rows(skew);
    bench.transposed();
    std::vector<Tuning> tunings{{}};
    if (sweep) {
        tunings.clear();
        for (const std::uint64_t tile : {4096, 16384, 65536}) {
            for (const unsigned waves : {1U, 4U, 16U}) tunings.push_back({tile, waves});
        }
    }
    for (const Tuning& tuning : tunings) {
        for (const std::uint64_t ranks : {8, 2}) {
            for (const std::uint64_t row_bytes :
                 {64, 128, 192, 256, 384, 512, 1024, 1536, 2048, 4096, 8192}) {
                for (const std::uint64_t skew : {0, 8, 2}) {
                    bench.columns(row_bytes, ranks, skew, tuning);
                }
            }
        }
    }
    return 0;
}

}  // namespace
}  // namespace rollring::test

int main(int argc, char** argv) {
    try {
        return rollring::test::run({argv + 1, argv + argc});
    } catch (const std::exception& failure) {
        fmt::print(stderr, "view_rate: {}\n", failure.what());
        return 1;
    }
}
