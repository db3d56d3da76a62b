// How fast a GPU gathers a batch out of a ring, against one pinned copy of as many bytes, and one
// of the lanes themselves: JSON lines. They take turns, for a machine copies faster in one second
// than in the next. Ends with 3 where the CPU took longer for a call than 50 us and 50 ns a
// sequence.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device_gather.hpp"
#include "gather_load.hpp"
#include "gpu_clock.hpp"
#include "gpu_gather.hpp"
#include "rollring/consumer.hpp"
#include "rollring/gather.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"

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

// The ways that took turns, in ms, of one call.
struct Turn {
    double copy;
    double lanes;
    double gather;
    double alone;
};

double median_of(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
}

class Bench {
  public:
    Bench(std::uint32_t tokens, std::uint64_t bytes)
        : load_(tokens, bytes, batches_for(bytes)),
          tokens_(tokens),
          read_bytes_(8 * load_.tokens()),
          calls_(bytes > few ? 2 : 8),
          host_(read_bytes_),
          target_(14 * load_.tokens()) {}

    // False: the CPU took longer than it may.
    bool run(const cuda::GatherTuning& tuning, bool all_layouts) {
        gathering::DeviceGather gatherer(cuda::make_gather(gpu(), tuning));
        const std::int64_t begin = monotonic_ns();
        need(gatherer.prepare(load_.batches[0]));
        register_ms_ = static_cast<double>(monotonic_ns() - begin) / 1e6;
        bool good = true;
        for (const bool wide : {false, true}) {
            for (const Form form : {Form::packed, Form::padded}) {
                if (!all_layouts && (wide || form == Form::padded)) continue;
                good &= one(gatherer, tuning, form, wide);
            }
        }
        if (all_layouts) engine();
        return good;
    }
    // Gathers until it is told to end.
    void gather_until(const std::atomic<bool>& ended) {
        gathering::DeviceGather gatherer(cuda::make_gather(gpu(), {}));
        need(gatherer.prepare(load_.batches[0]));
        const std::vector<GatherColumn> columns = targets(false, load_.tokens());
        while (!ended) {
            static_cast<void>(time_of(
                [&](CUstream stream) {
                    need(gatherer.gather(next(), load_.schema(), columns, {}, {stream}));
                },
                calls_));
        }
    }

  private:
    static constexpr int turns = 11;
    static constexpr std::uint64_t few = 256 * mib;

    // A call begins to read while the one before it still does: the GPU would already have the
    // bytes that that one reads just then, so that no batch of a few MiB is gathered twice in a
    // row.
    static std::size_t batches_for(std::uint64_t bytes) { return bytes > few ? 1 : 2; }
    const Batch& next() { return load_.batches[next_++ % load_.batches.size()]; }

    // Of one call among so many.
    template <class Call>
    double time_of(const Call& call, int calls) {
        return clock_.once([&](CUstream stream) {
            for (int i = 0; i < calls; i++) call(stream);
        }) / calls;
    }
    void copy(CUstream stream) const {
        need(api().cuMemcpyHtoDAsync(target_.address(), host_.data(), read_bytes_, stream), "copy");
    }
    // As many bytes of the lanes in use, which the gatherer has registered, each in one piece.
    void copy_lanes(CUstream stream) const {
        const auto lanes = load_.batches[0].lease().lanes();
        const std::uint64_t part = read_bytes_ / Load::lanes;
        CUdeviceptr to = target_.address();
        for (std::size_t i = 0; i < lanes->count(); i++) {
            const MappedLane lane = lanes->lane(i);
            if (!lane.used) continue;
            need(api().cuMemcpyHtoDAsync(to, lane.data, part, stream), "copy of a lane");
            to += part;
        }
    }
    [[nodiscard]] std::vector<GatherColumn> targets(bool wide, std::uint64_t rows) const {
        const std::uint64_t ids_bytes = rows * (wide ? 8 : 4);
        std::vector<GatherColumn> columns = {
            {.column = token_ids, .to = {target_.data(), ids_bytes}},
            {.column = logprobs, .to = {target_.data() + ids_bytes, rows * 4}}};
        if (wide) columns[0].dtype = dtype_i64;
        return columns;
    }

    bool one(gathering::DeviceGather& gatherer, const cuda::GatherTuning& tuning, Form form,
             bool wide) {
        const std::uint64_t length = form == Form::packed ? tokens_ : tokens_ + tokens_ / 8;
        const auto columns = targets(wide, load_.tokens() / tokens_ * length);
        const Layout layout{.form = form, .padding = {.length = length}};
        std::vector<std::int64_t> cpu_ns;
        const auto gather = [&](CUstream stream) {
            const std::int64_t begin = monotonic_ns();
            need(gatherer.gather(next(), load_.schema(), columns, layout, {stream}));
            cpu_ns.push_back(monotonic_ns() - begin);
        };
        // Until there is memory for all that is queued.
        for (int i = 0; i < 2; i++) static_cast<void>(time_of(gather, calls_));
        cpu_ns.clear();
        std::vector<Turn> took;
        took.reserve(turns);
        for (int i = 0; i < turns; i++) {
            took.push_back({time_of([&](CUstream stream) { copy(stream); }, calls_),
                            time_of([&](CUstream stream) { copy_lanes(stream); }, calls_),
                            time_of(gather, calls_), time_of(gather, 1)});
        }
        const auto sequences = static_cast<double>(load_.batches[0].sequences().size());
        const double us = median_of({cpu_ns.begin(), cpu_ns.end()}) / 1e3;
        const bool good = us <= 50 + sequences * 0.05;
        const auto share = [&](double Turn::* of, double Turn::* call) {
            std::vector<double> shares;
            shares.reserve(took.size());
            for (const Turn& turn : took) shares.push_back(turn.*of / turn.*call);
            return median_of(std::move(shares));
        };
        const auto gb_per_s = [&](double Turn::* call) {
            std::vector<double> ms;
            ms.reserve(took.size());
            for (const Turn& turn : took) ms.push_back(turn.*call);
            return static_cast<double>(read_bytes_) / median_of(std::move(ms)) / 1e6;
        };
        fmt::print(
            "{{\"tokens\": {}, \"bytes\": {}, \"layout\": \"{}\", \"widened\": {}, "
            "\"part_bytes\": {}, \"blocks\": {}, \"gb_per_s\": {:.2f}, \"copy_gb_per_s\": {:.2f}, "
            "\"lanes_gb_per_s\": {:.2f}, \"of_copy\": {:.3f}, \"of_lanes\": {:.3f}, "
            "\"of_copy_alone\": {:.3f}, \"cpu_us\": {:.1f}, \"sequences\": {}, "
            "\"ns_a_sequence\": {:.1f}, \"cpu_within\": {}, \"staged\": {}, "
            "\"register_ms\": {:.1f}}}\n",
            tokens_, read_bytes_, form == Form::packed ? "packed" : "padded", wide,
            tuning.part_bytes, tuning.blocks, gb_per_s(&Turn::gather), gb_per_s(&Turn::copy),
            gb_per_s(&Turn::lanes), share(&Turn::copy, &Turn::gather),
            share(&Turn::lanes, &Turn::gather), share(&Turn::copy, &Turn::alone), us, sequences,
            us * 1e3 / sequences, good, gatherer.stat().staged_bytes, register_ms_);
        static_cast<void>(std::fflush(stdout));
        return good;
    }

    // The same bytes by a copy of the copy engine for each column of each record.
    void engine() {
        if (tokens_ < 16'384) return;  // far behind
        const auto copies = [&](CUstream stream) {
            std::uint64_t to = target_.address();
            for (const Sequence& sequence : load_.batches[0].sequences()) {
                for (const std::uint16_t column : {token_ids, logprobs}) {
                    const auto data = sequence.view.find(column)->data;
                    need(api().cuMemcpyHtoDAsync(to, data.data(), data.size(), stream), "copy");
                    to += data.size();
                }
            }
        };
        std::vector<double> shares;
        for (int i = 0; i < turns; i++) {
            const double whole_ms = time_of([&](CUstream stream) { copy(stream); }, 1);
            shares.push_back(whole_ms / time_of(copies, 1));
        }
        fmt::print(
            "{{\"tokens\": {}, \"bytes\": {}, \"layout\": \"copy engine\", \"of_copy\": {:.3f}}}\n",
            tokens_, read_bytes_, median_of(std::move(shares)));
        static_cast<void>(std::fflush(stdout));
    }

    Load load_;
    std::uint32_t tokens_;
    std::uint64_t read_bytes_;
    int calls_;
    PinnedBytes host_;
    DeviceBytes target_;
    Clock clock_;
    double register_ms_ = 0;
    std::size_t next_ = 0;
};

// Producers at full rate, each with a ring of its own from which it reads at once, for two seconds:
// records.
std::uint64_t produced(std::uint32_t producers) {
    std::atomic<std::uint64_t> records = 0;
    const Deadline end = Deadline::after_ms(2000);
    std::vector<std::jthread> threads;
    threads.reserve(producers);
    for (std::uint32_t i = 0; i < producers; i++) {
        threads.emplace_back([&, i] {
            const std::string name = fmt::format("gather-beside-{}", i);
            static_cast<void>(remove_ring(name, true));
            need(create_ring(name, {.lanes = 1, .lane_bytes = 16 * mib}));
            auto producer = need(Producer::open(name));
            auto consumer = need(Consumer::open(name));
            const std::vector<std::int32_t> ids(2048, 7);
            Draft draft("p");
            draft.set(Std::token_ids, ids);
            Record record;
            std::uint64_t sent = 0;
            for (; !end.passed(); sent++) {
                if (producer.push(draft, Deadline::after_ms(1000)) != Push::ok) break;
                while (consumer.poll(record) == Poll::record) {
                    static_cast<void>(consumer.release(record.ref));
                }
            }
            records += sent;
            static_cast<void>(remove_ring(name, true));
        });
    }
    threads.clear();
    return records;
}

struct Case {
    std::uint32_t tokens;
    std::uint64_t bytes;
};

int sweep() {
    for (const Case& of : {Case{256, 8 * mib}, Case{256, 64 * mib}, Case{512, 64 * mib},
                           Case{2048, 8 * mib}, Case{2048, 256 * mib}}) {
        Bench bench(of.tokens, of.bytes);
        for (const std::uint64_t tile : {1024, 2048, 4096, 8192, 16384}) {
            for (const std::uint64_t blocks : {0, 33, 66, 132, 264, 528}) {
                static_cast<void>(bench.run({tile, blocks}, false));
            }
        }
    }
    return 0;
}

std::vector<Case> all_cases() {
    return {{256, 8 * mib},     {256, 64 * mib},      {512, 8 * mib},     {512, 128 * mib},
            {2048, 8 * mib},    {2048, 128 * mib},    {16384, 8 * mib},   {16384, 1024 * mib},
            {131072, 64 * mib}, {131072, 1024 * mib}, {2048, 1024 * mib}, {256, 512 * mib},
            {512, 1024 * mib},  {131072, 4096 * mib}, {2048, 4096 * mib}};
}

int rates(const std::vector<Case>& cases) {
    bool good = true;
    for (const Case& of : cases) good &= Bench(of.tokens, of.bytes).run({}, true);
    return good ? 0 : 3;
}

int beside() {
    constexpr std::uint32_t producers = 4;
    Bench bench(2048, 512 * mib);
    std::atomic<bool> ended = false;
    const std::uint64_t alone = produced(producers);
    std::uint64_t together = 0;
    {
        std::jthread helper([&] {
            const cuda::Context::Scope scope(gpu()->context());
            bench.gather_until(ended);
        });
        together = produced(producers);
        ended = true;
    }
    const std::uint64_t again = produced(producers);
    fmt::print(
        "{{\"beside\": \"producers\", \"producers\": {}, \"alone\": {}, \"beside_gather\": {}, "
        "\"alone_again\": {}, \"kept\": {:.3f}}}\n",
        producers, alone, together, again,
        2 * static_cast<double>(together) / static_cast<double>(alone + again));
    return 0;
}

// TOKENS:MIB; 0 tokens: the text has another form.
Case case_of(std::string_view text) {
    Case of{0, 0};
    const char* end = text.data() + text.size();
    const auto tokens = std::from_chars(text.data(), end, of.tokens);
    if (tokens.ptr == end || *tokens.ptr != ':') return {0, 0};
    if (std::from_chars(tokens.ptr + 1, end, of.bytes).ptr != end) return {0, 0};
    of.bytes *= mib;
    return of;
}

int run(const std::vector<std::string_view>& arguments) {
    const std::string_view what = arguments.empty() ? "" : arguments[0];
    const bool other = what == "--sweep" || what == "--beside";
    std::vector<Case> cases;
    cases.reserve(arguments.size());
    for (const std::string_view one : arguments) cases.push_back(case_of(one));
    if (other ? arguments.size() > 1 : std::ranges::count(cases, 0U, &Case::tokens) != 0) {
        fmt::print(stderr, "usage: gather_rate [--sweep | --beside | TOKENS:MIB ...]\n");
        return 2;
    }
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    const cuda::Context::Scope scope(gpu()->context());
    if (what == "--sweep") return sweep();
    if (what == "--beside") return beside();
    return rates(cases.empty() ? all_cases() : cases);
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
