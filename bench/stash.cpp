// Question: what does it cost to have groups instead of records, and does it stay flat?

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "group_machine.hpp"
#include "records.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"

namespace bench {
namespace {

constexpr std::uint32_t group_size = machine_group_size;
constexpr std::uint32_t batch_groups = machine_batch_groups;
constexpr std::uint32_t waiting_tokens = 64;
constexpr std::uint64_t waiting_lane_bytes = std::uint64_t{8} << 20;
constexpr std::uint64_t spill_bytes_per_group = 4096;  // of one record; half is kept free
constexpr std::uint64_t waiting_warmup = 1'000'000;    // records

struct Options {
    Common common;
    std::vector<std::uint32_t> tokens = {2048, 64};
    std::vector<std::uint64_t> open_groups = {100, 1'000, 10'000, 100'000};
    std::uint32_t interleaved = 16;
    std::uint32_t batch = 32;
    std::string lane_bytes = "64MiB";
};

// The parent's: the sides of a run inherit it.
const std::string& ring_name() {
    static const std::string name = fmt::format("bench-stash-{}", getpid());
    return name;
}

// Rollouts of `interleaved` prompts at a time come in turn, as from as many workers.
struct Position {
    std::uint64_t group;
    std::uint32_t member;
};
Position position_of(std::uint64_t sequence, std::uint64_t interleaved) {
    const std::uint64_t block = interleaved * group_size;
    return {sequence / block * interleaved + sequence % interleaved,
            static_cast<std::uint32_t>(sequence % block / interleaved)};
}

// `waiting` groups are opened first, with one member each, and wait for the rest all the time.
void produce(const Options& options, Board& board, const Plan& plan, std::uint64_t waiting) {
    auto opened = rollring::Producer::open(ring_name(), {.name = "bench"});
    if (!opened) board.give_up(opened.error().to_string());
    rollring::Producer& producer = *opened;
    const Source source(plan.n_tokens);
    board.meet();
    auto deadline = rollring::Deadline::after_ms(10'000);
    for (std::uint64_t i = 0; i < waiting + plan.total(); i++) {
        if (i % 64 == 0) deadline = rollring::Deadline::after_ms(10'000);
        const bool waits = i < waiting;
        const std::uint64_t sequence = waits ? i : i - waiting;
        const Position at = waits ? Position{i, 0} : position_of(sequence, options.interleaved);
        char name[24];
        const auto end = fmt::format_to(name, "{}{}", waits ? "w" : "", at.group);
        rollring::Draft draft(std::string_view(name, static_cast<std::size_t>(end - name)));
        draft.meta.repetition_id = at.member;
        draft.meta.reward = at.member;
        fill(draft, source[sequence]);
        const bool last_of_batch = (i + 1) % plan.batch == 0;
        const rollring::Push push =
            last_of_batch ? producer.push(draft, deadline) : producer.push_later(draft, deadline);
        if (push != rollring::Push::ok) board.give_up("push: " + producer.problem());
    }
    producer.flush();
}

void check(Board& board, const rollring::TrajectoryView& view) {
    if (sum_record(view) != sum_sent(view)) {
        board.give_up("a record's sum is not that of what was sent");
    }
}

// Takes the time from the end of the warm-up to the end.
class Clock {
  public:
    Clock(Board& board, const Plan& plan) : board_(&board), plan_(&plan) {}
    void count(std::uint64_t records) {
        if (done_ < plan_->warmup && done_ + records >= plan_->warmup) began_ns_ = now_ns();
        done_ += records;
        if (done_ >= plan_->total()) board_->figures[0] = now_ns() - began_ns_;
    }
    [[nodiscard]] bool done() const { return done_ >= plan_->total(); }

  private:
    Board* board_;
    const Plan* plan_;
    std::uint64_t done_ = 0;
    std::int64_t began_ns_ = 0;
};

void poll_records(Board& board, const Plan& plan) {
    auto consumer = rollring::Consumer::open(ring_name());
    if (!consumer) board.give_up(consumer.error().to_string());
    board.meet();
    Clock clock(board, plan);
    rollring::Record record;
    while (!clock.done()) {
        if (consumer->poll(record) != rollring::Poll::record) {
            relax();
            continue;
        }
        check(board, record.view);
        consumer->release(record.ref);
        clock.count(1);
    }
}

// As many records as a batch has are at hand before the first one is read, and are given back
// together: how memory is used then, without anything that a stash does.
void hold_batches(Board& board, const Plan& plan) {
    auto consumer = rollring::Consumer::open(ring_name());
    if (!consumer) board.give_up(consumer.error().to_string());
    board.meet();
    Clock clock(board, plan);
    std::vector<rollring::Record> held(std::size_t{group_size} * batch_groups);
    while (!clock.done()) {
        for (rollring::Record& record : held) {
            while (consumer->poll(record) != rollring::Poll::record) relax();
        }
        for (const rollring::Record& record : held) check(board, record.view);
        for (const rollring::Record& record : held) consumer->release(record.ref);
        clock.count(held.size());
    }
}

void take_batches(Board& board, const Plan& plan, rollring::Order order) {
    auto stash = rollring::Stash::open(
        ring_name(), {.group_size = group_size, .order = order, .batch_groups = batch_groups},
        {.spin_us = 1000});
    if (!stash) board.give_up(stash.error().to_string());
    board.meet();
    Clock clock(board, plan);
    rollring::Batch batch;
    for (std::int64_t step = 0; !clock.done(); step++) {
        const auto got = (*stash)->next_batch(batch, rollring::Deadline::after_ms(10'000));
        if (got != rollring::NextBatch::batch) board.give_up("no batch within 10 s");
        for (const rollring::Sequence& sequence : batch.sequences()) check(board, sequence.view);
        const std::uint64_t records = batch.sequences().size();
        if (const auto acked = batch.ack(step); !acked) board.give_up(acked.error().to_string());
        clock.count(records);
    }
    board.figures[1] = static_cast<std::int64_t>((*stash)->copies().copied_bytes);
    board.figures[2] = static_cast<std::int64_t>((*stash)->open_groups());
}

struct Row {
    std::uint32_t n_tokens;
    std::vector<double> polling;  // records/s
    std::vector<double> holding;
    std::vector<double> stash;
    std::vector<double> cost;       // time of the stash / time of polling
    std::vector<double> cost_held;  // time of the stash / time of polling that holds as much
    std::vector<double> line_ns;
    std::int64_t copied_bytes = 0;
};

using Consume = void (*)(Board&, const Plan&);

void take_batches_in_order(Board& board, const Plan& plan) {
    take_batches(board, plan, rollring::Order::windowed);
}
// A window over the oldest would stand still before groups that wait.
void take_fresh_batches(Board& board, const Plan& plan) {
    take_batches(board, plan, rollring::Order::freshest);
}

Measured measure_once(const Options& options, const Plan& plan, const Cpus& cpus, Consume consume,
                      std::uint64_t waiting = 0) {
    rollring::RingOptions ring{.lanes = 1, .lane_bytes = parse_bytes(options.lane_bytes)};
    if (waiting != 0) {
        ring.lane_bytes = waiting_lane_bytes;
        ring.group_rows = static_cast<std::uint32_t>(waiting + 1024);
        ring.spill_bytes = spill_bytes_per_group * waiting + (std::uint64_t{64} << 20);
    }
    const auto made = rollring::create_ring(ring_name(), ring);
    if (!made) fail(made.error().to_string());
    const Transport transport{
        "stash", [&](Board& board, const Plan& given) { produce(options, board, given, waiting); },
        consume};
    const Measured measured = measure(transport, plan, cpus);
    static_cast<void>(rollring::remove_ring(ring_name(), true));
    return measured;
}

Row measure_length(const Options& options, std::uint32_t n_tokens, const Cpus& cpus,
                   Progress& progress) {
    Row row{.n_tokens = n_tokens};
    // Whole batches, whatever the interleaving; first a lap of the lane, so that its pages are in
    // both processes' tables and nothing grows any more.
    const std::uint64_t whole = std::uint64_t{batch_groups} * options.interleaved * group_size;
    const auto batches = [whole](std::uint64_t records) { return (records / whole + 1) * whole; };
    const std::uint64_t lap =
        parse_bytes(options.lane_bytes) / (std::uint64_t{n_tokens} * token_bytes);
    Plan plan{.n_tokens = n_tokens,
              .records = batches(lap),
              .warmup = batches(2 * lap),
              .batch = n_tokens < 1024 ? options.batch : 1};
    const double rate =
        measure_once(options, plan, cpus, take_batches_in_order).tokens_per_s / n_tokens;
    plan.records = batches(static_cast<std::uint64_t>(rate * options.common.seconds));
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("polling, {} tokens", n_tokens));
        const Measured plain = measure_once(options, plan, cpus, poll_records);
        progress.step(fmt::format("polling and holding, {} tokens", n_tokens));
        const Measured held = measure_once(options, plan, cpus, hold_batches);
        progress.step(fmt::format("stash, {} tokens", n_tokens));
        const Measured groups = measure_once(options, plan, cpus, take_batches_in_order);
        if (interrupted()) break;
        row.polling.push_back(plain.tokens_per_s / n_tokens);
        row.holding.push_back(held.tokens_per_s / n_tokens);
        row.stash.push_back(groups.tokens_per_s / n_tokens);
        row.cost.push_back(plain.tokens_per_s / groups.tokens_per_s);
        row.cost_held.push_back(held.tokens_per_s / groups.tokens_per_s);
        row.line_ns.push_back(plain.line_ns);
        row.copied_bytes = groups.figures[1];
    }
    return row;
}

// Short records through the stash while so many groups wait for their other members. Those lie in
// the spill by the time that is measured: the lane is small, and the warm-up long.
struct Waiting {
    std::uint64_t groups;
    std::vector<double> rate;  // records/s
};
std::vector<Waiting> measure_waiting(const Options& options, const Cpus& cpus, Progress& progress) {
    std::vector<Waiting> rows;
    for (const std::uint64_t groups : options.open_groups) rows.push_back({groups, {}});
    const std::uint64_t whole = std::uint64_t{batch_groups} * options.interleaved * group_size;
    const auto batches = [whole](std::uint64_t records) { return (records / whole + 1) * whole; };
    Plan plan{.n_tokens = waiting_tokens,
              .records = batches(waiting_warmup / 4),
              .warmup = batches(waiting_warmup),
              .batch = options.batch};
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        for (Waiting& row : rows) {
            progress.step(fmt::format("{} groups wait", row.groups));
            const Measured found =
                measure_once(options, plan, cpus, take_fresh_batches, row.groups);
            if (interrupted()) break;
            if (std::cmp_less(found.figures[2], row.groups)) {
                fail(fmt::format("{} groups should have waited, {} were open", row.groups,
                                 found.figures[2]));
            }
            row.rate.push_back(found.tokens_per_s / plan.n_tokens);
            plan.records =
                batches(static_cast<std::uint64_t>(row.rate.back() * options.common.seconds));
        }
    }
    return rows;
}

void run(const Options& options) {
    const Cpus cpus = options.common.choose_cpus();
    std::vector<Row> rows;
    std::vector<Waiting> waiting_rows;
    std::vector<std::pair<std::uint64_t, double>> machine_rows;
    {
        Progress progress(options.tokens.size() * 3 * options.common.repeat +
                          options.open_groups.size() * (options.common.repeat + 1));
        for (const std::uint32_t n_tokens : options.tokens) {
            rows.push_back(measure_length(options, n_tokens, cpus, progress));
        }
        waiting_rows = measure_waiting(options, cpus, progress);
        for (const std::uint64_t groups : options.open_groups) {
            progress.step(fmt::format("{} open groups", groups));
            machine_rows.emplace_back(groups, machine_ns(groups, options.common.seconds));
        }
    }
    if (options.common.json) {
        Json out = {{"question", "stash"}, {"machine", machine(cpus)}};
        for (const Row& row : rows) {
            out["rows"].push_back({{"tokens", row.n_tokens},
                                   {"polling_records_per_s", Spread::of(row.polling).json()},
                                   {"holding_records_per_s", Spread::of(row.holding).json()},
                                   {"stash_records_per_s", Spread::of(row.stash).json()},
                                   {"cost", Spread::of(row.cost).json()},
                                   {"cost_held", Spread::of(row.cost_held).json()},
                                   {"line_ns", Spread::of(row.line_ns).json()},
                                   {"copied_bytes", row.copied_bytes}});
        }
        for (const Waiting& row : waiting_rows) {
            out["waiting_groups"].push_back(
                {{"groups", row.groups}, {"records_per_s", Spread::of(row.rate).json()}});
        }
        for (const auto& [groups, ns] : machine_rows) {
            out["open_groups"].push_back({{"open_groups", groups}, {"ns_per_record", ns}});
        }
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print("{}\ngroups of {}, {} prompts interleaved, batches of {} groups; {} rounds\n",
               machine_line(cpus), group_size, options.interleaved, batch_groups,
               options.common.repeat);
    for (const Row& row : rows) {
        const Spread cost = Spread::of(row.cost);
        const Spread held = Spread::of(row.cost_held);
        fmt::print(
            "{:>6} tokens: polling {:>6.3f}, holding {:>6.3f}, stash {:>6.3f} M records/s; cost "
            "{:.2f} [{:.2f}-{:.2f}], of holding {:.2f} [{:.2f}-{:.2f}]; copied {} B; cache line "
            "{:.0f} ns\n",
            row.n_tokens, Spread::of(row.polling).median / 1e6,
            Spread::of(row.holding).median / 1e6, Spread::of(row.stash).median / 1e6, cost.median,
            cost.low, cost.high, held.median, held.low, held.high, row.copied_bytes,
            Spread::of(row.line_ns).median);
    }
    for (const Waiting& row : waiting_rows) {
        const Spread rate = Spread::of(row.rate);
        fmt::print("{:>7} groups wait: {:>6.3f} [{:.3f}-{:.3f}] M records/s of {} tokens\n",
                   row.groups, rate.median / 1e6, rate.low / 1e6, rate.high / 1e6, waiting_tokens);
    }
    for (const auto& [groups, ns] : machine_rows) {
        fmt::print(
            "{:>7} groups filled in a scattered order: {:>5.0f} ns a record, the machine "
            "alone\n",
            groups, ns);
    }
}

}  // namespace

void add_stash(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("stash", "groups and batches against plain polling");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->tokens, "tokens per record")
        ->capture_default_str()
        ->delimiter(',');
    sub->add_option("--open-groups", options->open_groups,
                    "groups that wait, and groups of the machine alone")
        ->capture_default_str()
        ->delimiter(',');
    sub->add_option("--interleaved", options->interleaved, "prompts whose rollouts come in turn")
        ->capture_default_str()
        ->check(CLI::Range(1, 100'000));
    sub->add_option("--batch", options->batch, "short records per flush")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    sub->add_option("--lane-bytes", options->lane_bytes, "capacity of the lane")
        ->capture_default_str();
    sub->callback([options] { run(*options); });
}

}  // namespace bench
