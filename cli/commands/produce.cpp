#include "cli/commands/produce.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <set>

#include "cli/commands/train.hpp"
#include "cli/commands/willing_source.hpp"
#include "cli/formats/json_tree.hpp"
#include "cli/formats/parsed_record.hpp"
#include "cli/terminal/progress.hpp"

namespace rollring::cli {
namespace {

constexpr const char* produce_footer = R"(Examples:
  rollring produce r --input rollouts.jsonl
  rollring produce r --input rollouts.jsonl --shard 0/4    # first of 4 producers
  rollring produce r --input groups.jsonl --format atropos
  rollring produce r --synthetic groups=10,tokens=512:4096 --rate 100000
  rollring produce --input rollouts.jsonl --digest --json    # send nothing, only count
A line is {"instance_id":"gsm8k/0","token_ids":[...],"n_prompt":63,"reward":0}. Members
without a repetition_id are numbered in the order of the file. `rollring formats` shows
all keys and other formats. Unknown keys are kept in the record and written back.)";

struct FreeAligned {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};

struct Sent {
    Amount amount;
    std::uint64_t digest = 0;
    std::uint64_t skipped_bad = 0;
    std::uint64_t waits = 0;
    std::string bad;  // the bad record that ended it, with its position
};

// Prints each remark of a source once.
class Remarks {
  public:
    explicit Remarks(bool silent) : silent_(silent) {}
    void tell(const RecordSource& source) {
        if (silent_) return;
        for (const std::string& remark : source.remarks()) {
            if (told_.insert(remark).second) note(remark);
        }
    }

  private:
    bool silent_;
    std::set<std::string> told_;
};

// waits: there is no place for its group yet; retry, or send another record first.
enum class Outcome { sent, bad, stopped, failed, waits };

// The destination of records: a ring or, for --digest, nothing.
class Sink {
  public:
    explicit Sink(const ProduceOptions& options)
        : options_(&options), waiting_(options.timeout_ms) {}

    Result<void> open();
    Outcome send(const Draft& draft);
    // For WillingSource.
    [[nodiscard]] GroupWanted group_of(const Draft& draft) const;
    [[nodiscard]] bool may_send(const GroupWanted& group);
    void flush();
    void close();

    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] const Producer* producer() const { return producer_ ? &*producer_ : nullptr; }

    Sent sent;

  private:
    Outcome send_to_ring(const Draft& draft);
    Outcome digest_only(const Draft& draft);
    Outcome wait_is_over(std::int64_t waited_ns, const Draft& draft);

    const ProduceOptions* options_;
    std::optional<Producer> producer_;
    std::unique_ptr<std::byte[], FreeAligned> memory_;
    std::uint64_t memory_bytes_ = 0;
    std::uint64_t pending_ = 0;  // of the batch
    std::uint64_t slices_ = 0;   // slices of waits, to poll for interrupts
    std::int64_t waits_since_ns_ = 0;
    std::int64_t moment_ms_ = 1;
    Waiting waiting_;
    std::string problem_;
};

Result<void> Sink::open() {
    if (options_->digest_only) return {};
    ProducerOptions options{.name = options_->producer_name};
    if (options.name.empty() && !options_->input.shard.empty()) {
        options.name = "produce " + options_->input.shard;
    }
    if (options_->checksum == "xxh3") options.checksum = Checksum::xxh3;
    auto opened = open_patiently<Producer>(
        std::min<std::int64_t>(options_->timeout_ms, 30'000), [&](std::int64_t try_ms) {
            options.attach_timeout = std::chrono::milliseconds(try_ms);
            return Producer::open(options_->ring, options);
        });
    if (!opened) return std::unexpected(opened.error());
    if (!has_standard_columns(opened->schema())) {
        return refused(Errc::bad_record,
                       "ring '" + options_->ring +
                           "' does not begin with the standard columns, which this "
                           "program fills: use the library");
    }
    producer_.emplace(std::move(*opened));
    return {};
}

Outcome Sink::send(const Draft& draft) {
    const Outcome outcome = producer_ ? send_to_ring(draft) : digest_only(draft);
    if (outcome == Outcome::sent) {
        sent.amount.records++;
        sent.amount.tokens += draft.n_tokens();
    }
    return outcome;
}

Outcome Sink::send_to_ring(const Draft& draft) {
    constexpr std::int64_t slice_ms = 200;
    constexpr std::int64_t moment_max_ms = 8;
    Reservation reservation;
    bool for_place = false;
    for (Deadline deadline = Deadline::now();;) {
        const Push push = producer_->reserve(draft, deadline, reservation);
        if (push == Push::ok) break;
        problem_ = producer_->problem();
        if (push == Push::bad_record || push == Push::too_large) return Outcome::bad;
        if (push != Push::timed_out) return Outcome::failed;
        slices_++;
        if (waits_since_ns_ == 0) waits_since_ns_ = monotonic_ns();
        const Outcome over = wait_is_over(monotonic_ns() - waits_since_ns_, draft);
        if (over != Outcome::sent) return over;
        if (for_place) return Outcome::waits;
        // While a group waits for its place, another group whose members we have may open.
        for_place = !may_send(group_of(draft));
        moment_ms_ = for_place ? std::min(2 * moment_ms_, moment_max_ms) : 1;
        deadline = Deadline::after_ms(for_place ? moment_ms_ : slice_ms);
    }
    waits_since_ns_ = 0;
    moment_ms_ = 1;
    waiting_.over();
    sent.digest += reservation.view().digest(producer_->schema());
    const bool now = ++pending_ >= options_->batch;
    if (now) pending_ = 0;
    if ((now ? reservation.commit() : reservation.commit_later()) != Push::ok) {
        problem_ = producer_->problem();
        return Outcome::failed;
    }
    const ProducerStats stats = producer_->stats();
    sent.amount.bytes = stats.bytes;
    sent.waits = stats.waits - std::min(stats.waits, slices_);
    return Outcome::sent;
}

// Outcome::sent means: keep waiting.
Outcome Sink::wait_is_over(std::int64_t waited_ns, const Draft& draft) {
    if (interrupted()) return Outcome::stopped;
    if (waited_ns >= options_->timeout_ms * 1'000'000) {
        // A group without a place waits for memory or for a number of groups, as the problem says.
        const bool lane_is_full = may_send(group_of(draft));
        problem_ += fmt::format(
            "; waited {}. Start a consumer that releases its records, {}or "
            "raise --timeout",
            duration_text(static_cast<double>(waited_ns) * 1e-9),
            lane_is_full ? "create the ring with larger lanes, " : "");
        return Outcome::failed;
    }
    // A trainer that is attached may just be training.
    const std::int64_t patience_ns = options_->quiet ? 30'000'000'000 : 1'000'000'000;
    const bool alone = !producer_->consumer_alive() && !options_->quiet;
    if (alone || waited_ns > patience_ns) waiting_.tell(problem_);
    return Outcome::sent;
}

Outcome Sink::digest_only(const Draft& draft) {
    const Schema& schema = Schema::standard();
    const Encoder encoder(draft, schema, Checksum::none);
    problem_ = encoder.problem();
    if (!problem_.empty()) return Outcome::bad;
    if (encoder.bytes() > memory_bytes_) {
        memory_bytes_ = encoder.bytes() + encoder.bytes() / 2;
        memory_.reset();
        memory_.reset(
            static_cast<std::byte*>(::operator new[](memory_bytes_, std::align_val_t{64})));
    }
    const std::span to(memory_.get(), encoder.bytes());
    encoder.write(to, 0, -1);
    TrajectoryView view;
    problem_ = view.parse(to, schema);
    if (!problem_.empty()) return Outcome::bad;
    sent.digest += view.digest(schema);
    sent.amount.bytes += encoder.bytes();
    return Outcome::sent;
}

GroupWanted Sink::group_of(const Draft& draft) const {
    GroupWanted wanted{std::string(draft.instance_id()), draft.meta.visit, {}};
    if (!producer_) return wanted;
    const Encoder encoder(draft, producer_->schema(), Checksum::none);
    wanted.plan = {draft.meta.group_size, encoder.problem().empty() ? encoder.bytes() : 0};
    return wanted;
}

bool Sink::may_send(const GroupWanted& group) {
    return !producer_ || producer_->may_send(group.instance_id, group.visit, group.plan);
}

void Sink::flush() {
    pending_ = 0;
    if (producer_) producer_->flush();
}

void Sink::close() {
    if (producer_) producer_->close();
}

// Sleeps as long as the sender is ahead of the wanted rate.
void keep_rate(Sink& sink, double tokens_per_s, std::int64_t started_ns) {
    for (bool flushed = false; tokens_per_s > 0 && !interrupted();) {
        const double due_s = static_cast<double>(sink.sent.amount.tokens) / tokens_per_s;
        const double ahead_s = due_s - static_cast<double>(monotonic_ns() - started_ns) * 1e-9;
        if (ahead_s < 0.001) return;
        if (!flushed) sink.flush();
        flushed = true;
        pause_ms(std::clamp<std::int64_t>(static_cast<std::int64_t>(ahead_s * 1e3), 1, 100));
    }
}

// In a demo, the parent reports it once for all producers.
int fail_at(const ProduceOptions& options, Progress& progress, Sink& sink, std::string message) {
    progress.clear();
    sink.sent.bad = std::move(message);
    if (options.parent != 0) return exit_failed;
    return fail(Errc::bad_record, fmt::format("{} ({} {} before it)", sink.sent.bad,
                                              counted(sink.sent.amount.records, "record"),
                                              sink.producer() != nullptr ? "sent" : "read"));
}

// Sends until the end; returns the exit code.
int send_all(const ProduceOptions& options, RecordSource& source, Sink& sink, Progress& progress,
             const std::function<void()>& look_at_first) {
    const std::int64_t started_ns = monotonic_ns();
    Draft draft;
    while (!interrupted()) {
        if (sink.sent.amount.records >= options.records_max.value_or(UINT64_MAX)) break;
        const Next next = source.next(draft);
        if (next == Next::end) break;
        if (next == Next::failed) return fail(Errc::system, source.problem());
        std::string bad = next == Next::bad ? source.problem() : std::string();
        if (next == Next::record) {
            if (sink.sent.amount.records == 0) look_at_first();
            Outcome outcome = sink.send(draft);
            if (outcome == Outcome::waits && source.put_back()) continue;
            while (outcome == Outcome::waits) outcome = sink.send(draft);
            if (outcome == Outcome::stopped) break;
            if (outcome == Outcome::failed) {
                progress.clear();
                return fail(Errc::busy, sink.problem());
            }
            if (outcome == Outcome::bad) {
                bad = fmt::format("{}: {}", source.where(), sink.problem());
            }
        }
        if (!bad.empty()) {
            if (!options.input.skip_bad) return fail_at(options, progress, sink, std::move(bad));
            progress.clear();
            warn("skipped " + bad);
            sink.sent.skipped_bad++;
            continue;
        }
        if (progress.due()) progress.draw(sink.sent.amount, source.progress());
        keep_rate(sink, options.tokens_per_s, started_ns);
    }
    return interrupted() ? interrupt_exit() : exit_ok;
}

void report(const ProduceOptions& options, const Sink& sink, double seconds, bool failed) {
    const Sent& sent = sink.sent;
    const double tokens_per_s = static_cast<double>(sent.amount.tokens) / seconds;
    const double gb_per_s = static_cast<double>(sent.amount.bytes) * 1e-9 / seconds;
    if (options.json) {
        Json json{{"ring", options.ring.empty() ? Json() : Json(options.ring)},
                  {"records", sent.amount.records},
                  {"tokens", sent.amount.tokens},
                  {"bytes", sent.amount.bytes},
                  {"seconds", seconds},
                  {"tokens_per_s", tokens_per_s},
                  {"gb_per_s", gb_per_s},
                  {"waits", sent.waits},
                  {"digest", digest_text(sent.digest)},
                  {"skipped_bad", sent.skipped_bad},
                  {"bad_record", sent.bad.empty() ? Json() : Json(sent.bad)},
                  {"lane", nullptr},
                  {"failed", failed},
                  {"interrupted", interrupted()}};
        if (sink.producer() != nullptr) json["lane"] = sink.producer()->lane();
        print_json(json);
        return;
    }
    const char* said = options.digest_only ? "would send" : "sent";
    if (failed) said = options.digest_only ? "failed after reading" : "failed after sending";
    std::string text = fmt::format(
        "{} {}, {}, {} in {}: {} tokens/s, {:.2f} GB/s\n", said,
        counted(sent.amount.records, "record"), counted(sent.amount.tokens, "token"),
        bytes_text(sent.amount.bytes), duration_text(seconds), short_text(tokens_per_s), gb_per_s);
    if (sent.waits != 0) text += fmt::format("waited {} for room\n", counted(sent.waits, "time"));
    if (sent.skipped_bad != 0) {
        text += fmt::format("skipped {}\n", counted(sent.skipped_bad, "bad record"));
    }
    print(text + fmt::format("digest {}\n", digest_text(sent.digest)));
}

}  // namespace

int produce(const ProduceOptions& options) {
    if (options.ring.empty() && !options.digest_only) {
        return fail(Errc::invalid_argument, "produce needs the NAME of a ring, or --digest");
    }
    auto source = open_source(options.input);
    if (!source) return fail(source.error());
    Remarks remarks(options.json);
    remarks.tell(**source);
    Sink sink(options);
    if (auto opened = sink.open(); !opened) {
        return interrupted() ? interrupt_exit() : fail(opened.error());
    }
    if (sink.producer() != nullptr) (*source)->use_schema(sink.producer()->schema());
    Progress progress(options.digest_only ? "reading" : "producing", options.json);
    const std::int64_t started_ns = monotonic_ns();
    WillingSource willing(
        **source, [&](const Draft& draft) { return sink.group_of(draft); },
        [&](const GroupWanted& group) { return sink.may_send(group); });
    const auto look_at_first = [&] { remarks.tell(**source); };
    const int code = send_all(options, willing, sink, progress, look_at_first);
    sink.flush();
    const double seconds = std::max(1e-9, static_cast<double>(monotonic_ns() - started_ns) * 1e-9);
    progress.clear();
    remarks.tell(**source);
    // Skip a table of zeros after an error.
    const bool failed = code == exit_failed;
    if (options.json || !failed || sink.sent.amount.records != 0) {
        report(options, sink, seconds, failed);
    }
    sink.close();
    return code;
}

Command add_produce(CLI::App& app) {
    auto options = std::make_shared<ProduceOptions>();
    CLI::App* sub = app.add_subcommand("produce", "Send records from a file or a generator");
    sub->footer(produce_footer);
    sub->add_option("NAME", options->ring, "Name of the ring; it may appear within 30 s");
    add_input_options(sub, options->input, "- is standard input; ");
    sub->add_option("--shard", options->input.shard,
                    "Send only every N-th record (atropos: group), starting with the I-th\n"
                    "(from 0); applied after --shuffle, so N producers can share an input")
        ->type_name("I/N");
    add_group_size(sub,
                   "Group size of records without one; auto: the number of members\n"
                   "per group in the file, if it is the same for all",
                   [options](const std::string&, std::optional<std::uint32_t> size) {
                       options->input.group_size = size.value_or(0);
                   })
        ->default_str("auto");
    sub->add_option("--records", options->records_max, "Stop after N records")->type_name("N");
    sub->add_option("--rate", options->tokens_per_s, "Maximum tokens per second; 0: no limit")
        ->check(CLI::NonNegativeNumber)
        ->type_name("TOKENS_PER_S")
        ->capture_default_str();
    sub->add_option("--name", options->producer_name,
                    "Name of this producer, shown by `rollring stat`")
        ->type_name("PRODUCER");
    sub->add_option("--batch", options->batch, "Make records visible N at a time")
        ->check(CLI::PositiveNumber)
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--checksum", options->checksum,
                    "Checksum of each record's payload: none or xxh3")
        ->check(CLI::IsMember({"none", "xxh3"}))
        ->type_name("KIND")
        ->capture_default_str();
    add_duration(sub, "--timeout", options->timeout_ms, "How long to wait for room in a full lane")
        ->default_str("10m");
    sub->add_flag("--skip-bad", options->input.skip_bad,
                  "Skip and count bad records instead of stopping");
    sub->add_flag("--digest", options->digest_only,
                  "Send nothing; print the digest of the records");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    sub->add_flag("-q,--quiet", options->quiet,
                  "Report waits for room only if one lasts for 30 seconds");
    add_parent(sub, options->parent);
    return {sub, [options] {
                follow_parent(options->parent);
                return produce(*options);
            }};
}

}  // namespace rollring::cli
