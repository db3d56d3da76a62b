// How fast ranks gather their shares of one batch, each in its own process and on its own GPU, and
// how fast the host's memory is read: JSON lines.
//
//   share_rate [GPUS]

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device.hpp"
#include "gather_load.hpp"
#include "rollring/batch.hpp"
#include "rollring/gather.hpp"
#include "rollring/time.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t ranks_most = 8;
constexpr std::int64_t run_ns = 2'000'000'000;

// A rank's report at its end.
struct Told {
    std::uint64_t bytes;
    std::int64_t ns;
    std::uint64_t share_bytes;
    std::uint64_t staged_bytes;
};

// To all ranks of a run: closed, it lets them begin. From them: a byte of each that is ready.
struct Pipe {
    Pipe() {
        if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    }
    Pipe(const Pipe&) = delete;
    ~Pipe() {
        close_end(0);
        close_end(1);
    }
    void close_end(int end) {
        if (ends[end] >= 0) close(std::exchange(ends[end], -1));
    }
    int ends[2];
};

template <class T>
T good(Result<T> result) {
    if (!result) throw std::runtime_error(result.error().to_string());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// In its own process: CUDA sees one GPU.
Told read_share(const std::string& ticket, const std::function<void()>& meet) {
    auto reader = good(Reader::attach("gather-rate"));
    const auto share = good(reader.open(ticket));
    const auto tokens = static_cast<std::uint64_t>(share.cu_seqlens().back());
    const cuda::Context::Scope scope(gpu()->context());
    const DeviceBytes target(8 * tokens);
    const std::vector<GatherColumn> columns = {
        {.column = static_cast<std::uint16_t>(Std::token_ids), .to = {target.data(), 4 * tokens}},
        {.column = static_cast<std::uint16_t>(Std::logprobs),
         .to = {target.data() + 4 * tokens, 4 * tokens}}};
    auto gatherer = good(Gatherer::open(Device::cuda(0)));
    good(gatherer.prepare(share));
    const auto gather = [&] {
        for (int i = 0; i < 4; i++) {
            good(gatherer.gather(share, reader.schema(), columns, {.form = Form::packed}));
        }
        good(gatherer.wait(good(gatherer.mark()), Deadline::after_ms(60'000)));
        return 4 * 8 * tokens;
    };
    gather();
    meet();
    const std::int64_t begin_ns = monotonic_ns();
    std::uint64_t bytes = 0;
    while (monotonic_ns() < begin_ns + run_ns) bytes += gather();
    const std::int64_t ns = monotonic_ns() - begin_ns;
    good(share.check());
    return {bytes, ns, 8 * tokens, gatherer.stat().staged_bytes};
}

// Of GPUs first to first + world - 1. GB/s of all of them.
double rate_of(Batch& batch, std::uint32_t first, std::uint32_t world) {
    Pipe begin;
    Pipe said;
    std::vector<pid_t> ranks;
    for (std::uint32_t rank = 0; rank < world; rank++) {
        const std::string ticket = good(batch.ticket({.rank = rank, .world = world}));
        static_cast<void>(std::fflush(stdout));
        const pid_t pid = fork();
        if (pid == 0) {
            // NOLINTNEXTLINE(concurrency-mt-unsafe): a child of fork() has one thread
            setenv("CUDA_VISIBLE_DEVICES", std::to_string(first + rank).c_str(), 1);
            begin.close_end(1);
            try {
                char byte = 0;
                const Told told = read_share(ticket, [&] {
                    if (write(said.ends[1], "r", 1) != 1) _exit(1);
                    static_cast<void>(read(begin.ends[0], &byte, 1));  // its end
                });
                _exit(write(said.ends[1], &told, sizeof told) == sizeof told ? 0 : 1);
            } catch (const std::exception& failure) {
                fmt::print(stderr, "rank {}: {}\n", rank, failure.what());
                _exit(1);
            }
        }
        ranks.push_back(pid);
    }
    said.close_end(1);
    const auto take = [&](void* to, std::size_t bytes) {
        if (read(said.ends[0], to, bytes) != static_cast<ssize_t>(bytes)) {
            throw std::runtime_error("a rank has failed");
        }
    };
    for (std::uint32_t rank = 0; rank < world; rank++) {
        char byte;
        take(&byte, 1);
    }
    begin.close_end(1);
    double rate = 0;
    std::string shares;
    std::uint64_t batch_bytes = 0;
    std::uint64_t staged = 0;
    for (std::uint32_t rank = 0; rank < world; rank++) {
        Told told;
        take(&told, sizeof told);
        rate += static_cast<double>(told.bytes) / static_cast<double>(told.ns);
        shares += (rank == 0 ? "" : ", ") + std::to_string(told.share_bytes);
        batch_bytes += told.share_bytes;
        staged += told.staged_bytes;
    }
    for (const pid_t pid : ranks) waitpid(pid, nullptr, 0);
    fmt::print(
        "{{\"first_gpu\": {}, \"ranks\": {}, \"gb_per_s\": {:.2f}, \"share_bytes\": [{}], "
        "\"batch_bytes\": {}, \"staged\": {}}}\n",
        first, world, rate, shares, batch_bytes, staged);
    return rate;
}

// Sums, by as many threads as there are CPUs.
double memory_rate() {
    constexpr std::uint64_t words = std::uint64_t{256} << 20;
    std::vector<std::uint64_t> memory(words, 1);
    const std::uint32_t threads = std::max(1U, std::thread::hardware_concurrency());
    double best = 0;
    for (int turn = 0; turn < 3; turn++) {
        std::vector<std::thread> all;
        std::atomic<std::uint64_t> sum = 0;
        const std::int64_t begin = monotonic_ns();
        all.reserve(threads);
        for (std::uint32_t t = 0; t < threads; t++) {
            all.emplace_back([&, t] {
                const auto at = memory.begin() + static_cast<std::ptrdiff_t>(words / threads * t);
                sum += std::accumulate(at, at + static_cast<std::ptrdiff_t>(words / threads),
                                       std::uint64_t{0});
            });
        }
        for (std::thread& each : all) each.join();
        const auto ns = static_cast<double>(monotonic_ns() - begin);
        if (sum != 0) best = std::max(best, static_cast<double>(words * 8) / ns);
    }
    return best;
}

int run(const std::vector<std::string>& arguments) {
    const std::uint32_t gpus =
        arguments.empty() ? 2 : static_cast<std::uint32_t>(std::stoul(arguments[0]));
    if (gpus < 1 || gpus > ranks_most) {
        fmt::print(stderr, "usage: share_rate [GPUS], 1 to {}\n", ranks_most);
        return 2;
    }
    for (const std::uint32_t tokens : {2048U, 16'384U}) {
        Load load(tokens, std::uint64_t{512} << 20);
        fmt::print("{{\"tokens\": {}}}\n", tokens);
        double one = 0;
        for (std::uint32_t gpu = 0; gpu < gpus; gpu++) {
            one = std::max(one, rate_of(load.batches[0], gpu, 1));
        }
        const double all = rate_of(load.batches[0], 0, gpus);
        fmt::print("{{\"tokens\": {}, \"gpus\": {}, \"times_one\": {:.2f}}}\n", tokens, gpus,
                   all / one);
    }
    fmt::print("{{\"memory_read_gb_per_s\": {:.1f}, \"cpus\": {}}}\n", memory_rate(),
               std::thread::hardware_concurrency());
    return 0;
}

}  // namespace
}  // namespace rollring::test

int main(int argc, char** argv) {
    try {
        return rollring::test::run({argv + 1, argv + argc});
    } catch (const std::exception& failure) {
        fmt::print(stderr, "share_rate: {}\n", failure.what());
        return 1;
    }
}
