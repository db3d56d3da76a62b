// Question: how long does a weight sync take, against two plain copies of the same bytes, and
// against the ways in which it is done with torch?

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "questions.hpp"
#include "rounding.hpp"
#include "script.hpp"
#include "weights/weights_memory.hpp"
#include "weights/weights_report.hpp"

namespace bench {
namespace {

constexpr std::uint64_t small_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t host_bytes = std::uint64_t{1} << 30;
// Contexts of two processes, the copies' scratch, and the memory that torch's allocator keeps.
constexpr std::uint64_t spare_device_bytes = std::uint64_t{6} << 30;
constexpr std::uint64_t slot_bytes_usual = std::uint64_t{512} << 20;

struct Probe {
    std::uint32_t gpus;
    DeviceFacts facts;
    std::array<char, 200> why_none;
};

// Runs in a process of its own: a process that has used CUDA cannot fork any more.
Probe probe([[maybe_unused]] int gpu) {
    constexpr std::size_t probe_at = round_up(sizeof(Board), 64);
    const SharedBytes memory(probe_at + sizeof(Probe));
    Probe& found = *memory.at<Probe>(probe_at);
    const auto look = [&](Board&) {
        found.gpus = static_cast<std::uint32_t>(rollring::visible_gpus().size());
        const std::string why = rollring::why_no_gpu();
        std::strncpy(found.why_none.data(), why.c_str(), found.why_none.size() - 1);
#ifdef ROLLRING_BENCH_CUDA
        if (found.gpus > static_cast<std::uint32_t>(gpu)) {
            found.facts = gpu_facts(rollring::Device::cuda(gpu));
        }
#endif
    };
    const std::string problem = run_all({{any_cpu, look}}, false, *memory.at<Board>());
    if (!problem.empty()) fail("the GPU cannot be queried: " + problem);
    return found;
}

// The device, and how much of it may be used; 0: the host.
struct Place {
    rollring::Device device;
    std::string text;
    std::uint64_t free_bytes = 0;
};

Place choose_place(const std::string& wanted) {
    if (wanted == "host") return {rollring::Device::host(), "host memory"};
    int gpu = 0;
    if (wanted.starts_with("cuda:")) {
        const auto number = parse_number<int>(std::string_view(wanted).substr(5));
        if (!number) fail(fmt::format("--device {}: cuda:0, cuda:1, ...", wanted));
        gpu = *number;
    } else if (wanted != "auto" && wanted != "cuda") {
        fail(fmt::format("--device {}: auto, host, cuda or cuda:N", wanted));
    }
    const Probe found = probe(gpu);
    if (found.gpus > static_cast<std::uint32_t>(gpu)) {
        return {rollring::Device::cuda(gpu),
                fmt::format("GPU {} ({}), {:.1f} of {:.1f} GB free", gpu, found.facts.name,
                            static_cast<double>(found.facts.free_bytes) / 1e9,
                            static_cast<double>(found.facts.total_bytes) / 1e9),
                found.facts.free_bytes};
    }
    if (wanted != "auto") {
        fail(fmt::format("--device {}: this process sees {} GPUs {}", wanted, found.gpus,
                         found.why_none.data()));
    }
    return {rollring::Device::host(), "host memory, for there is no GPU"};
}

double choose_share(const WeightsQuestion& options, const Place& place, std::uint64_t slot_bytes) {
    if (options.scale == "small") return share_for(options.list, small_bytes);
    if (options.scale != "auto") {
        const auto share = parse_number<double>(options.scale);
        if (share && *share > 0 && *share <= 1) return *share;
        fail(
            fmt::format("--scale {}: auto, small, or a number above 0 and up to 1", options.scale));
    }
    if (!place.device.is_gpu()) return share_for(options.list, host_bytes);
    const std::uint64_t taken =
        spare_device_bytes +
        std::max(4U, options.slots) * (slot_bytes == 0 ? slot_bytes_usual : slot_bytes);
    if (place.free_bytes <= taken) {
        fail(fmt::format("{}: less than {:.1f} GB: choose --scale and --slot-bytes yourself",
                         place.text, static_cast<double>(taken) / 1e9));
    }
    // The trainer's tensors, twice as large if they are f32, and the engine's. By difference, both
    // states of the trainer's and the engine's, with a list as large as these.
    const std::uint64_t copies = !options.changed.empty() ? 4 : options.cast ? 3 : 2;
    std::uint64_t each = (place.free_bytes - taken) / copies;
    // torch cuts them from blocks of 20 MiB, and the rest of a block is lost.
    if (options.torch_rounds != 0) each = each / 100 * 85;
    return share_for(options.list, each);
}

SessionPlan plan_of(const WeightsQuestion& options, const Place& place) {
    const bool empty = options.list == "empty";
    SessionPlan plan;
    plan.list_name = options.list;
    plan.device = place.device;
    for (const auto memory : {rollring::PayloadMemory::vmm, rollring::PayloadMemory::legacy_ipc,
                              rollring::PayloadMemory::host, rollring::PayloadMemory::direct}) {
        if (rollring::name(memory) == options.memory) plan.memory = memory;
    }
    plan.slots = options.slots;
    plan.slot_bytes = parse_bytes(options.slot_bytes);
    plan.share = choose_share(options, place, plan.slot_bytes);
    plan.list = make_list(options.list, plan.share);
    const std::int64_t spin_us = options.spin_us >= 0 ? options.spin_us : empty ? 200 : 20;
    plan.spin = std::chrono::microseconds(spin_us);
    plan.checksums = options.checksums;
    plan.cast = options.cast;
    plan.pause = options.pause;
    for (const double percent : options.changed) plan.changed.push_back(percent / 100);
    if (!plan.changed.empty()) plan.way = SyncWay::difference;
    plan.limit_s = options.limit_s;
    plan.versions = options.repeat != 0 ? options.repeat : empty ? 20'000 : 7;
    plan.warmup = empty ? 100 : 2;
    plan.copies = !empty && options.soak == 0;
    if (options.soak != 0) {
        plan.soak = true;
        plan.versions = options.soak;
        plan.warmup = 0;
    }
    return plan;
}

std::vector<TorchRow> run_torch(const WeightsQuestion& options, const WeightsRun& run,
                                const std::string& list_file) {
    const std::string command =
        fmt::format("python3 '{}' --list '{}' --repeat {} --gpu {}", options.torch_script,
                    list_file, run.plan.versions, run.plan.device.gpu);
    const ScriptOutput output = run_script(command);
    if (output.status != 0 || output.objects.empty()) {
        unlink(list_file.c_str());  // fail() ends the program here
        fail(fmt::format("{} ended with {} (77: torch or a GPU is missing) and {}", command,
                         output.status, output.last().dump()));
    }
    std::vector<TorchRow> rows;
    rows.reserve(output.objects.size());
    for (const Json& row : output.objects) {
        rows.push_back({row["method"].get<std::string>(), row["ms"].get<double>()});
    }
    return rows;
}

// A file of this run alone, gone afterwards.
class ListFile {
  public:
    explicit ListFile(const TensorList& list)
        : path_(fmt::format("/tmp/rollring-bench-list-{}.jsonl", getpid())) {
        write_list(list, path_);
    }
    ListFile(const ListFile&) = delete;
    ListFile& operator=(const ListFile&) = delete;
    ~ListFile() { unlink(path_.c_str()); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

void measure(const WeightsQuestion& options, WeightsRun& run) {
    if (options.torch_rounds == 0) {
        run.rounds.push_back({run_session(run.plan), {}});
        if (run.plan.way != SyncWay::difference) return;
        for (const SyncWay way : {SyncWay::in_place, SyncWay::beside}) {
            SessionPlan plan = run.plan;
            plan.way = way;
            plan.changed.clear();
            plan.pause = false;
            run.other_ways.push_back(run_session(plan));
        }
        return;
    }
    if (!run.plan.device.is_gpu()) fail("--torch compares on a GPU: there is none");
    if (run.plan.way == SyncWay::difference) fail("--torch copies versions: leave --changed out");
    if (run.plan.cast) fail("--torch publishes the trainer's own dtypes: leave --cast out");
    const ListFile file(run.plan.list);
    Progress progress(static_cast<std::size_t>(options.torch_rounds) * 2);
    for (int round = 0; round < options.torch_rounds && !interrupted(); round++) {
        // torch first: it says soonest what is missing.
        progress.step("torch");
        auto torch = run_torch(options, run, file.path());
        progress.step("rollring");
        run.rounds.push_back({run_session(run.plan), std::move(torch)});
    }
}

}  // namespace

void run(const WeightsQuestion& options) {
    if (!options.print_list.empty() && options.scale != "auto") {
        // Needs no device.
        const Place host{rollring::Device::host(), "host memory"};
        write_list(make_list(options.list, choose_share(options, host, 0)), options.print_list);
        return;
    }
    const Place place = choose_place(options.device);
    WeightsRun made{.plan = plan_of(options, place), .device = place.text};
    if (!options.print_list.empty()) {
        write_list(made.plan.list, options.print_list);
        return;
    }
    measure(options, made);
    if (made.rounds.empty()) fail("interrupted");
    print_report(report_json(made), options.json);
    static_cast<void>(std::fflush(stdout));
    if (const std::string problem = problem_of(made); !problem.empty()) fail(problem);
}

}  // namespace bench
