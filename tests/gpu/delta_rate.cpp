// delta_rate: how fast a GPU compares a version with its tensors, and exchanges the differences,
// against cuMemcpyDtoDAsync of as many bytes in the same run. A line of JSON for each share of
// elements that changed; medians of seven, in ms. Wall times, as an engine would have them.
//
//   delta_rate                    16.06 GB in 291 tensors, by parts of 512 MiB
//   delta_rate GB TENSORS [MIB]   GB in that many tensors, by parts of MIB
//   delta_rate --sweep            numbers of waves, too

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "device.hpp"
#include "gpu_clock.hpp"
#include "gpu_difference.hpp"

namespace rollring::test {
namespace {

using device::CopyJob;

constexpr std::uint64_t window_bytes = 64 * mib;  // contents repeat after it
constexpr std::uint64_t boundless = ~std::uint64_t{0};

double wall_ms(const std::function<void()>& work) {
    const std::int64_t began_ns = monotonic_ns();
    work();
    return static_cast<double>(monotonic_ns() - began_ns) / 1e6;
}

double median(std::array<double, 7> times) {
    std::ranges::sort(times);
    return times[times.size() / 2];
}

struct Size {
    std::uint64_t bytes = 16'060'522'496;
    std::uint64_t tensors = 291;
    std::uint64_t part_bytes = 512 * mib;
};

class Bench {
  public:
    explicit Bench(const Size& size)
        : size_(size),
          tensor_bytes_(size.bytes / size.tensors / 512 * 512),
          live_(tensor_bytes_ * size.tensors),
          next_(tensor_bytes_ * size.tensors),
          contents_(window_bytes / 2) {
        std::mt19937_64 random(1);
        for (std::uint16_t& value : contents_) value = static_cast<std::uint16_t>(random());
        fill(live_, contents_);
        copy_ms_ = clock_.median([&](CUstream stream) {
            need(api().cuMemcpyDtoDAsync(next_.address(), live_.address(), live_.size(), stream),
                 "copy");
        });
    }

    void measure(double changed, const cuda::DeltaTuning& tuning) {
        change(changed);
        const auto parts = jobs();
        const auto difference = need(cuda::make_difference(gpu(), parts, tuning));
        std::array<double, 7> compares{};
        std::array<double, 7> swaps{};
        std::array<double, 7> backs{};
        for (int i = -2; i < 7; i++) {
            const auto index = static_cast<std::size_t>(std::max(i, 0));
            difference->clear(boundless, difference->size().bytes / 4 * 5);
            compares.at(index) = wall_ms([&] {
                for (std::size_t part = 0; part < parts.size(); part++) {
                    const auto fit = need(compare_part(
                        *difference, part, next_.data() + starts_[part], {}, gpu_patience()));
                    if (fit != device::Fit::fits) throw Failure("the list does not fit");
                }
            });
            const auto swap = [&] { need(difference->swap(parts.size(), {})); };
            swaps.at(index) = wall_ms(swap);
            backs.at(index) = wall_ms(swap);
        }
        print(changed, difference->size(), tuning,
              {median(compares), median(swaps), median(backs)});
    }

  private:
    static void fill(const DeviceBytes& memory, const std::vector<std::uint16_t>& window) {
        const auto bytes = std::as_bytes(std::span(window));
        to_device(memory.data(), bytes.first(std::min(window_bytes, memory.size())));
        CUstream stream = gpu()->stream({});
        for (std::uint64_t at = window_bytes; at < memory.size(); at += window_bytes) {
            need(api().cuMemcpyDtoDAsync(memory.address() + at, memory.address(),
                                         std::min(window_bytes, memory.size() - at), stream),
                 "copy");
        }
        need(api().cuStreamSynchronize(stream), "wait for copies");
    }
    void change(double share) const {
        std::vector<std::uint16_t> window = contents_;
        std::mt19937_64 random(2);
        std::bernoulli_distribution changes(share);
        for (std::uint16_t& value : window) {
            if (changes(random)) value ^= 1;
        }
        fill(next_, window);
    }
    std::vector<std::vector<CopyJob>> jobs() {
        std::vector<std::vector<CopyJob>> parts;
        starts_.clear();
        for (std::uint64_t tensor = 0; tensor < size_.tensors; tensor++) {
            const std::uint64_t at = tensor * tensor_bytes_;
            if (parts.empty() || at + tensor_bytes_ - starts_.back() > size_.part_bytes) {
                parts.emplace_back();
                starts_.push_back(at);
            }
            parts.back().push_back({.tensor = live_.data() + at,
                                    .elements = tensor_bytes_ / 2,
                                    .slot_offset = at - starts_.back(),
                                    .element_bytes = 2,
                                    .view = true});
        }
        return parts;
    }
    struct Times {
        double compare;
        double swap;
        double back;
    };
    void print(double changed, const device::Difference::Size& found,
               const cuda::DeltaTuning& tuning, const Times& ms) const {
        fmt::print(
            "{{\"what\": \"delta\", \"changed\": {}, \"bytes\": {}, \"tensors\": {}, \"parts\": "
            "{}, \"waves\": {}, \"copy_ms\": {:.3f}, \"compare_ms\": {:.3f}, \"swap_ms\": {:.3f}, "
            "\"back_ms\": {:.3f}, \"list_bytes\": {}, \"found\": {}, \"compare_of_copy\": {:.3f}, "
            "\"list_of_weights\": {:.4f}}}\n",
            changed, live_.size(), size_.tensors, starts_.size(), tuning.waves, copy_ms_,
            ms.compare, ms.swap, ms.back, found.bytes, found.changed, ms.compare / copy_ms_,
            static_cast<double>(found.bytes) / static_cast<double>(live_.size()));
        static_cast<void>(std::fflush(stdout));
    }

    Size size_;
    std::uint64_t tensor_bytes_;
    DeviceBytes live_;
    DeviceBytes next_;
    std::vector<std::uint16_t> contents_;
    std::vector<std::uint64_t> starts_;  // of each part
    Clock clock_;
    double copy_ms_ = 0;
};

int run(const std::vector<std::string>& arguments) {
    Size size;
    const bool sweep = arguments.size() == 1 && arguments[0] == "--sweep";
    if (arguments.size() >= 2) {
        size.bytes = static_cast<std::uint64_t>(std::stod(arguments[0]) * 1e9);
        size.tensors = std::stoull(arguments[1]);
        if (arguments.size() > 2) size.part_bytes = std::stoull(arguments[2]) * mib;
    } else if (!arguments.empty() && !sweep) {
        fmt::print(stderr, "usage: delta_rate [--sweep | GB TENSORS [MIB]]\n");
        return 2;
    }
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    const cuda::Context::Scope scope(gpu()->context());
    Bench bench(size);
    for (const double changed : {0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5}) {
        for (const unsigned waves : {1U, 2U, 4U, 16U}) {
            if (sweep || waves == cuda::DeltaTuning{}.waves) {
                bench.measure(changed, {.waves = waves});
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
        fmt::print(stderr, "delta_rate: {}\n", failure.what());
        return 1;
    }
}
