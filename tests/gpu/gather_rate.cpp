// How fast a GPU gathers a batch out of a ring, against one pinned copy of as many bytes: JSON
// lines.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device_gather.hpp"
#include "gather_load.hpp"
#include "gpu_clock.hpp"
#include "gpu_gather.hpp"
#include "rollring/gather.hpp"

namespace rollring::test {
namespace {

constexpr auto token_ids = static_cast<std::uint16_t>(Std::token_ids);
constexpr auto logprobs = static_cast<std::uint16_t>(Std::logprobs);

class PinnedBytes {
  public:
    explicit PinnedBytes(std::uint64_t bytes) {
        need(api().cuMemHostAlloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE), "pinned memory");
        std::memset(data_, 0x5a, bytes);
    }
    PinnedBytes(const PinnedBytes&) = delete;
    ~PinnedBytes() { api().cuMemFreeHost(data_); }
    [[nodiscard]] const void* data() const { return data_; }

  private:
    void* data_ = nullptr;
};

class Bench {
  public:
    Bench(std::uint32_t tokens, std::uint64_t bytes)
        : load_(tokens, bytes),
          tokens_(tokens),
          read_bytes_(8 * load_.tokens()),
          host_(read_bytes_),
          target_(12 * load_.tokens()) {}

    void run(const cuda::GatherTuning& tuning, bool all_layouts) {
        gathering::DeviceGather gatherer(cuda::make_gather(gpu(), tuning));
        const std::int64_t begin = monotonic_ns();
        need(gatherer.prepare(load_.batch));
        const auto register_ms = static_cast<double>(monotonic_ns() - begin) / 1e6;
        const double copied = clock_.median([&](CUstream stream) {
            for (int i = 0; i < calls; i++) {
                need(api().cuMemcpyHtoDAsync(target_.address(), host_.data(), read_bytes_, stream),
                     "copy");
            }
        });
        for (const bool wide : {false, true}) {
            for (const Form form : {Form::packed, Form::padded}) {
                if (!all_layouts && (wide || form == Form::padded)) continue;
                one(gatherer, tuning, form, wide, copied / calls, register_ms);
            }
        }
    }

  private:
    static constexpr int calls = 8;

    void one(gathering::DeviceGather& gatherer, const cuda::GatherTuning& tuning, Form form,
             bool wide, double copied, double register_ms) {
        const std::uint64_t ids_bytes = load_.tokens() * (wide ? 8 : 4);
        std::vector<GatherColumn> columns = {
            {.column = token_ids, .to = {target_.data(), ids_bytes}},
            {.column = logprobs, .to = {target_.data() + ids_bytes, load_.tokens() * 4}}};
        if (wide) columns[0].dtype = dtype_i64;
        const Layout layout{.form = form};
        std::int64_t cpu_ns = 0;
        std::int64_t timed = 0;
        const auto gather = [&](CUstream stream) {
            for (int i = 0; i < calls; i++) {
                const std::int64_t begin = monotonic_ns();
                need(gatherer.gather(load_.batch, load_.schema(), columns, layout, {stream}));
                cpu_ns += monotonic_ns() - begin;
                timed++;
            }
        };
        gather(gpu()->stream({}));
        cpu_ns = timed = 0;
        const double ms = clock_.median(gather) / calls;
        const auto sequences = static_cast<double>(load_.batch.sequences().size());
        const double us = static_cast<double>(cpu_ns) / static_cast<double>(timed) / 1e3;
        fmt::print(
            "{{\"tokens\": {}, \"bytes\": {}, \"layout\": \"{}\", \"widened\": {}, "
            "\"tile_bytes\": {}, \"blocks\": {}, \"gb_per_s\": {:.2f}, \"copy_gb_per_s\": {:.2f}, "
            "\"of_copy\": {:.3f}, \"cpu_us\": {:.1f}, \"sequences\": {}, \"ns_a_sequence\": "
            "{:.1f}, "
            "\"staged\": {}, \"register_ms\": {:.1f}}}\n",
            tokens_, read_bytes_, form == Form::packed ? "packed" : "padded", wide,
            tuning.tile_bytes, tuning.blocks, static_cast<double>(read_bytes_) / ms / 1e6,
            static_cast<double>(read_bytes_) / copied / 1e6, copied / ms, us, sequences,
            us * 1e3 / sequences, gatherer.stat().staged_bytes, register_ms);
        static_cast<void>(std::fflush(stdout));
    }

    Load load_;
    std::uint32_t tokens_;
    std::uint64_t read_bytes_;
    PinnedBytes host_;
    DeviceBytes target_;
    Clock clock_;
};

struct Case {
    std::uint32_t tokens;
    std::uint64_t bytes;
};

int run(const std::vector<std::string_view>& arguments) {
    const bool sweep = arguments.size() == 1 && arguments[0] == "--sweep";
    if (!arguments.empty() && !sweep) {
        fmt::print(stderr, "usage: gather_rate [--sweep]\n");
        return 2;
    }
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    const cuda::Context::Scope scope(gpu()->context());
    if (sweep) {
        for (const Case& of : {Case{512, 64 * mib}, Case{2048, 512 * mib}}) {
            Bench bench(of.tokens, of.bytes);
            for (const std::uint64_t tile : {2048, 4096, 8192, 16384}) {
                for (const std::uint64_t blocks : {0, 33, 66, 132, 264, 396}) {
                    bench.run({tile, blocks}, false);
                }
            }
        }
        return 0;
    }
    const std::vector<Case> cases = {{64, 8 * mib},       {256, 8 * mib},      {256, 64 * mib},
                                     {512, 8 * mib},      {512, 128 * mib},    {2048, 8 * mib},
                                     {2048, 128 * mib},   {2048, 512 * mib},   {16384, 64 * mib},
                                     {16384, 1024 * mib}, {131072, 1024 * mib}};
    for (const Case& of : cases) Bench(of.tokens, of.bytes).run({}, true);
    return 0;
}

}  // namespace
}  // namespace rollring::test

int main(int argc, char** argv) {
    try {
        return rollring::test::run({argv + 1, argv + argc});
    } catch (const std::exception& failure) {
        fmt::print(stderr, "gather_rate: {}\n", failure.what());
        return 1;
    }
}
