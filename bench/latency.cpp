// Question: how long from commit to a consumer that has read the record, spinning and asleep?

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "workload.hpp"

namespace bench {
namespace {

constexpr std::size_t skipped = 64;  // first records of a run: page faults, cold caches

struct Options {
    Common common;
    std::uint32_t n_tokens = 64;
    std::uint32_t records = 3000;
    std::int64_t spin_gap_us = 20;    // between records when the consumer spins
    std::int64_t sleep_gap_us = 200;  // and when it has fallen asleep
};

// When each record was committed and when it had been read, on the clock of both.
struct Stamps {
    explicit Stamps(std::uint32_t records)
        : count(records), memory(std::size_t{records} * 2 * sizeof(std::int64_t)) {}
    [[nodiscard]] std::int64_t& sent(std::size_t i) const { return memory.at<std::int64_t>()[i]; }
    [[nodiscard]] std::int64_t& got(std::size_t i) const {
        return memory.at<std::int64_t>()[count + i];
    }
    [[nodiscard]] std::vector<double> delays() const {
        std::vector<double> found;
        for (std::size_t i = skipped; i < count; i++) {
            found.push_back(static_cast<double>(got(i) - sent(i)));
        }
        return found;
    }
    std::size_t count;
    SharedBytes memory;
};

void pause_until(std::int64_t at_ns) {
    while (now_ns() < at_ns) relax();
}

using Sides = std::pair<Side, Side>;

Sides ring_sides(const std::string& name, const Options& options, bool asleep,
                 const Stamps& stamps) {
    const std::int64_t gap_ns = (asleep ? options.sleep_gap_us : options.spin_gap_us) * 1000;
    const auto produce = [&, name, gap_ns](Board& board) {
        auto producer = rollring::Producer::open(name, {.name = "latency"});
        if (!producer) board.give_up(producer.error().to_string());
        const Source source(options.n_tokens);
        board.meet();
        const auto deadline = rollring::Deadline::after_ms(60'000);
        for (std::size_t i = 0; i < stamps.count; i++) {
            pause_until(now_ns() + gap_ns);
            const Slice& slice = source[i];
            rollring::Draft draft("latency");
            draft.meta.source_id = static_cast<std::int64_t>(slice.sum);
            draft.set(rollring::Std::token_ids, slice.token_ids)
                .set(rollring::Std::logprobs, slice.logprobs)
                .set(rollring::Std::loss_mask, slice.loss_mask);
            if (producer->push_later(draft, deadline) != rollring::Push::ok) {
                board.give_up("push: " + producer->problem());
            }
            stamps.sent(i) = now_ns();
            producer->flush();
        }
    };
    const auto consume = [&, name, asleep](Board& board) {
        auto consumer = rollring::Consumer::open(name, {.spin_us = asleep ? 0 : 20});
        if (!consumer) board.give_up(consumer.error().to_string());
        rollring::Record record;
        board.meet();
        for (std::size_t i = 0; i < stamps.count;) {
            const auto deadline = rollring::Deadline::after_ms(asleep ? 10'000 : 0);
            const auto got = asleep ? consumer->wait(record, deadline) : consumer->poll(record);
            if (got != rollring::Poll::record) continue;
            const auto tokens = record.view.token_ids();
            const auto logprobs = record.view.logprobs();
            const auto mask = record.view.loss_mask();
            const std::uint64_t sum = sum_words(tokens.data(), tokens.size_bytes()) +
                                      sum_words(logprobs.data(), logprobs.size_bytes()) +
                                      sum_words(mask.data(), mask.size_bytes());
            if (sum != static_cast<std::uint64_t>(record.view.meta().source_id.value_or(0))) {
                board.give_up("a record's sum is wrong");
            }
            stamps.got(i++) = now_ns();
            consumer->release(record.ref);
        }
    };
    return {produce, consume};
}

// What the kernel needs to wake a process, and nothing else.
Sides futex_sides(const Options& options, const Stamps& stamps, std::atomic<std::uint32_t>& word) {
    const auto call = [&word](int what, std::uint32_t value) {
        // tidy-ok: the bare hand-off that the doorbell is compared with
        syscall(SYS_futex, &word, what, value, nullptr, nullptr, 0);  // tidy-ok: see above
    };
    const auto produce = [&, call](Board& board) {
        board.meet();
        for (std::size_t i = 0; i < stamps.count; i++) {
            pause_until(now_ns() + options.sleep_gap_us * 1000);
            stamps.sent(i) = now_ns();
            word.store(static_cast<std::uint32_t>(i + 1));
            call(FUTEX_WAKE, 1);
        }
    };
    const auto consume = [&, call](Board& board) {
        board.meet();
        for (std::uint32_t i = 0; i < stamps.count; i++) {
            while (word.load() == i) call(FUTEX_WAIT, i);
            stamps.got(i) = now_ns();
        }
    };
    return {produce, consume};
}

std::vector<double> run_sides(const Cpus& cpus, const Sides& sides, const Stamps& stamps) {
    const SharedBytes memory(sizeof(Board));
    const auto problem = run_pair(cpus, *memory.at<Board>(), sides.first, sides.second);
    if (!problem.empty()) fail("latency: " + problem);
    return stamps.delays();
}

std::vector<double> ring_delays(const Options& options, const Cpus& cpus, bool asleep) {
    const std::string name = fmt::format("bench-{}", getpid());
    const auto made = rollring::create_ring(name, {.lanes = 1, .lane_bytes = 4 << 20});
    if (!made) fail(made.error().to_string());
    const Stamps stamps(options.records);
    const auto delays = run_sides(cpus, ring_sides(name, options, asleep, stamps), stamps);
    static_cast<void>(rollring::remove_ring(name, true));
    return delays;
}

struct Row {
    std::string name;
    std::vector<double> p50, p99, p999;
    std::vector<double> all = {};  // of all rounds, for the distribution

    void add(std::vector<double> delays) {
        std::ranges::sort(delays);
        all.insert(all.end(), delays.begin(), delays.end());
        const auto at = [&](double share) {
            return delays[static_cast<std::size_t>(share * static_cast<double>(delays.size() - 1))];
        };
        p50.push_back(at(0.5));
        p99.push_back(at(0.99));
        p999.push_back(at(0.999));
    }
    // [share, ns]: dense where the tail is.
    [[nodiscard]] Json quantiles() {
        std::ranges::sort(all);
        Json found = Json::array();
        for (int i = 0; i <= 40 && !all.empty(); i++) {
            const double share = 1 - std::pow(10.0, -i / 10.0);
            if ((1 - share) * static_cast<double>(all.size()) < 1) break;
            const auto at = static_cast<std::size_t>(share * static_cast<double>(all.size() - 1));
            found.push_back({share, all[at]});
        }
        return found;
    }
};

void run(const Options& options) {
    const Cpus cpus = options.common.choose_cpus();
    Row spinning{"rollring, spinning"};
    Row sleeping{"rollring, asleep"};
    Row futex{"bare futex hand-off"};
    std::vector<double> line;
    {
        Progress progress(3 * options.common.repeat);
        for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
            line.push_back(line_ns(cpus));
            progress.step(spinning.name);
            spinning.add(ring_delays(options, cpus, false));
            progress.step(sleeping.name);
            sleeping.add(ring_delays(options, cpus, true));
            progress.step(futex.name);
            const Stamps stamps(options.records);
            const SharedBytes word(64);
            const auto sides = futex_sides(options, stamps, *word.at<std::atomic<std::uint32_t>>());
            futex.add(run_sides(cpus, sides, stamps));
        }
    }
    const double line_median = Spread::of(line).median;
    if (options.common.json) {
        Json out = {{"question", "latency"},
                    {"machine", machine(cpus)},
                    {"tokens", options.n_tokens},
                    {"line_ns", Spread::of(line).json()}};
        for (Row* row : {&spinning, &sleeping, &futex}) {
            out["rows"].push_back({{"name", row->name},
                                   {"p50_ns", Spread::of(row->p50).json()},
                                   {"p99_ns", Spread::of(row->p99).json()},
                                   {"p999_ns", Spread::of(row->p999).json()},
                                   {"quantiles", row->quantiles()}});
        }
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print(
        "{}\ncommit to read in full, {} tokens; medians of {} rounds; cache line one way "
        "{:.0f} ns\n{:<22} {:>9} {:>9} {:>9} ns\n",
        machine_line(cpus), options.n_tokens, options.common.repeat, line_median, "", "p50", "p99",
        "p99.9");
    for (const Row* row : {&spinning, &sleeping, &futex}) {
        fmt::print("{:<22} {:>9.0f} {:>9.0f} {:>9.0f}\n", row->name, Spread::of(row->p50).median,
                   Spread::of(row->p99).median, Spread::of(row->p999).median);
    }
    fmt::print("spinning / cache line {:.1f}, asleep / bare futex {:.2f} (p50)\n",
               Spread::of(spinning.p50).median / line_median,
               Spread::of(sleeping.p50).median / Spread::of(futex.p50).median);
}

}  // namespace

void add_latency(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("latency", "commit to poll, one way, spinning and asleep");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->n_tokens, "tokens per record")->capture_default_str();
    sub->add_option("--records", options->records, "records per run")
        ->capture_default_str()
        ->check(CLI::Range(1000, 10'000'000));
    sub->callback([options] { run(*options); });
}

}  // namespace bench
