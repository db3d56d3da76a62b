#include "cli/commands/consume.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cli/commands/consume_run.hpp"
#include "cli/commands/holder.hpp"
#include "cli/formats/json_tree.hpp"
#include "cli/records/record_output.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint64_t output_batch_bytes = std::uint64_t{1} << 20;

constexpr const char* consume_footer = R"(Examples:
  rollring consume r --until-closed --json    # until all producers have left
  rollring consume r --until-closed --producers 4    # ... and at least four have joined
  rollring consume r --records 5276 --output out.jsonl
  rollring consume r --hold 256    # release late and out of order, as training does
  rollring consume r --group-size auto --until-closed    # complete GRPO groups in batches
  rollring consume r --group-size auto --output groups.jsonl --output-format records
Without --records or --until-closed, the command runs until nothing has arrived for
--idle-timeout, or until Ctrl-C. If --idle-timeout expires before the target is met, the
exit code is 1 and the message names the missing part.
Every record is checked and every byte is read. `digest` is the sum of the records'
hashes, independent of their order; it equals the sum of the digests that `rollring
produce` reports. With --output - the report goes to stderr.
With --group-size, `digest` covers the records in acknowledged batches. --until-closed
then also waits for a --deadline that expires before --idle-timeout. At the end, complete
groups ship as a last, smaller batch; incomplete groups stay in the ring. Ctrl-C while a
batch is held puts it back; it is delivered again.)";

// One run of `rollring consume`.
class Run {
  public:
    Run(const ConsumeOptions& options, Consumer consumer, std::optional<RecordOutput> output)
        : options_(&options),
          consumer_(std::move(consumer)),
          output_(std::move(output)),
          holder_(options.hold, options.hold_seed),
          progress_("consuming", options.json),
          quiet_(options) {}

    int go();

  private:
    Reason loop();
    void take(const Record& record);
    void release(const RecordRef& record);
    bool flush();
    std::optional<Reason> idle();
    void finish();
    void report(Reason reason) const;

    const ConsumeOptions* options_;
    Consumer consumer_;
    std::optional<RecordOutput> output_;
    Holder holder_;
    Progress progress_;
    std::vector<RecordRef> written_;  // to be released once the output is flushed
    Amount amount_;
    std::uint64_t digest_ = 0;
    std::uint64_t incomplete_groups_ = 0;
    RunClock clock_;
    Quiet quiet_;
};

void Run::take(const Record& record) {
    clock_.came(clock_.started() ? 0 : monotonic_ns());
    if (!options_->no_verify) digest_ += record.view.digest(consumer_.schema());
    amount_.records++;
    amount_.tokens += record.view.n_tokens();
    amount_.bytes += record.ref.bytes();
    if (output_) output_->add(record.view, consumer_.schema());
    if (const auto due = holder_.exchange(record.ref)) release(*due);
}

// A record that is written to a file is released only once the system has it.
void Run::release(const RecordRef& record) {
    if (output_) {
        written_.push_back(record);
    } else {
        consumer_.release(record);
    }
}

bool Run::flush() {
    if (!output_) return true;
    if (!output_->flush()) return false;
    for (const auto& record : written_) consumer_.release(record);
    written_.clear();
    return true;
}

// Called when there is no record; returns a reason to end, or nothing.
std::optional<Reason> Run::idle() {
    clock_.stop();
    if (!flush()) return Reason::failed;
    tell_events(consumer_, progress_, options_->quiet);
    quiet_.look(received_by(consumer_), clock_);
    if (options_->until_closed && all_gone(received_by(consumer_), *options_)) {
        // A last record may come between the check of the lanes and the check of the producers.
        Record record;
        if (consumer_.poll(record) != Poll::record) return Reason::closed;
        take(record);
        return std::nullopt;
    }
    return clock_.quiet_for(options_->idle_ms) ? std::optional(Reason::idle) : std::nullopt;
}

Reason Run::loop() {
    constexpr std::int64_t slice_ns = 50'000'000;
    Record record;
    for (std::uint64_t turns = 0; !interrupted(); turns++) {
        if (options_->records_max != 0 && amount_.records >= options_->records_max) {
            return Reason::records;
        }
        Poll got = consumer_.poll(record);
        if (got == Poll::empty) {
            if (const auto reason = idle()) return *reason;
            const std::int64_t wait_ns = options_->idle_ms > 0
                                             ? std::min(slice_ns, options_->idle_ms * 1'000'000)
                                             : slice_ns;
            got = consumer_.wait(record, Deadline::after_ns(wait_ns));
            if (got == Poll::closed) return Reason::removed;
        }
        if (got == Poll::record) {
            take(record);
            if ((turns & 1023U) == 0) tell_events(consumer_, progress_, options_->quiet);
            if (output_ && output_->waiting_bytes() >= output_batch_bytes && !flush()) {
                return Reason::failed;
            }
        }
        if (progress_.due()) draw(progress_, amount_, *options_);
    }
    return Reason::interrupted;
}

void Run::finish() {
    for (const auto& record : holder_.take_all()) release(record);
    if (output_) incomplete_groups_ = output_->finish();
    static_cast<void>(flush());
    tell_events(consumer_, progress_, options_->quiet);
    progress_.clear();
}

void Run::report(Reason reason) const {
    Json json = run_json(*options_, reason, consumer_.stats(), clock_.seconds(), digest_);
    if (output_) json["incomplete_groups"] = incomplete_groups_;
    print_report(*options_, options_->json ? dump_json(json) + "\n" : run_text(*options_, json));
}

int Run::go() {
    const Reason reason = loop();
    const std::size_t held = holder_.held();
    clock_.stop();
    finish();
    report(reason);
    if (output_ && output_->problem()) return fail(*output_->problem());
    if (incomplete_groups_ != 0) {
        note(fmt::format("{}: the members that arrived are written",
                         counted(incomplete_groups_, "incomplete atropos group")));
    }
    const std::string more =
        held == 0 ? ""
                  : fmt::format("; {} held back: if the lanes are full, lower --hold",
                                counted(held, "record"));
    return conclude(*options_, reason, received_by(consumer_), more);
}

}  // namespace

int consume(const ConsumeOptions& options) {
    if (options.train.on) return train(options);
    std::optional<RecordOutput> output;
    if (!options.output.empty()) {
        auto opened = LineOutput::open(options.output);
        if (!opened) return fail(opened.error());
        output.emplace(std::move(*opened));
    }
    ConsumerOptions consumer_options;
    auto consumer = open_patiently<Consumer>(options.attach_ms, [&](std::int64_t try_ms) {
        consumer_options.attach_timeout = std::chrono::milliseconds(try_ms);
        return Consumer::open(options.ring, consumer_options);
    });
    if (!consumer) return interrupted() ? interrupt_exit() : fail(consumer.error());
    return Run(options, std::move(*consumer), std::move(output)).go();
}

Command add_consume(CLI::App& app) {
    auto options = std::make_shared<ConsumeOptions>();
    CLI::App* sub = app.add_subcommand("consume", "Receive, verify and count records");
    sub->footer(consume_footer);
    add_ring_name(sub, options->ring);
    sub->add_option("--records", options->records_max, "Stop after N records; 0: no limit")
        ->type_name("N")
        ->capture_default_str();
    sub->add_flag("--until-closed", options->until_closed,
                  "Stop when all producers have left and are drained");
    sub->add_option("--producers", options->producers,
                    "With --until-closed: minimum number of producers")
        ->type_name("N")
        ->capture_default_str();
    add_duration(sub, "--idle-timeout", options->idle_ms,
                 "Stop when nothing has arrived for this long; 0: never")
        ->default_str("10s");
    add_duration(sub, "--attach-timeout", options->attach_ms,
                 "How long to wait for the ring and for its consumer seat")
        ->default_str("30s");
    sub->add_option("-o,--output", options->output,
                    "Write the records as JSON lines, each in its input format;\n"
                    "with --group-size see --output-format;\n"
                    "-: standard output")
        ->type_name("FILE");
    CLI::Option* group_size = add_train_options(sub, options->train);
    sub->add_option("--hold", options->hold,
                    "Release each record K to 2K records later, in random order")
        ->type_name("K")
        ->excludes(group_size)
        ->capture_default_str();
    sub->add_option("--hold-seed", options->hold_seed, "Seed of that random order")
        ->type_name("S")
        ->capture_default_str();
    sub->add_flag("--no-verify", options->no_verify, "Skip reading the payload; no digest");
    sub->add_flag("-q,--quiet", options->quiet, "Do not report producers that join and leave");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    add_parent(sub, options->parent);
    return {sub, [options] {
                follow_parent(options->parent);
                return consume(*options);
            }};
}

}  // namespace rollring::cli
