// Question: what does it cost to have groups instead of records, and does it stay flat?

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "questions.hpp"
#include "ring/records.hpp"
#include "rollring/stash.hpp"

namespace bench {
namespace {

constexpr std::uint32_t group_size = 8;
constexpr std::uint32_t batch_groups = 32;
constexpr std::uint32_t waiting_tokens = 64;
constexpr std::uint64_t waiting_lane_bytes = std::uint64_t{8} << 20;
// A place is given to a group whose members will all fit; some of the spill is kept free.
constexpr std::uint64_t spill_bytes_per_group = 16'384;
constexpr std::uint64_t waiting_warmup = 1'000'000;  // records

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
void produce(const StashQuestion& options, const std::string& ring, Board& board, const Plan& plan,
             std::uint64_t waiting) {
    Sender sender(board, ring);
    const Source source(plan.n_tokens);
    board.meet();
    for (std::uint64_t i = 0; i < waiting + plan.total(); i++) {
        const bool waits = i < waiting;
        const std::uint64_t sequence = waits ? i : i - waiting;
        const Position at = waits ? Position{i, 0} : position_of(sequence, options.interleaved);
        char name[24];
        const auto end = fmt::format_to(name, "{}{}", waits ? "w" : "", at.group);
        rollring::Draft draft(std::string_view(name, static_cast<std::size_t>(end - name)));
        draft.meta.repetition_id = at.member;
        draft.meta.reward = at.member;
        fill(draft, source[sequence]);
        sender.push(draft, (i + 1) % plan.batch == 0);
    }
    sender.producer().flush();
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

void poll_records(const std::string& ring, Board& board, const Plan& plan) {
    auto consumer = must(board, rollring::Consumer::open(ring));
    board.meet();
    Clock clock(board, plan);
    rollring::Record record;
    while (!clock.done()) {
        if (consumer.poll(record) != rollring::Poll::record) {
            relax();
            continue;
        }
        check(board, record.view);
        consumer.release(record.ref);
        clock.count(1);
    }
}

// As many records as a batch has are at hand before the first one is read, and are given back
// together: how memory is used then, without anything that a stash does.
void hold_batches(const std::string& ring, Board& board, const Plan& plan) {
    auto consumer = must(board, rollring::Consumer::open(ring));
    board.meet();
    Clock clock(board, plan);
    std::vector<rollring::Record> held(std::size_t{group_size} * batch_groups);
    while (!clock.done()) {
        for (rollring::Record& record : held) {
            while (consumer.poll(record) != rollring::Poll::record) relax();
        }
        for (const rollring::Record& record : held) check(board, record.view);
        for (const rollring::Record& record : held) consumer.release(record.ref);
        clock.count(held.size());
    }
}

// `window`: among so many of the oldest groups; 0 for the window that is usual.
template <rollring::Order order, std::uint32_t window = 0>
void take_batches(const std::string& ring, Board& board, const Plan& plan) {
    rollring::StashOptions wanted{.group_size = group_size,
                                  .order = order,
                                  .batch = rollring::BatchTarget::groups(batch_groups)};
    if (window != 0) wanted.advanced.window_fraction = static_cast<double>(batch_groups) / window;
    auto stash =
        must(board, rollring::Stash::open(ring, wanted, {.spin = std::chrono::microseconds(1000)}));
    board.meet();
    Clock clock(board, plan);
    rollring::Batch batch;
    for (std::int64_t step = 0; !clock.done(); step++) {
        const auto got = stash->next(batch, rollring::Deadline::after_ms(10'000));
        if (got != rollring::NextBatch::batch) board.give_up("no batch within 10 s");
        for (const rollring::Sequence& sequence : batch.sequences()) check(board, sequence.view);
        const std::uint64_t records = batch.sequences().size();
        must(board, batch.ack(step));
        clock.count(records);
    }
    board.figures[1] = static_cast<std::int64_t>(stash->copies().copied_bytes);
    board.figures[2] = static_cast<std::int64_t>(stash->open_groups());
}

using Consume = void (*)(const std::string&, Board&, const Plan&);
constexpr Consume take_batches_in_order = take_batches<rollring::Order::windowed>;
// A window over the oldest stands still before groups that wait, unless it is wider. It is searched
// for every batch, so the widest one is for few groups that wait.
constexpr Consume take_fresh_batches = take_batches<rollring::Order::freshest>;
constexpr std::uint32_t wide_window = 1024;
constexpr Consume take_wide_batches = take_batches<rollring::Order::windowed, wide_window>;

Measured measure_once(const StashQuestion& options, const Plan& plan, const Cpus& cpus,
                      Consume consume, std::uint64_t waiting = 0) {
    rollring::RingOptions wanted{.lanes = 1, .lane_bytes = parse_bytes(options.lane_bytes)};
    if (waiting != 0) {
        wanted.lane_bytes = waiting_lane_bytes;
        wanted.group_rows = static_cast<std::uint32_t>(waiting + 1024);
        wanted.spill_bytes = spill_bytes_per_group * waiting + (std::uint64_t{64} << 20);
    }
    const ScratchRing ring(wanted);
    return measure({"stash",
                    [&](Board& board, const Plan& given) {
                        produce(options, ring.name(), board, given, waiting);
                    },
                    [&](Board& board, const Plan& given) { consume(ring.name(), board, given); }},
                   plan, cpus);
}

// Whole batches, whatever the interleaving.
std::uint64_t whole_batches(const StashQuestion& options, std::uint64_t records) {
    const std::uint64_t whole = std::uint64_t{batch_groups} * options.interleaved * group_size;
    return (records / whole + 1) * whole;
}

Json measure_length(const StashQuestion& options, std::uint32_t n_tokens, const Cpus& cpus,
                    Progress& progress) {
    // First a lap of the lane, so that its pages are in both processes' tables and nothing grows
    // any more.
    const std::uint64_t lap =
        parse_bytes(options.lane_bytes) / (std::uint64_t{n_tokens} * token_bytes);
    Plan plan{.n_tokens = n_tokens,
              .records = whole_batches(options, lap),
              .warmup = whole_batches(options, 2 * lap),
              .batch = n_tokens < 1024 ? options.batch : 1};
    const double rate =
        measure_once(options, plan, cpus, take_batches_in_order).tokens_per_s / n_tokens;
    plan.records =
        whole_batches(options, static_cast<std::uint64_t>(rate * options.common.seconds));
    Figures figures;
    std::int64_t copied_bytes = 0;
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        progress.step(fmt::format("polling, {} tokens", n_tokens));
        const Measured plain = measure_once(options, plan, cpus, poll_records);
        progress.step(fmt::format("polling and holding, {} tokens", n_tokens));
        const Measured held = measure_once(options, plan, cpus, hold_batches);
        progress.step(fmt::format("stash, {} tokens", n_tokens));
        const Measured groups = measure_once(options, plan, cpus, take_batches_in_order);
        if (interrupted()) break;
        figures.add("polling_records_per_s", plain.tokens_per_s / n_tokens);
        figures.add("holding_records_per_s", held.tokens_per_s / n_tokens);
        figures.add("stash_records_per_s", groups.tokens_per_s / n_tokens);
        figures.add("cost", plain.tokens_per_s / groups.tokens_per_s);
        figures.add("cost_held", held.tokens_per_s / groups.tokens_per_s);
        figures.add("line_ns", plain.line_ns);
        copied_bytes = groups.figures[1];
    }
    Json row = {{"tokens", n_tokens}};
    figures.append_to(row);
    row["copied_bytes"] = copied_bytes;
    return row;
}

// Short records through the stash while so many groups wait for their other members. Those lie in
// the spill by the time that is measured: the lane is small, and the warm-up long.
double waiting_rate(const StashQuestion& options, Plan& plan, const Cpus& cpus, Consume consume,
                    std::uint64_t groups) {
    const Measured run = measure_once(options, plan, cpus, consume, groups);
    if (interrupted()) return 0;
    if (std::cmp_less(run.figures[2], groups)) {
        fail(fmt::format("{} groups should have waited, {} were open", groups, run.figures[2]));
    }
    const double rate = run.tokens_per_s / plan.n_tokens;
    plan.records =
        whole_batches(options, static_cast<std::uint64_t>(rate * options.common.seconds));
    return rate;
}

Json measure_waiting(const StashQuestion& options, const Cpus& cpus, Progress& progress) {
    std::vector<Figures> found(options.open_groups.size());
    Plan plan{.n_tokens = waiting_tokens,
              .records = whole_batches(options, waiting_warmup / 4),
              .warmup = whole_batches(options, waiting_warmup),
              .batch = options.batch};
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        for (std::size_t i = 0; i < found.size() && !interrupted(); i++) {
            const std::uint64_t groups = options.open_groups[i];
            progress.step(fmt::format("{} groups wait", groups));
            const double fresh = waiting_rate(options, plan, cpus, take_fresh_batches, groups);
            const double wide = groups < wide_window / 2 && !interrupted()
                                    ? waiting_rate(options, plan, cpus, take_wide_batches, groups)
                                    : 0;
            if (interrupted()) break;
            found[i].add("records_per_s", fresh);
            if (wide > 0) found[i].add("windowed_records_per_s", wide);
        }
    }
    Json rows = Json::array();
    for (std::size_t i = 0; i < found.size(); i++) {
        rows.push_back({{"groups", options.open_groups[i]}});
        found[i].append_to(rows.back());
    }
    return rows;
}

}  // namespace

void run(const StashQuestion& options) {
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "stash"}, {"machine", machine(cpus)}};
    {
        Progress progress((options.tokens.size() * 3 + options.open_groups.size()) *
                          options.common.repeat);
        for (const std::uint32_t n_tokens : options.tokens) {
            out["rows"].push_back(measure_length(options, n_tokens, cpus, progress));
        }
        out["waiting_groups"] = measure_waiting(options, cpus, progress);
    }
    print_report(out, options.common.json);
}

}  // namespace bench
