#include "consume_command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cli/progress.hpp"
#include "holder.hpp"
#include "record_output.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr std::uint64_t output_batch_bytes = std::uint64_t{1} << 20;

constexpr const char* footer =
    "Examples:\n"
    "  rollring consume r --until-closed --json            until all producers that came are gone\n"
    "  rollring consume r --until-closed --producers 4     ... and at least four came\n"
    "  rollring consume r --records 5276 --output out.jsonl\n"
    "  rollring consume r --hold 256                       release late and out of order, as "
    "training does\n"
    "Without --records or --until-closed it goes on until nothing arrived for --idle-timeout, or "
    "Ctrl-C.\n"
    "If --idle-timeout ends it before the target is met, the exit code is 1 and the message says "
    "what\n"
    "was missing. Every record is checked and every byte read; `digest` is the sum of the "
    "records'\n"
    "hashes, in whatever order they came: equal to the sum of what `rollring produce` reports.\n"
    "With --output - the report goes to stderr.";

enum class Reason { records, closed, idle, interrupted, failed };
constexpr const char* reason_names[] = {"records", "closed", "idle", "interrupted", "failed"};

// One run of `rollring consume`.
class Run {
  public:
    Run(const ConsumeOptions& options, Consumer consumer, std::optional<RecordOutput> output)
        : options_(&options),
          consumer_(std::move(consumer)),
          output_(std::move(output)),
          holder_(options.hold, options.hold_seed),
          progress_("consuming", options.json) {}

    int go();

  private:
    Reason loop();
    void take(const Record& record);
    void release(const RecordRef& record);
    bool flush();
    std::optional<Reason> idle();
    bool all_gone();
    void stop_clock();
    void tell_events();
    void finish();
    [[nodiscard]] bool met(Reason reason) const;
    [[nodiscard]] std::string missing() const;
    void report(Reason reason) const;
    [[nodiscard]] Json to_json(Reason reason) const;
    [[nodiscard]] double seconds() const;

    const ConsumeOptions* options_;
    Consumer consumer_;
    std::optional<RecordOutput> output_;
    Holder holder_;
    Progress progress_;
    std::vector<RecordRef> written_;  // to be released once the output is flushed
    Amount amount_;
    std::uint64_t redelivered_ = 0;
    std::uint64_t digest_ = 0;
    std::uint64_t incomplete_groups_ = 0;
    std::int64_t started_ns_ = monotonic_ns();
    std::int64_t first_ns_ = 0;
    std::int64_t last_ns_ = 0;
    bool busy_ = false;  // a record came since stop_clock()
};

void Run::take(const Record& record) {
    if (first_ns_ == 0) first_ns_ = monotonic_ns();
    busy_ = true;
    if (!options_->no_verify) digest_ += record.view.digest(consumer_.schema());
    amount_.records++;
    amount_.tokens += record.view.n_tokens();
    amount_.bytes += record.ref.bytes();
    redelivered_ += record.redelivered ? 1 : 0;
    if (output_) output_->add(record.view, consumer_.schema());
    if (const auto due = holder_.exchange(record.ref)) release(*due);
}

// What is written to a file is released only when the system has it.
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

// Notes when the last record was dealt with, without looking at the clock for each.
void Run::stop_clock() {
    if (busy_) last_ns_ = monotonic_ns();
    busy_ = false;
}

void Run::tell_events() {
    Event event;
    while (consumer_.next_event(event)) {
        if (options_->quiet && (event.kind == Event::Kind::producer_joined ||
                                event.kind == Event::Kind::producer_closed)) {
            continue;
        }
        progress_.clear();
        std::string text = fmt::format("{}: lane {} epoch {} '{}'", name(event.kind), event.lane,
                                       event.epoch, event.producer);
        if (event.kind != Event::Kind::producer_joined) {
            text += fmt::format(", {} records", event.records);
        }
        if (!event.detail.empty()) text += ": " + event.detail;
        note(text);
    }
}

bool Run::all_gone() {
    if (consumer_.producers_active() != 0) return false;
    // Those whose lane a consumer before us already closed do not join again.
    const std::uint64_t came = consumer_.stats().producers_joined;
    return came >= options_->producers || (came == 0 && redelivered_ > 0);
}

// Called when nothing is there; a reason to end, or nothing.
std::optional<Reason> Run::idle() {
    stop_clock();
    if (!flush()) return Reason::failed;
    tell_events();
    if (options_->until_closed && all_gone()) {
        // A last record may lie between the look at the lanes and the look at the producers.
        Record record;
        if (consumer_.poll(record) != Poll::record) return Reason::closed;
        take(record);
        return std::nullopt;
    }
    const std::int64_t quiet_since = std::max(started_ns_, last_ns_);
    if (options_->idle_ms > 0 && monotonic_ns() - quiet_since > options_->idle_ms * 1'000'000) {
        return Reason::idle;
    }
    return std::nullopt;
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
        }
        if (got == Poll::record) {
            take(record);
            if ((turns & 1023U) == 0) tell_events();
            if (output_ && output_->waiting_bytes() >= output_batch_bytes && !flush()) {
                return Reason::failed;
            }
        }
        if (progress_.due()) {
            const auto most = static_cast<double>(options_->records_max);
            progress_.draw(amount_, most > 0
                                        ? std::optional(static_cast<double>(amount_.records) / most)
                                        : std::nullopt);
        }
    }
    return Reason::interrupted;
}

void Run::finish() {
    for (const auto& record : holder_.take_all()) release(record);
    if (output_) incomplete_groups_ = output_->finish();
    static_cast<void>(flush());
    tell_events();
    progress_.clear();
}

bool Run::met(Reason reason) const {
    const bool wanted = options_->records_max != 0 || options_->until_closed;
    return reason == Reason::records || reason == Reason::closed ||
           (reason == Reason::idle && !wanted);
}

// What the idle time-out found missing, and who could still bring it.
std::string Run::missing() const {
    std::string text = fmt::format("nothing arrived for {}",
                                   duration_text(static_cast<double>(options_->idle_ms) * 1e-3));
    if (options_->records_max != 0) {
        text += fmt::format(", and {} of {} records are missing",
                            options_->records_max - amount_.records, options_->records_max);
    } else {
        text += fmt::format(", {} of {} producers have come and {} are still there",
                            consumer_.stats().producers_joined, options_->producers,
                            consumer_.producers_active());
    }
    if (const auto stat = stat_ring(options_->ring)) {
        std::string alive;
        for (const auto& lane : stat->lanes) {
            if (lane.alive)
                alive += fmt::format(" '{}' (lane {}, pid {})", lane.producer, lane.lane, lane.pid);
        }
        text += alive.empty() ? "; no producer is alive" : "; alive:" + alive;
    }
    if (holder_.held() != 0) {
        text += fmt::format("; {} records are held back: if the lanes are full, lower --hold",
                            holder_.held());
    }
    return text + ". Start what is missing, or raise --idle-timeout";
}

double Run::seconds() const {
    if (first_ns_ == 0) return 0;
    return static_cast<double>(std::max<std::int64_t>(1, last_ns_ - first_ns_)) * 1e-9;
}

Json Run::to_json(Reason reason) const {
    const ConsumerStats stats = consumer_.stats();
    const double rate = seconds() > 0 ? 1 / seconds() : 0;
    Json json{{"ring", options_->ring},
              {"reason", reason_names[static_cast<std::size_t>(reason)]},
              {"records", amount_.records},
              {"tokens", amount_.tokens},
              {"bytes", amount_.bytes},
              {"lost", stats.lost},
              {"duplicates", stats.duplicates},
              {"torn", stats.torn},
              {"redelivered", stats.redelivered},
              {"producers_joined", stats.producers_joined},
              {"producers_closed", stats.producers_closed},
              {"producers_lost", stats.producers_lost},
              {"quarantines", stats.quarantines},
              {"dropped_bytes", stats.dropped_bytes},
              {"released", stats.released},
              {"seconds", seconds()},
              {"tokens_per_s", static_cast<double>(amount_.tokens) * rate},
              {"gb_per_s", static_cast<double>(amount_.bytes) * 1e-9 * rate},
              {"digest", nullptr}};
    if (!options_->no_verify) json["digest"] = digest_text(digest_);
    if (output_) json["incomplete_groups"] = incomplete_groups_;
    return json;
}

void Run::report(Reason reason) const {
    const Json json = to_json(reason);
    std::string text;
    if (options_->json) {
        text = dump_json(json) + "\n";
    } else {
        text = fmt::format("received {} records, {} tokens, {} in {}: {} tokens/s, {:.2f} GB/s\n",
                           count_text(amount_.records), count_text(amount_.tokens),
                           bytes_text(amount_.bytes), duration_text(seconds()),
                           short_text(json["tokens_per_s"].get<double>()),
                           json["gb_per_s"].get<double>());
        for (const char* key : {"lost", "duplicates", "torn", "redelivered", "producers_lost"}) {
            text += fmt::format("{} {}  ", key, json[key].get<std::uint64_t>());
        }
        text += options_->no_verify ? "(not verified)\n"
                                    : fmt::format("\ndigest {}\n", digest_text(digest_));
    }
    if (options_->output == "-") {
        static_cast<void>(std::fputs(text.c_str(), stderr));
    } else {
        print(text);
    }
}

int Run::go() {
    const Reason reason = loop();
    const std::string why = reason == Reason::idle && !met(reason) ? missing() : std::string();
    stop_clock();
    finish();
    report(reason);
    if (output_ && !output_->problem().empty()) return fail(Errc::system, output_->problem());
    if (incomplete_groups_ != 0) {
        note(fmt::format("{} atropos groups were not complete; their members that came are written",
                         incomplete_groups_));
    }
    if (reason == Reason::interrupted) return interrupt_exit();
    if (!why.empty()) return fail(Errc::not_ready, why);
    const ConsumerStats stats = consumer_.stats();
    if (stats.lost + stats.torn + stats.quarantines != 0) {
        return fail(
            Errc::bad_record,
            fmt::format("{} records lost, {} torn, {} lanes quarantined ({} bytes given up): "
                        "some producer is damaged; see the lines above",
                        stats.lost, stats.torn, stats.quarantines, stats.dropped_bytes));
    }
    return exit_ok;
}

}  // namespace

int consume(const ConsumeOptions& options) {
    std::optional<RecordOutput> output;
    if (!options.output.empty()) {
        auto opened = RecordOutput::open(options.output);
        if (!opened) return fail(opened.error());
        output.emplace(std::move(*opened));
    }
    ConsumerOptions consumer_options;
    auto consumer = open_patiently<Consumer>(options.attach_ms, [&](std::int64_t try_ms) {
        consumer_options.attach_timeout_ms = try_ms;
        return Consumer::open(options.ring, consumer_options);
    });
    if (!consumer) return interrupted() ? interrupt_exit() : fail(consumer.error());
    return Run(options, std::move(*consumer), std::move(output)).go();
}

Command add_consume(CLI::App& app) {
    auto options = std::make_shared<ConsumeOptions>();
    CLI::App* sub = app.add_subcommand("consume", "Receive, verify and count records");
    sub->footer(footer);
    add_ring_name(sub, options->ring);
    sub->add_option("--records", options->records_max, "End after so many records; 0: no limit")
        ->type_name("N")
        ->capture_default_str();
    sub->add_flag("--until-closed", options->until_closed,
                  "End when all producers that came are gone and drained");
    sub->add_option("--producers", options->producers,
                    "With --until-closed: so many must have come")
        ->type_name("N")
        ->capture_default_str();
    add_duration(sub, "--idle-timeout", options->idle_ms,
                 "End when nothing arrived for so long; 0: never")
        ->default_str("10s");
    add_duration(sub, "--attach-timeout", options->attach_ms,
                 "How long to wait for the ring, and for its consumer seat to be free")
        ->default_str("30s");
    sub->add_option("-o,--output", options->output,
                    "Write the records as JSON lines, each in the format it came in;\n"
                    "- is standard output")
        ->type_name("FILE");
    sub->add_option("--hold", options->hold, "Release each record K to 2K records later, shuffled")
        ->type_name("K")
        ->capture_default_str();
    sub->add_option("--hold-seed", options->hold_seed, "Seed of that shuffle")
        ->type_name("S")
        ->capture_default_str();
    sub->add_flag("--no-verify", options->no_verify, "Do not read the payload: no digest");
    sub->add_flag("-q,--quiet", options->quiet, "No lines about producers that come and go");
    sub->add_flag("--json", options->json, "Report as one JSON object on stdout");
    add_parent(sub, options->parent);
    return {sub, [options] {
                follow_parent(options->parent);
                return consume(*options);
            }};
}

}  // namespace rollring::cli
