#include "cli/commands/train.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "cli/commands/consume_run.hpp"
#include "cli/formats/stat_report.hpp"
#include "cli/records/record_output.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr std::int64_t slice_ns = 50'000'000;  // between checks of everything but records
constexpr std::size_t groups_shown = 8;

// One group of a batch. A missing reward is null.
Json group_json(const Batch& batch, std::size_t group) {
    const BatchGroupInfo& info = batch.groups()[group];
    const std::uint32_t first = batch.group_offsets()[group];
    const std::uint32_t end = batch.group_offsets()[group + 1];
    Json json{{"key", key_text(info.key)}, {"instance_id", ""}, {"visit", 0}, {"size", info.size}};
    Json repetitions = Json::array();
    Json rewards = Json::array();
    Json advantages = Json::array();
    for (std::uint32_t i = first; i < end; i++) {
        const Sequence& sequence = batch.sequences()[i];
        if (i == first) {
            json["instance_id"] = sequence.view.instance_id();
            json["visit"] = sequence.view.meta().visit;
        } else if (sequence.member == batch.sequences()[i - 1].member) {
            continue;  // another subsequence of the same member
        }
        repetitions.push_back(batch.repetition_ids()[i]);
        rewards.push_back(batch.rewards()[i]);
        advantages.push_back(batch.advantages()[i]);
    }
    json["repetition_ids"] = std::move(repetitions);
    json["rewards"] = std::move(rewards);
    json["advantages"] = std::move(advantages);
    json["bad_rewards"] = info.bad_rewards;
    return json;
}

std::string stash_text(const Json& json) {
    const auto number = [&](const char* key) { return json[key].get<std::uint64_t>(); };
    std::string text = fmt::format(
        "shipped {} ({} partial) in {}: {}; {} still open\n", counted(number("groups"), "group"),
        count_text(number("groups_partial")), counted(number("batches"), "batch"),
        counted(number("records_shipped"), "record"), counted(number("open_groups"), "group"));
    text += "dropped " + counted(number("records_dropped"), "record");
    for (const auto& [reason, records] : json["dropped"].items()) {
        if (records != 0) text += fmt::format("  {} {}", reason, records.get<std::uint64_t>());
    }
    if (json["bad_rewards"] != 0) {
        text += "; " + counted(number("bad_rewards"), "reward") + " NaN or infinite";
    }
    return text + fmt::format("; copied {}; the account is {}\n",
                              bytes_text(json["copied_bytes"].get<std::uint64_t>()),
                              json["conserved"] == true ? "balanced" : "NOT BALANCED");
}

// One run of the trainer's loop.
class TrainRun {
  public:
    TrainRun(const ConsumeOptions& options, std::unique_ptr<Stash> stash,
             std::optional<RecordOutput> output)
        : options_(&options),
          stash_(std::move(stash)),
          output_(std::move(output)),
          progress_("training", options.json),
          quiet_(options),
          step_(stash_->last_acked_step() + 1) {}

    int go();

  private:
    Reason loop();
    bool next(std::int64_t wait_ns);
    bool train();
    bool finish_batch();
    bool write_batch();
    void ship_rest();
    [[nodiscard]] bool deadline_comes() const;
    [[nodiscard]] std::optional<Reason> enough() const;
    void tell_no_progress();
    void tell_repeats(bool at_end);
    [[nodiscard]] std::string waiting_text() const;
    void report(Reason reason) const;

    const ConsumeOptions* options_;
    std::unique_ptr<Stash> stash_;
    std::optional<RecordOutput> output_;
    Progress progress_;
    RunClock clock_;
    Quiet quiet_;
    Batch batch_;
    Json last_groups_ = Json::array();
    std::optional<Error> problem_;
    std::int64_t step_;
    std::uint64_t digest_ = 0;
    std::uint64_t incomplete_groups_ = 0;  // of Atropos, in the output
    std::int64_t told_ns_ = 0;
    std::int64_t looked_ns_ = 0;                                   // for repeated keys
    std::set<std::pair<std::uint32_t, std::uint32_t>> repeaters_;  // already reported: lane, epoch
    bool removed_ = false;
    bool given_back_ = false;  // the interrupt came while a batch was leased
};

// Waits for a batch, up to `wait_ns`, and reports events. False: there is no batch.
bool TrainRun::next(std::int64_t wait_ns) {
    const std::uint64_t before = stash_->account().accepted.records;
    const std::int64_t began_ns = monotonic_ns();
    const NextBatch got = stash_->next(batch_, Deadline::after_ns(wait_ns));
    if (stash_->account().accepted.records != before) clock_.came(began_ns);
    tell_events(*stash_, progress_, options_->quiet);
    tell_no_progress();
    tell_repeats(false);
    if (got != NextBatch::batch) quiet_.look(received_by(*stash_), clock_);
    if (progress_.due()) draw(progress_, amount_of(stash_->stats()), *options_);
    removed_ = got == NextBatch::closed;
    return got == NextBatch::batch;
}

// The work of a trainer: reads every byte, takes its time, and acknowledges. False: it has failed,
// or was interrupted and has given the batch back.
bool TrainRun::train() {
    const std::int64_t until_ns = monotonic_ns() + options_->train.train_ms * 1'000'000;
    while (!interrupted() && monotonic_ns() < until_ns) {
        pause_ms(std::clamp<std::int64_t>((until_ns - monotonic_ns()) / 1'000'000, 1, 50));
    }
    given_back_ = interrupted();
    if (given_back_) {
        batch_.nack();
        return false;
    }
    return finish_batch();
}

bool TrainRun::write_batch() {
    if (options_->train.whole_records) {
        const Schema& schema = stash_->schema();
        for (const Sequence& sequence : batch_.sequences()) output_->add(sequence.view, schema);
        incomplete_groups_ += output_->finish();  // a group of Atropos that ships in part
    } else {
        Json groups = Json::array();
        for (std::size_t i = 0; i < batch_.groups().size(); i++) {
            groups.push_back(group_json(batch_, i));
        }
        output_->lines().text() += dump_json({{"batch", stash_->account().batches},
                                              {"step", step_},
                                              {"groups", std::move(groups)}}) +
                                   "\n";
    }
    return output_->flush();
}

bool TrainRun::finish_batch() {
    const Schema& schema = stash_->schema();
    std::uint64_t digest = 0;
    if (!options_->no_verify) {
        for (const Sequence& sequence : batch_.sequences()) digest += sequence.view.digest(schema);
    }
    Json shown = Json::array();
    const std::size_t shown_groups = std::min(groups_shown, batch_.groups().size());
    for (std::size_t i = 0; i < shown_groups; i++) shown.push_back(group_json(batch_, i));
    // To the file first: an acknowledged batch is never delivered again.
    if (output_ && !write_batch()) {
        problem_ = output_->problem();
        batch_.nack();
        return false;
    }
    if (auto done = batch_.ack(step_); !done) {
        problem_ = done.error();
        batch_.nack();
        return false;
    }
    step_++;
    digest_ += digest;
    last_groups_ = std::move(shown);
    clock_.came(monotonic_ns());
    clock_.stop();
    return true;
}

std::optional<Reason> TrainRun::enough() const {
    const TrainOptions& train = options_->train;
    const StashAccount account = stash_->account();
    if (train.batches_max != 0 && account.batches >= train.batches_max) return Reason::batches;
    if (options_->records_max != 0 && account.accepted.records >= options_->records_max) {
        return Reason::records;
    }
    return std::nullopt;
}

// No producer sends any more, but the deadline will decide a group before the idle timeout ends
// this run.
bool TrainRun::deadline_comes() const {
    constexpr std::int64_t lateness_ns = 1'000'000'000;
    const StashOptions& stash = options_->train.stash;
    if (stash.when_due() == AtDeadline::hold || clock_.quiet_for(options_->idle_ms)) return false;
    const auto waiting = stash_->explain(1);
    if (waiting.empty()) return false;
    const std::int64_t left_ns = stash.due_after().count() - waiting.front().age_ns;
    return left_ns > -lateness_ns &&
           (options_->idle_ms == 0 || left_ns <= options_->idle_ms * 1'000'000);
}

Reason TrainRun::loop() {
    const std::int64_t wait_ns =
        options_->idle_ms > 0 ? std::min(slice_ns, options_->idle_ms * 1'000'000) : slice_ns;
    while (!interrupted()) {
        if (const auto reason = enough()) return *reason;
        // Checked before the records are read, so that the producers' last records are read, too.
        const bool gone = options_->until_closed && all_gone(received_by(*stash_), *options_);
        const bool wait = !gone || deadline_comes();
        if (next(wait ? wait_ns : 0)) {
            if (!train()) return given_back_ ? Reason::interrupted : Reason::failed;
            continue;
        }
        if (removed_) return Reason::removed;
        if (problem_) return Reason::failed;
        clock_.stop();
        if (!wait) return Reason::closed;
        if (!gone && clock_.quiet_for(options_->idle_ms)) return Reason::idle;
    }
    return Reason::interrupted;
}

// Ships everything that is complete, even less than a batch.
void TrainRun::ship_rest() {
    while (stash_->rest(batch_) == NextBatch::batch && finish_batch()) {
    }
}

std::string TrainRun::waiting_text() const {
    std::string text;
    for (const GroupStat& group : stash_->explain(groups_shown)) {
        text += "\n  " + group.to_string();
    }
    return text;
}

void TrainRun::tell_no_progress() {
    if (!stash_->no_progress()) return;
    const std::int64_t now_ns = monotonic_ns();
    const std::int64_t period_ns = options_->train.stash.advanced.no_progress.count();
    if (told_ns_ != 0 && now_ns - told_ns_ < period_ns) return;
    told_ns_ = now_ns;
    progress_.clear();
    const std::string waiting = waiting_text();
    warn(fmt::format("no_progress: no batch for {}; {}{}",
                     duration_text(static_cast<double>(period_ns) * 1e-9),
                     counted(stash_->open_groups(), "open group"),
                     waiting.empty() ? "; all are complete, but too few for a batch" : waiting));
}

// Reports producers of which many records were dropped as known: two of them generate the same
// keys, or a run sends earlier records again. During the run it reports only numbers that a few
// retries do not reach.
void TrainRun::tell_repeats(bool at_end) {
    constexpr std::int64_t period_ns = 500'000'000;
    constexpr std::uint64_t many = 64;
    const std::int64_t now_ns = monotonic_ns();
    if (!at_end && now_ns - looked_ns_ < period_ns) return;
    looked_ns_ = now_ns;
    for (const RepeatedKeys& one : stash_->repeated_keys()) {
        if (!at_end && one.late + one.duplicate < many) continue;
        if (!repeaters_.emplace(one.lane, one.epoch).second) continue;
        progress_.clear();
        warn(fmt::format(
            "warning: {} of {} records of producer '{}' (lane {}) were dropped, {} as late and {} "
            "as duplicates: another producer or an earlier run has sent groups with the same keys "
            "(instance_id and visit). Use distinct instance_ids, or another visit for each run "
            "(produce --visit)",
            one.late + one.duplicate, one.records, printable(one.producer), one.lane, one.late,
            one.duplicate));
    }
}

void TrainRun::report(Reason reason) const {
    const StashAccount account = stash_->account();
    Json json = run_json(*options_, reason, stash_->stats(), clock_.seconds(), digest_);
    add_account(json, account);
    add_fields(json, stash_->copies());
    json["open_groups"] = stash_->open_groups();
    if (options_->train.whole_records) json["incomplete_groups"] = incomplete_groups_;
    json["last_step"] = stash_->last_acked_step();
    json["producers_repeating"] = repeaters_.size();
    json["last_groups"] = last_groups_;
    if (options_->json) return print_report(*options_, dump_json(json) + "\n");
    std::string text = run_text(*options_, json) + stash_text(json);
    if (!last_groups_.empty()) text += "the last batch:\n" + groups_table(last_groups_);
    print_report(*options_, text);
}

int TrainRun::go() {
    const Reason reason = loop();
    clock_.stop();
    const bool ends =
        reason != Reason::failed && reason != Reason::removed && reason != Reason::batches;
    if (ends && !given_back_) ship_rest();
    stash_->tell_all();
    tell_events(*stash_, progress_, options_->quiet);
    tell_repeats(true);
    progress_.clear();
    report(reason);
    if (problem_) return fail(*problem_);
    const StashAccount account = stash_->account();
    // A demo removes its ring, records included.
    if (account.held.records != 0 && options_->parent == 0) {
        note(fmt::format("{} ({}) left in the ring",
                         counted(stash_->open_groups(), "incomplete group"),
                         counted(account.held.records, "record")));
    }
    const auto oversized = account.dropped[static_cast<std::size_t>(DropReason::oversized)];
    if (oversized.records != 0) {
        warn(fmt::format(
            "{} dropped: their groups have more records than the {} that one acknowledgement can "
            "hold; create the ring with a larger --journal-records",
            counted(oversized.records, "record"), stash_->journal_records()));
    }
    if (!account.conserved()) {
        return fail(Errc::system,
                    "the stash's account is not balanced, which is a bug: please report it");
    }
    const bool over = reason != Reason::interrupted && reason != Reason::removed;
    if (options_->train.strict && over && !repeaters_.empty()) {
        return fail(Errc::bad_record,
                    fmt::format("--strict: {} repeated keys that had been used before; see the "
                                "warnings",
                                counted(repeaters_.size(), "producer")));
    }
    const std::string waiting = waiting_text();
    return conclude(*options_, reason, received_by(*stash_),
                    waiting.empty()
                        ? ""
                        : "; if the lanes are full, raise --spill-bytes of the ring or lower "
                          "--deadline. Incomplete groups:" +
                              waiting + "\n");
}

// The choice from the three options; empty: the stash's own default.
Result<std::optional<BatchTarget>> batch_target(const TrainOptions& options) {
    std::vector<BatchTarget> asked;
    if (options.batch_groups) asked.push_back(BatchTarget::groups(*options.batch_groups));
    if (options.batch_sequences) asked.push_back(BatchTarget::sequences(*options.batch_sequences));
    if (options.batch_tokens) asked.push_back(BatchTarget::tokens(*options.batch_tokens));
    if (asked.empty()) return std::nullopt;
    std::erase_if(asked, [](const BatchTarget& target) { return target.amount() == 0; });
    if (asked.size() == 1) return asked.front();
    return refused(Errc::invalid_argument,
                   "exactly one of --batch-groups, --batch-sequences, --batch-tokens must be set");
}

}  // namespace

std::string groups_table(const Json& groups) {
    std::string text =
        fmt::format("  {:<28}  {:>7}  {:>8}  {}\n", "group", "members", "reward", "advantages");
    for (const Json& group : groups) {
        double sum = 0;
        std::size_t known = 0;
        std::string advantages;
        for (std::size_t i = 0; i < group["rewards"].size(); i++) {
            const Json& reward = group["rewards"][i];  // NaN if a member has none
            if (reward.is_number() && std::isfinite(reward.get<double>())) {
                sum += reward.get<double>();
                known++;
            }
            if (i < groups_shown) {
                advantages += fmt::format("  {:+.2f}", group["advantages"][i].get<double>());
            } else if (i == groups_shown) {
                advantages += "  ...";
            }
        }
        const std::string mean =
            known == 0 ? "-" : fmt::format("{:.3f}", sum / static_cast<double>(known));
        const std::string id = printable(group["instance_id"].get<std::string>());
        text += fmt::format(
            "  {:<28.28}  {:>7}  {:>8}{}\n", id,
            fmt::format("{}/{}", group["rewards"].size(), group["size"].get<std::uint64_t>()), mean,
            advantages);
    }
    return text;
}

int train(const ConsumeOptions& given) {
    ConsumeOptions options = given;
    TrainOptions& train = options.train;
    StashOptions& stash = train.stash;
    const auto target = batch_target(train);
    if (!target) return fail(target.error());
    stash.batch = target->value_or(stash.batch);
    if (train.deadline_ms >= 0) {
        stash.deadline = std::chrono::nanoseconds(nanoseconds(train.deadline_ms));
    }
    stash.advanced.no_progress = std::chrono::nanoseconds(nanoseconds(train.no_progress_ms));
    if (auto valid = validate(stash); !valid) return fail(valid.error());
    if (train.whole_records && options.output.empty()) {
        return fail(Errc::invalid_argument, "--output-format records needs an --output");
    }
    std::optional<RecordOutput> output;
    if (!options.output.empty()) {
        auto file = LineOutput::open(options.output);
        if (!file) return fail(file.error());
        output.emplace(std::move(*file));
    }
    auto opened =
        open_patiently<std::unique_ptr<Stash>>(options.attach_ms, [&](std::int64_t try_ms) {
            return Stash::open(options.ring, stash,
                               {.attach_timeout = std::chrono::milliseconds(try_ms)});
        });
    if (!opened) return interrupted() ? interrupt_exit() : fail(opened.error());
    return TrainRun(options, std::move(*opened), std::move(output)).go();
}

}  // namespace rollring::cli
