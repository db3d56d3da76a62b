// Question: how long does a weight sync take, against two plain copies of the same bytes, and
// against the ways in which it is done with torch?

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "bench.hpp"
#include "weights_memory.hpp"
#include "weights_report.hpp"

namespace bench {
namespace {

constexpr std::uint64_t small_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t host_bytes = std::uint64_t{1} << 30;
// Contexts of two processes, the copies' scratch, and what torch's allocator keeps.
constexpr std::uint64_t spare_device_bytes = std::uint64_t{6} << 30;
constexpr std::uint64_t slot_bytes_usual = std::uint64_t{512} << 20;

struct Options {
    std::string list = "llama8b";
    std::string device = "auto";
    std::string memory = "automatic";
    std::string slot_bytes = "0";
    std::string scale = "auto";
    std::string print_list;
    std::string torch_script = ROLLRING_TORCH_SCRIPT;
    std::uint32_t slots = 0;
    std::int64_t spin_us = -1;  // 20, or 200 for the empty list
    std::uint64_t repeat = 0;   // 7, or 20,000 for the empty list
    std::uint64_t soak = 0;
    std::int64_t limit_s = 600;
    int torch_rounds = 0;
    bool checksums = false;
    bool cast = false;
    bool pause = false;
    bool json = false;
};

struct Probe {
    std::uint32_t gpus;
    DeviceFacts facts;
    std::array<char, 200> why_none;
};

// In a process of its own: what has used CUDA cannot fork any more.
Probe probe(int gpu) {
    const SharedBytes memory(sizeof(Probe));
    Probe& found = *memory.at<Probe>();
    static_cast<void>(std::fflush(nullptr));
    const pid_t pid = fork();
    if (pid < 0) fail("fork failed");
    if (pid == 0) {
        found.gpus = static_cast<std::uint32_t>(rollring::visible_gpus().size());
        const std::string why = rollring::why_no_gpu();
        std::strncpy(found.why_none.data(), why.c_str(), found.why_none.size() - 1);
#ifdef ROLLRING_BENCH_CUDA
        if (found.gpus > static_cast<std::uint32_t>(gpu)) {
            found.facts = gpu_facts(rollring::Device::cuda(gpu));
        }
#else
        static_cast<void>(gpu);
#endif
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) fail("the GPU cannot be looked at");
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

double choose_share(const Options& options, const Place& place, std::uint64_t slot_bytes) {
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
    // The trainer's tensors, twice as large if they are f32, and the engine's.
    std::uint64_t each = (place.free_bytes - taken) / (options.cast ? 3 : 2);
    // torch cuts them from blocks of 20 MiB, and what is left of a block is lost.
    if (options.torch_rounds != 0) each = each / 100 * 85;
    return share_for(options.list, each);
}

SessionPlan plan_of(const Options& options, const Place& place) {
    const bool empty = options.list == "empty";
    SessionPlan plan;
    plan.list_name = options.list;
    plan.device = place.device;
    for (const auto memory : {rollring::PayloadMemory::vmm, rollring::PayloadMemory::legacy_ipc,
                              rollring::PayloadMemory::host}) {
        if (rollring::name(memory) == options.memory) plan.memory = memory;
    }
    plan.slots = options.slots;
    plan.slot_bytes = parse_bytes(options.slot_bytes);
    plan.share = choose_share(options, place, plan.slot_bytes);
    plan.list = make_list(options.list, plan.share);
    const std::int64_t spin_us = options.spin_us >= 0 ? options.spin_us : empty ? 200 : 20;
    plan.spin_ns = spin_us * 1000;
    plan.checksums = options.checksums;
    plan.cast = options.cast;
    plan.pause = options.pause;
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

void measure(const Options& options, WeightsRun& run) {
    if (options.torch_rounds == 0) {
        run.rounds.push_back({run_session(run.plan), {}});
        return;
    }
    if (!run.plan.device.is_gpu()) fail("--torch compares on a GPU: there is none");
    if (run.plan.cast) fail("--torch publishes what the trainer has: not with --cast");
    const ListFile file(run.plan.list);
    Progress progress(static_cast<std::size_t>(options.torch_rounds) * 2);
    for (int round = 0; round < options.torch_rounds && !interrupted(); round++) {
        // torch first: it says soonest what is missing.
        progress.step("torch");
        auto torch = run_torch(options.torch_script, file.path(),
                               static_cast<int>(run.plan.versions), run.plan.device.gpu);
        progress.step("rollring");
        run.rounds.push_back({run_session(run.plan), std::move(torch)});
    }
}

void run(const Options& options) {
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
    if (options.json) {
        fmt::print("{}\n", report_json(made).dump(2));
    } else {
        fmt::print("{}", report_text(made));
    }
    static_cast<void>(std::fflush(stdout));
    if (const std::string problem = problem_of(made); !problem.empty()) fail(problem);
}

}  // namespace

void add_weights(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("weights", "a weight sync against two copies and torch");
    sub->footer(
        "Examples:\n"
        "  rollring-bench weights --list llama8b --repeat 11\n"
        "  rollring-bench weights --list empty            control latency, nothing to copy\n"
        "  rollring-bench weights --list qwen30b --torch  and the same sync by torch, in turn\n"
        "  rollring-bench weights --soak 10000            fails if anything grew");
    sub->add_option("--list", options->list, "the tensors")
        ->check(CLI::IsMember({"llama8b", "qwen30b", "tiny", "empty"}))
        ->capture_default_str();
    sub->add_option("--device", options->device, "auto, host, or cuda:N")->capture_default_str();
    sub->add_option("--memory", options->memory, "of the slots")
        ->check(CLI::IsMember({"automatic", "vmm", "legacy_ipc", "host"}))
        ->capture_default_str();
    sub->add_option("--slot-bytes", options->slot_bytes, "0: the library's choice")
        ->capture_default_str();
    sub->add_option("--slots", options->slots, "1 to 16; 0: the library's choice")
        ->capture_default_str();
    sub->add_option("--scale", options->scale,
                    "share of the list's bytes; auto: what fits (host: 1 GiB); small: 16 MiB")
        ->capture_default_str();
    sub->add_option("--repeat", options->repeat, "versions (default 7; empty list: 20000)");
    sub->add_option("--spin-us", options->spin_us, "before waits sleep (20; empty list: 200)");
    sub->add_option("--soak", options->soak, "so many versions; exit 1 if anything grew");
    sub->add_option("--limit-s", options->limit_s, "for one session")->capture_default_str();
    sub->add_option_function<std::string>(
           "--torch",
           [options](const std::string& text) {
               const auto rounds = parse_number<int>(text.empty() ? "3" : text);
               if (!rounds) fail(fmt::format("--torch {}: a number of rounds", text));
               options->torch_rounds = *rounds;
           },
           "so many rounds (3 if none are given) in turn with bench/torch_sync.py")
        ->expected(0, 1)
        ->type_name("[ROUNDS]");
    sub->add_option("--torch-script", options->torch_script, "where that is");
    sub->add_option("--print-list", options->print_list, "write the list to a file, and end");
    sub->add_flag("--checksums", options->checksums, "of every tensor, checked by the engine");
    sub->add_flag("--cast", options->cast, "the trainer's tensors are f32, published as bf16");
    sub->add_flag("--pause", options->pause, "")->group("");  // for tests/weights_command.py
    sub->add_flag("--json", options->json, "one JSON object instead of text");
    sub->callback([options] { run(*options); });
}

}  // namespace bench
