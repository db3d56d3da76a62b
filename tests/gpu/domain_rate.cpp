// Goal: the cost of release and resume of a region, against the bandwidth of the PCIe link in the
// same run. Method: wall time of each call; beside it plain copies of the same bytes between one
// pinned slab and one device allocation, and each step of the driver alone. Medians of --runs.
//
//   domain_rate --gib 16 > rate.json     exits 1 if contents did not come back

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "backends.hpp"
#include "raw_gpu.hpp"
#include "rollring/extras/memory_domain.hpp"
#include "rollring/time.hpp"

using namespace rollring;
using test::RawGpu;

namespace {

constexpr std::array<std::string_view, 1> tag = {"weights"};

double ms_of(const std::function<void()>& call) {
    const std::int64_t start_ns = monotonic_ns();
    call();
    return static_cast<double>(monotonic_ns() - start_ns) / 1e6;
}

double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
}

struct Rates {
    double pin_ms = 0;
    double out_ms = 0;
    double in_ms = 0;
};

Rates plain_copies(const RawGpu& gpu, std::uint64_t bytes, int runs) {
    Rates rates;
    void* slab = nullptr;
    rates.pin_ms = ms_of([&] { gpu.must(gpu.api().cuMemHostAlloc(&slab, bytes, 0), "pin"); });
    const CUdeviceptr device = gpu.allocate(bytes);
    CUstream stream = gpu.stream();
    const auto wait = [&] { gpu.must(gpu.api().cuStreamSynchronize(stream), "copy"); };
    std::vector<double> out;
    std::vector<double> in;
    for (int i = 0; i <= runs; i++) {
        const double out_ms = ms_of([&] {
            gpu.must(gpu.api().cuMemcpyDtoHAsync(slab, device, bytes, stream), "copy out");
            wait();
        });
        const double in_ms = ms_of([&] {
            gpu.must(gpu.api().cuMemcpyHtoDAsync(device, slab, bytes, stream), "copy in");
            wait();
        });
        if (i == 0) continue;  // warm-up
        out.push_back(out_ms);
        in.push_back(in_ms);
    }
    rates.out_ms = median(out);
    rates.in_ms = median(in);
    gpu.must(gpu.api().cuStreamDestroy(stream), "cuStreamDestroy");
    gpu.must(gpu.api().cuMemFree(device), "cuMemFree");
    gpu.must(gpu.api().cuMemFreeHost(slab), "cuMemFreeHost");
    return rates;
}

struct Steps {
    double create_ms = 0;
    double map_ms = 0;
    double unmap_ms = 0;
    double destroy_ms = 0;
};

// Each step over all chunks.
Steps steps_alone(std::uint64_t bytes, std::uint64_t chunk_bytes) {
    const auto memory = RawGpu::must(cuda::open_physical_memory(Device::cuda(0)));
    std::byte* const base = RawGpu::must(memory->reserve(bytes));
    std::vector<device::MemoryHandle> handles(bytes / chunk_bytes);
    const auto each = [&](auto step) {
        return ms_of([&] {
            for (std::size_t i = 0; i < handles.size(); i++)
                step(base + i * chunk_bytes, handles[i]);
        });
    };
    Steps steps;
    for (int i = 0; i < 2; i++) {  // the first time is warm-up
        steps.create_ms = each([&](std::byte*, device::MemoryHandle& handle) {
            handle = RawGpu::must(memory->create(chunk_bytes));
        });
        steps.map_ms = each([&](std::byte* address, device::MemoryHandle handle) {
            RawGpu::must(memory->map(address, chunk_bytes, handle));
        });
        steps.unmap_ms = each([&](std::byte* address, device::MemoryHandle) {
            RawGpu::must(memory->unmap(address, chunk_bytes));
        });
        steps.destroy_ms = each([&](std::byte*, device::MemoryHandle handle) {
            RawGpu::must(memory->destroy(handle));
        });
    }
    RawGpu::must(memory->unreserve(base, bytes));
    return steps;
}

constexpr std::uint64_t spot_bytes = 4096;

// A spot at every 64 MiB and the last one, each with its own bytes.
std::vector<std::uint64_t> spots(std::uint64_t bytes) {
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t at = 0; at < bytes; at += 64 << 20) offsets.push_back(at);
    offsets.push_back(bytes - spot_bytes);
    return offsets;
}

void mark(const RawGpu& gpu, std::byte* region, std::uint64_t bytes) {
    for (const std::uint64_t at : spots(bytes)) {
        const std::vector<std::uint64_t> words(spot_bytes / 8, at * 0x9e3779b97f4a7c15 + 1);
        gpu.to_device(region + at, words.data(), spot_bytes);
    }
}

bool is_marked(const RawGpu& gpu, const std::byte* region, std::uint64_t bytes) {
    for (const std::uint64_t at : spots(bytes)) {
        std::vector<std::uint64_t> words(spot_bytes / 8);
        gpu.to_host(words.data(), region + at, spot_bytes);
        for (const std::uint64_t word : words) {
            if (word != at * 0x9e3779b97f4a7c15 + 1) return false;
        }
    }
    return true;
}

struct Times {
    double first_release_ms = 0;
    double release_ms = 0;
    double resume_ms = 0;
    double drop_ms = 0;
    double resume_dropped_ms = 0;
    bool intact = true;
};

Times domain_times(const RawGpu& gpu, std::uint64_t bytes, std::uint64_t chunk_bytes, int runs) {
    auto domain = RawGpu::must(MemoryDomain::open(Device::cuda(0), {.chunk_bytes = chunk_bytes}));
    auto* const region = static_cast<std::byte*>(RawGpu::must(domain.allocate(tag[0], bytes)));
    const auto release = [&](Contents contents) {
        return ms_of([&] { RawGpu::must(domain.release(tag, contents)); });
    };
    const auto resume = [&] { return ms_of([&] { RawGpu::must(domain.resume(tag)); }); };
    Times times;
    mark(gpu, region, bytes);
    times.first_release_ms = release(Contents::keep);
    resume();
    std::array<std::vector<double>, 4> all;
    for (int i = 0; i < runs; i++) {
        all[0].push_back(release(Contents::keep));
        all[1].push_back(resume());
        times.intact = times.intact && is_marked(gpu, region, bytes);
        all[2].push_back(release(Contents::drop));
        all[3].push_back(resume());
        mark(gpu, region, bytes);
    }
    times.release_ms = median(all[0]);
    times.resume_ms = median(all[1]);
    times.drop_ms = median(all[2]);
    times.resume_dropped_ms = median(all[3]);
    return times;
}

double gb_per_s(std::uint64_t bytes, double ms) {
    return static_cast<double>(bytes) / ms / 1e6;
}

int run(int argc, char** argv) {
    std::uint64_t gib = 16;
    std::uint64_t chunk_mib = 512;
    int runs = 3;
    CLI::App app{"times release and resume of a memory domain"};
    app.add_option("--gib", gib, "bytes of the region")->check(CLI::Range(1, 64));
    app.add_option("--chunk-mib", chunk_mib, "DomainOptions::chunk_bytes")
        ->check(CLI::Range(2, 1024));
    app.add_option("--runs", runs, "of each")->check(CLI::Range(1, 100));
    CLI11_PARSE(app, argc, argv);
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    const RawGpu gpu;
    const std::uint64_t bytes = gib << 30;
    const Rates plain = plain_copies(gpu, bytes, runs);
    const Steps steps = steps_alone(bytes, chunk_mib << 20);
    const Times times = domain_times(gpu, bytes, chunk_mib << 20, runs);
    fmt::print(
        "{{\"gib\": {}, \"chunk_mib\": {}, \"runs\": {}, \"intact\": {},\n"
        " \"plain\": {{\"pin_ms\": {:.1f}, \"out_ms\": {:.2f}, \"in_ms\": {:.2f}, "
        "\"out_gb_s\": {:.2f}, \"in_gb_s\": {:.2f}}},\n",
        gib, chunk_mib, runs, times.intact, plain.pin_ms, plain.out_ms, plain.in_ms,
        gb_per_s(bytes, plain.out_ms), gb_per_s(bytes, plain.in_ms));
    fmt::print(
        " \"steps\": {{\"create_ms\": {:.3f}, \"map_ms\": {:.3f}, \"unmap_ms\": {:.3f}, "
        "\"destroy_ms\": {:.3f}}},\n",
        steps.create_ms, steps.map_ms, steps.unmap_ms, steps.destroy_ms);
    fmt::print(
        " \"keep\": {{\"first_release_ms\": {:.1f}, \"release_ms\": {:.2f}, \"resume_ms\": {:.2f}, "
        "\"release_gb_s\": {:.2f}, \"resume_gb_s\": {:.2f}, \"release_ratio\": {:.3f}, "
        "\"resume_ratio\": {:.3f}}},\n"
        " \"drop\": {{\"release_ms\": {:.3f}, \"resume_ms\": {:.3f}}}}}\n",
        times.first_release_ms, times.release_ms, times.resume_ms,
        gb_per_s(bytes, times.release_ms), gb_per_s(bytes, times.resume_ms),
        plain.out_ms / times.release_ms, plain.in_ms / times.resume_ms, times.drop_ms,
        times.resume_dropped_ms);
    return times.intact ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& failure) {
        RawGpu::die(failure.what());
    }
}
