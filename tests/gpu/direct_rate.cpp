// direct_rate: how fast a process copies and compares memory of another one where it lies, and its
// own memory, against cuMemcpyDtoDAsync of as many bytes in the same run; in launches of several
// lengths. One JSON line per measurement; times are medians of ten, taken by events.
//
//   direct_rate [GB [TENSORS]]    16.06 GB in 291 tensors

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends.hpp"
#include "device.hpp"
#include "gpu_clock.hpp"
#include "gpu_difference.hpp"
#include "peer.hpp"
#include "plan.hpp"

namespace rollring::test {
namespace {

using device::CopyJob;

constexpr std::uint64_t without_end = std::uint64_t{1} << 50;

void set(const DeviceBytes& memory, int value) {
    const cuda::Context::Scope scope(gpu()->context());
    CUstream stream = gpu()->stream({});
    need(api().cuMemsetD8Async(memory.address(), static_cast<unsigned char>(value), memory.size(),
                               stream),
         "set memory");
    need(api().cuStreamSynchronize(stream), "wait");
}

// The other end: it reads the block of the message, of as many tensors.
class Reader {
  public:
    Reader(std::uint64_t bytes, std::uint64_t tensors)
        : tensors_(tensors),
          each_(bytes / tensors / 512 * 512),
          to_(each_ * tensors),
          own_(each_ * tensors) {
        set(to_, 0);
        set(own_, 0);
    }
    void measure(const device::SharedBlock& block) {
        const cuda::Context::Scope scope(gpu()->context());
        struct From {
            const char* name;
            const std::byte* data;
        };
        for (const From from : {From{"own", own_.data()}, From{"other's", block.data()}}) {
            const double copy_ms = clock_.median([&](CUstream stream) {
                need(api().cuMemcpyDtoDAsync(to_.address(), std::bit_cast<CUdeviceptr>(from.data),
                                             to_.size(), stream),
                     "copy");
            });
            for (const std::uint64_t launch : {512 * mib, 2048 * mib, without_end}) {
                for (const unsigned waves : {4U, 1'000'000U}) {
                    const auto plan = need(
                        cuda::make_plan(gpu(), jobs(), {.waves = waves, .launch_bytes = launch}));
                    const double ms = clock_.median(
                        [&](CUstream stream) { need(plan->unpack(from.data, {stream})); });
                    const Case one{.from = from.name, .launch = launch, .waves = waves};
                    print(one, "unpack", ms, copy_ms);
                    print(one, "compare", compare_ms(from.data, launch, waves), copy_ms);
                }
            }
        }
    }

  private:
    [[nodiscard]] std::vector<CopyJob> jobs() const {
        std::vector<CopyJob> made;
        made.reserve(tensors_);
        for (std::uint64_t i = 0; i < tensors_; i++) {
            made.push_back({.tensor = to_.data() + i * each_,
                            .elements = each_ / 2,
                            .slot_offset = i * each_,
                            .element_bytes = 2,
                            .view = true});
        }
        return made;
    }
    // By the clock on the wall: the call waits. Nothing differs.
    double compare_ms(const std::byte* from, std::uint64_t launch, unsigned waves) const {
        const auto difference =
            need(cuda::make_difference(gpu(), {jobs()}, {.waves = waves, .launch_bytes = launch}));
        std::array<double, 7> times{};
        for (int i = -2; i < 7; i++) {
            difference->clear(std::uint64_t{1} << 40, 0);
            const auto began = std::chrono::steady_clock::now();
            const auto fit = need(compare_part(*difference, 0, from, {}, gpu_patience()));
            const std::chrono::duration<double, std::milli> took =
                std::chrono::steady_clock::now() - began;
            if (fit != device::Fit::fits) throw Failure("the list does not fit");
            times.at(static_cast<std::size_t>(std::max(i, 0))) = took.count();
        }
        std::ranges::sort(times);
        return times.at(times.size() / 2);
    }
    struct Case {
        const char* from;
        std::uint64_t launch;
        unsigned waves;
    };
    static void print(const Case& one, const char* what, double ms, double copy_ms) {
        fmt::print(
            "{{\"memory\": \"{}\", \"what\": \"{}\", \"launch_mib\": {}, \"waves\": {}, \"ms\": "
            "{:.3f}, \"of_copy\": {:.3f}}}\n",
            one.from, what, one.launch == without_end ? 0 : one.launch / mib, one.waves, ms,
            ms / copy_ms);
        static_cast<void>(std::fflush(stdout));
    }

    std::uint64_t tensors_;
    std::uint64_t each_;
    DeviceBytes to_;
    DeviceBytes own_;
    Clock clock_;
};

}  // namespace

int run_role(const std::string& role) {
    if (role != "reader") return 2;
    const Wire wire{Fd(role_socket)};
    Received asked = wire.receive();
    Received given;
    try {
        const cuda::Context::Scope scope(gpu()->context());
        const auto memory = need(cuda::make_backend(Device::cuda(0), PayloadMemory::direct)).memory;
        const auto block = need(memory->import(asked.message.ticket, std::move(asked.fd)));
        Reader(block->ticket().bytes, asked.message.value).measure(*block);
    } catch (const std::exception& failure) {
        const std::string_view text = failure.what();
        std::ranges::copy(text.substr(0, given.message.text.size() - 1),
                          given.message.text.begin());
    }
    wire.send(given.message);
    return 0;
}

namespace {

int run(const std::vector<std::string>& arguments) {
    const double gb = arguments.empty() ? 16.060'522'496 : std::stod(arguments[0]);
    const std::uint64_t tensors = arguments.size() < 2 ? 291 : std::stoull(arguments[1]);
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    const DeviceBytes memory(static_cast<std::size_t>(gb * 1e9) / (2 * mib) * (2 * mib));
    set(memory, 0);
    const auto backend = need(cuda::make_backend(Device::cuda(0), PayloadMemory::direct));
    const std::vector<device::MemoryPlace> places{{memory.data(), memory.size(), 0}};
    const auto block = need(
        backend.memory->expose(places, [](std::uint32_t) -> std::string_view { return "all"; }));
    const Peer peer("reader");
    peer.ask({.what = 'm', .ticket = block->ticket(), .value = tensors}, block->fd());
    return 0;
}

}  // namespace
}  // namespace rollring::test

int main(int argc, char** argv) {
    try {
        if (argc == 3 && std::string_view(argv[1]) == "--role") {
            return rollring::test::run_role(argv[2]);
        }
        return rollring::test::run({argv + 1, argv + argc});
    } catch (const std::exception& failure) {
        fmt::print(stderr, "direct_rate: {}\n", failure.what());
        return 1;
    }
}
