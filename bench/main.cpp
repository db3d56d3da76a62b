// rollring-bench: one subcommand per question. Every figure stands beside the cache-line time.
//
// CLI11 is slow to compile, and stays here.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "questions.hpp"

namespace bench {
namespace {

constexpr const char* what_it_measures =
    R"(Two processes; a record counts as read when each of its bytes has been summed.

light: nothing is under way; the producer waits 20 us (200 us for a sleeping consumer) between
  records.
paced: long records (--paced-tokens) far apart (--paced-gap-us), as rollout workers send them, over
  a ring with as many producers attached as --paced-lanes says; all but one of them are silent.
  From commit, and from before push() was called. "From the first": of a new ring, whose memory
  neither process has touched; elsewhere two laps of the ring go before.
heavy: first the capacity is measured, the same loop without pauses; then records come at random
  (exponential gaps) at a share of it (--loads), each sent when it is due, or at once if the
  producer is late. The same arrivals go over the bare hand-offs.

from commit: from just before the record became visible.
from due: from when the record was to be sent, whatever held it up: encoding, a full lane, or the
  records before it. A producer that is held up cannot hide it (no coordinated omission).

Beside rollring, in the same run: bare record (the same bytes over fixed buffers with a flag each),
bare cache line (one word), bare futex (one word, the consumer sleeps and is woken), and the
one-way time of a cache line in a tight ping-pong.)";

template <class T>
CLI::Option* option(CLI::App* app, const char* name, T& value, const std::string& what) {
    return app->add_option(name, value, what)->capture_default_str();
}
template <class T>
CLI::Option* option(CLI::App* app, const char* name, std::vector<T>& values,
                    const std::string& what) {
    return app->add_option(name, values, what)->capture_default_str()->delimiter(',');
}
template <class Bound>
struct Bounds {
    Bound low;
    Bound high;
};
// A number, or each of a list.
template <class T, class Bound>
CLI::Option* option(CLI::App* app, const char* name, T& value, Bounds<Bound> bounds,
                    const std::string& what) {
    return option(app, name, value, what)->check(CLI::Range(bounds.low, bounds.high));
}

void add_common(CLI::App& app, Common& common) {
    app.add_option("--cpus", common.cpus, "the producer's and the consumer's CPU")->delimiter(',');
    app.add_option("--repeat", common.repeat, "rounds")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000));
    app.add_option("--seconds", common.seconds, "length of one run")
        ->capture_default_str()
        ->check(CLI::Range(0.01, 60.0));
    app.add_flag("--realtime", common.realtime, "measured processes run under SCHED_RR (root)");
    app.add_flag("--json", common.json, "one JSON object instead of a table");
}

// A subcommand with the options that all have, and its own; run() has them all.
template <class Options, class Add>
CLI::App* add_question(CLI::App& app, const char* name, const char* what, const Add& add) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand(name, what);
    if constexpr (requires { options->common; }) add_common(*sub, options->common);
    add(sub, *options);
    sub->callback([options] { run(*options); });
    return sub;
}

constexpr int tokens_most = 1 << 22;

void add_throughput(CLI::App& app) {
    const auto add = [](CLI::App* sub, ThroughputQuestion& options) {
        const auto* tokens =
            option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        const auto* experts =
            option(sub, "--routed-experts", options.routed_experts,
                   "one more record: tokens x layers x experts, u16 (129 MB), or none; left out "
                   "where --tokens is given");
        option(sub, "--lane-bytes", options.lane_bytes, "capacity of the lane");
        option(sub, "--soft-bytes", options.soft_bytes, "soft wrap, and the limit's buffers");
        sub->add_option("--records", options.records, "records per run, instead of --seconds");
        option(sub, "--batch", options.batch, Bounds{1, 4096}, "records per flush");
        sub->add_flag("--wait", options.wait, "the consumer sleeps in wait() instead of polling");
        sub->parse_complete_callback([&options, tokens, experts] {
            if (tokens->count() != 0 && experts->count() == 0) options.routed_experts = "none";
        });
    };
    add_question<ThroughputQuestion>(
        app, "throughput", "one producer, one consumer that reads every byte, against the limit",
        add);
}

void add_softwrap(CLI::App& app) {
    const auto add = [](CLI::App* sub, SoftwrapQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--lane-bytes", options.lane_bytes, "capacity of the lane");
        option(sub, "--soft-bytes", options.soft_bytes, "where it turns back when on");
        sub->add_option("--records", options.records, "records per run, instead of --seconds");
    };
    add_question<SoftwrapQuestion>(app, "softwrap", "the same run with soft wrap on and off", add);
}

void add_taps(CLI::App& app) {
    const auto add = [](CLI::App* sub, TapsQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--taps", options.taps, Bounds{1, 64}, "processes that tap the ring");
        option(sub, "--lane-bytes", options.lane_bytes, "capacity of the lane");
        option(sub, "--soft-bytes", options.soft_bytes, "where it turns back early");
    };
    add_question<TapsQuestion>(app, "taps",
                               "the same run with and without processes that tap its ring", add);
}

void add_viewers(CLI::App& app) {
    const auto add = [](CLI::App* sub, ViewersQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--viewers", options.viewers, Bounds{1, 64},
               "programs 'rollring view', each with a page that asks it");
        option(sub, "--lane-bytes", options.lane_bytes, "capacity of the lane");
        option(sub, "--soft-bytes", options.soft_bytes, "where it turns back early");
        option(sub, "--python", options.python, "interpreter that has the Python package")
            ->envname("ROLLRING_PYTHON");
        sub->add_option("--viewer-script", options.script, "bench/ring/viewer.py");
    };
    add_question<ViewersQuestion>(
        app, "viewers", "one run, in which viewers look at the ring and stop in turns", add);
}

void add_latency(CLI::App& app) {
    const auto add = [](CLI::App* sub, LatencyQuestion& options) {
        option(sub, "--tokens", options.n_tokens, Bounds{1, 1 << 20}, "tokens per record");
        option(sub, "--records", options.records, Bounds{1000, 10'000'000},
               "records of a light run; --seconds: of a heavy");
        auto* loads = option(sub, "--loads", options.loads, Bounds{0.01, 2.0},
                             "heavy: shares of the capacity");
        sub->add_flag_callback(
               "--light", [&options] { options.loads.clear(); }, "no heavy load")
            ->excludes(loads);
        PacedOptions& paced = options.paced;
        option(sub, "--paced-tokens", paced.n_tokens, Bounds{1, 1 << 20},
               "paced: tokens per record");
        option(sub, "--paced-gap-us", paced.gap_us, Bounds{0, 1'000'000}, "paced: between records");
        option(sub, "--paced-lanes", paced.lanes, Bounds{1, 4096}, "paced: lanes with a producer");
        option(sub, "--paced-records", paced.records, Bounds{1000, 10'000'000},
               "paced: records of a run");
        sub->add_flag("--only-paced", options.only_paced, "nothing else");
    };
    add_question<LatencyQuestion>(app, "latency", "commit to read in full, light load and heavy",
                                  add)
        ->footer(what_it_measures);
}

void add_stash(CLI::App& app) {
    const auto add = [](CLI::App* sub, StashQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--open-groups", options.open_groups, "groups that wait meanwhile");
        option(sub, "--interleaved", options.interleaved, Bounds{1, 100'000},
               "prompts whose rollouts come in turn");
        option(sub, "--batch", options.batch, Bounds{1, 4096}, "short records per flush");
        option(sub, "--lane-bytes", options.lane_bytes, "capacity of the lane");
    };
    add_question<StashQuestion>(app, "stash", "groups and batches against plain polling", add);
}

void add_batches(CLI::App& app) {
    const auto add = [](CLI::App* sub, BatchesQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--producers", options.producers, Bounds{1, 1024}, "processes that send");
        option(sub, "--groups", options.groups, Bounds{1, 4096}, "of 8 members, in a batch");
        option(sub, "--python", options.python, "interpreter that has the Python package")
            ->envname("ROLLRING_PYTHON");
        sub->add_option("--batches-script", options.script, "bench/stash/batches.py");
    };
    add_question<BatchesQuestion>(
        app, "batches", "producers to packed arrays of a trainer, in C++ and in Python", add);
}

void add_gather(CLI::App& app) {
    const auto add = [](CLI::App* sub, GatherQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--threads", options.threads, Bounds{1, 256}, "of the gather and of memcpy");
        option(sub, "--bytes", options.bytes, "of a batch's ids and logprobs");
    };
    add_question<GatherQuestion>(
        app, "gather", "a batch's columns into packed arrays of the host, against memcpy", add);
}

void add_ledger(CLI::App& app) {
    const auto add = [](CLI::App* sub, LedgerQuestion& options) {
        option(sub, "--directory", options.directory, "for the ledgers; on a disk, not in memory")
            ->required();
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--parts", options.parts, "measurements to run")
            ->check(CLI::IsMember({"rates", "pushes", "restores", "peers"}));
        option(sub, "--paced-load", options.paced_load, Bounds{0.01, 1.0},
               "pushes: their share of the disk's rate");
        option(sub, "--durable", options.durable, "kinds of ledger, each against none")
            ->check(CLI::IsMember({"group", "record", "none"}));
        option(sub, "--batch-tokens", options.batch_tokens, Bounds{1, 1 << 30},
               "tokens of a batch, each of which is acknowledged");
        option(sub, "--lane-bytes", options.lane_bytes, "capacity of the lane");
        option(sub, "--ledger-bytes", options.ledger_bytes,
               "bound of the ledger; a checkpoint comes with each quarter of it");
    };
    add_question<LedgerQuestion>(app, "ledger",
                                 "the same run with and without a ledger, and the disk alone", add);
}

void add_peers(CLI::App& app) {
    const auto add = [](CLI::App* sub, PeersQuestion& options) {
        option(sub, "--tokens", options.tokens, Bounds{1, tokens_most}, "tokens per record");
        option(sub, "--queue-bytes", options.queue_bytes, "room in queues that have a choice");
        option(sub, "--peers", options.wanted,
               "only these: stash, limit, memcpy, unix, pipe, boost, zmq, http, numpy-sums, "
               "rollring-numpy, rollring-packed, mpq-lists, mpq-numpy, faster-fifo, trl, ray, "
               "transferqueue, atropos, atropos-plain");
        option(sub, "--python", options.python, "interpreter of the peers in Python")
            ->envname("ROLLRING_PYTHON");
        sub->add_option("--peers-script", options.script, "bench/peers/peers.py");
        option(sub, "--most-seconds", options.most_seconds, Bounds{1.0, 600.0},
               "a peer whose shortest run would take longer is skipped at that length");
        option(sub, "--quiet-line-ns", options.quiet_line_ns,
               "rounds with a faster cache line count as quiet");
    };
    add_question<PeersQuestion>(app, "peers", "the identical work over other transports", add);
}

void add_scaling(CLI::App& app) {
    const auto add = [](CLI::App* sub, ScalingQuestion& options) {
        option(sub, "--parts", options.parts, "measurements to run")
            ->check(CLI::IsMember({"producers", "records", "lanes", "small"}));
        option(sub, "--producers", options.producers, Bounds{1, 1024},
               "producers into one consumer");
        option(sub, "--records", options.records, Bounds{1, 1 << 30}, "small records in one run");
        option(sub, "--lanes", options.lanes, Bounds{1, 4096},
               "lanes of the ring, one of them used");
        option(sub, "--batch", options.batches, Bounds{1, 4096}, "small records a flush");
        option(sub, "--tokens", options.n_tokens, Bounds{1, 1 << 20},
               "tokens a record of the producers");
        option(sub, "--lane-bytes", options.lane_bytes,
               "of each producer; 0: 512 MiB among them, 8 to 64 MiB each. All of it is filled "
               "where producers outrun the consumer; the bare hand-off has 4 MiB among them");
        option(sub, "--soft-bytes", options.soft_bytes, "soft wrap of each lane; 0: the default");
    };
    add_question<ScalingQuestion>(app, "scaling", "how cost grows, and small records", add);
}

void add_weights(CLI::App& app) {
    const auto add = [](CLI::App* sub, WeightsQuestion& options) {
        option(sub, "--list", options.list, "the tensors")
            ->check(CLI::IsMember({"llama8b", "qwen30b", "tiny", "empty"}));
        option(sub, "--device", options.device, "auto, host, or cuda:N");
        option(sub, "--memory", options.memory,
               "of the slots; direct: none, engines read the trainer's tensors")
            ->check(CLI::IsMember({"automatic", "vmm", "legacy_ipc", "host", "direct"}));
        option(sub, "--slot-bytes", options.slot_bytes, "0: the library's choice");
        option(sub, "--slots", options.slots, "1 to 16; 0: the library's choice");
        option(sub, "--scale", options.scale,
               "share of the list's bytes; auto: as much as fits (host: 1 GiB); small: 16 MiB");
        sub->add_option("--repeat", options.repeat, "versions (default 7; empty list: 20000)");
        sub->add_option("--spin-us", options.spin_us, "before waits sleep (20; empty list: 200)");
        sub->add_option("--soak", options.soak, "versions to send; exit 1 if anything grew");
        sub->add_option("--changed", options.changed,
                        "percent of the elements that each version changes, or several such "
                        "numbers; the engine stages by difference, then in place and beside")
            ->delimiter(',')
            ->check(CLI::Range(0.0, 100.0));
        option(sub, "--limit-s", options.limit_s, "for one session");
        const auto set_rounds = [&options](const std::string& text) {
            const auto rounds = parse_number<int>(text.empty() ? "3" : text);
            if (!rounds) fail(fmt::format("--torch {}: a number of rounds", text));
            options.torch_rounds = *rounds;
        };
        sub->add_option_function<std::string>("--torch", set_rounds,
                                              "so many rounds (3 if none are given) in turn with "
                                              "bench/weights/torch_sync.py")
            ->expected(0, 1)
            ->type_name("[ROUNDS]");
        sub->add_option("--torch-script", options.torch_script, "where that is");
        sub->add_option("--print-list", options.print_list, "write the list to a file, and end");
        sub->add_flag("--checksums", options.checksums, "of every tensor, checked by the engine");
        sub->add_flag("--cast", options.cast, "the trainer's tensors are f32, published as bf16");
        sub->add_flag("--pause", options.pause, "")->group("");  // for tests/weights_command.py
        sub->add_flag("--json", options.json, "one JSON object instead of text");
    };
    add_question<WeightsQuestion>(app, "weights", "a weight sync against two copies and torch", add)
        ->footer(
            "Examples:\n"
            "  rollring-bench weights --list llama8b --repeat 11\n"
            "  rollring-bench weights --list empty            control latency, nothing to copy\n"
            "  rollring-bench weights --list qwen30b --torch  and the same sync by torch, in turn\n"
            "  rollring-bench weights --changed 0.1,1,5       by difference, and in other ways\n"
            "  rollring-bench weights --soak 10000            fails if anything grew");
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    CLI::App app("Measures rollring against the limits of this machine and against its peers");
    app.require_subcommand(1);
    rollring::cli::catch_interrupts();
    bench::add_throughput(app);
    bench::add_softwrap(app);
    bench::add_taps(app);
    bench::add_viewers(app);
    bench::add_latency(app);
    bench::add_stash(app);
    bench::add_batches(app);
    bench::add_gather(app);
    bench::add_ledger(app);
    bench::add_peers(app);
    bench::add_scaling(app);
    bench::add_weights(app);
    try {
        CLI11_PARSE(app, argc, argv);
    } catch (const bench::Failure& failure) {
        fmt::print(stderr, "rollring-bench: {}\n", failure.what());
        return 1;
    }
    return bench::interrupted() ? rollring::cli::interrupt_exit() : 0;
}
