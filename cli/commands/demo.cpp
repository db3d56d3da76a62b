// `rollring demo`: a ring, producers and a trainer as processes, and the proof that all records
// arrived.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "cli/commands/child.hpp"
#include "cli/commands/command.hpp"
#include "cli/commands/first_bad.hpp"
#include "cli/commands/input_options.hpp"
#include "cli/commands/spill_options.hpp"
#include "cli/commands/train.hpp"
#include "cli/formats/json_tree.hpp"
#include "cli/terminal/colour.hpp"
#include "cli/terminal/progress.hpp"
#include "rollring/consumer.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr const char* demo_footer = R"(Examples:
  rollring demo
  rollring demo --input rollouts.jsonl --producers 8 --shuffle 1
  rollring demo --synthetic groups=200,tokens=16384:131072 --lane-bytes 256MiB
Creates a ring, runs one `rollring consume --group-size auto` and several `rollring
produce --shard I/N` on it, and removes it in any case. The records of a group come from
all producers; groups leave complete. The exit code is 1 unless every record arrived
exactly once and intact; records that the policy drops (failed members, duplicates) are
counted, but their bytes are not compared. Groups that stay incomplete are a failure, too.
`rollring formats` shows the formats of FILE.)";

struct DemoOptions {
    InputOptions input;
    std::uint32_t producers = 4;
    std::uint64_t lane_bytes = bytes_not_given;
    std::uint64_t soft_bytes = 0;
    SpillOptions spill;
    std::uint32_t group_rows = RingOptions{}.group_rows;
    std::uint32_t journal_records = RingOptions{}.journal_records;
    std::uint64_t records_max = 0;
    std::uint64_t hold = 0;
    std::string group_size = "auto";
    std::string checksum = "none";
    std::string output;
    bool json = false;
};

class Demo {
  public:
    explicit Demo(const DemoOptions& options) : options_(&options) {}
    int go();

  private:
    Result<void> make_ring();
    Result<void> start();
    void watch(std::optional<std::uint64_t> total);
    void stop_all();
    void drain();
    int conclude();
    [[nodiscard]] Json summary() const;
    void print_table(const Json& json) const;
    [[nodiscard]] bool any_running() const {
        return std::ranges::any_of(children_, &Child::running);
    }
    [[nodiscard]] bool any_failed() const {
        return std::ranges::any_of(children_, [](const Child& child) {
            return !child.running() && child.exit_code() != 0;
        });
    }

    const DemoOptions* options_;
    std::string ring_ = fmt::format("demo-{}-{:x}", ::getpid(), realtime_ns() & 0xffffff);
    std::optional<OwnedRing> owned_;
    std::vector<Child> children_;   // the consumer first
    std::uint64_t lane_bytes_ = 0;  // as the ring was made
    std::int64_t began_ns_ = 0;
    std::int64_t ended_ns_ = 0;
    std::uint64_t left_records_ = 0;  // of incomplete groups
    std::uint64_t left_digest_ = 0;
};

// Each producer takes its lane: a problem of size is reported here once, and not by all of them.
// Lanes without a given size are halved until they fit.
Result<void> Demo::make_ring() {
    constexpr std::uint64_t lane_bytes_least = std::uint64_t{256} << 10;
    RingOptions made{.lanes = std::max(1U, options_->producers),
                     .soft_bytes = options_->soft_bytes,
                     .journal_records = options_->journal_records};
    made.group_rows = options_->group_rows;
    apply(options_->spill, made);
    const bool chosen = options_->lane_bytes == bytes_not_given;
    if (!chosen) made.lane_bytes = options_->lane_bytes;
    auto plan = plan_ring(made);
    while (plan && !plan->warning.empty() && chosen && plan->lane_bytes > lane_bytes_least) {
        made.lane_bytes = plan->lane_bytes / 2;
        plan = plan_ring(made);
    }
    if (!plan) return std::unexpected(plan.error());
    if (!plan->warning.empty()) {
        return refused(Errc::not_enough_shared_memory, std::move(plan->warning));
    }
    lane_bytes_ = plan->lane_bytes;
    auto created = OwnedRing::create(ring_, made);
    if (!created) return std::unexpected(created.error());
    owned_.emplace(std::move(*created));
    began_ns_ = monotonic_ns();
    return {};
}

Result<void> Demo::start() {
    if (auto made = make_ring(); !made) return made;
    const std::string parent = fmt::format("--parent={}", ::getpid());
    const auto add = [&](std::string title, std::vector<std::string> arguments) -> Result<void> {
        arguments.insert(arguments.end(), {"--json", parent});
        auto child = Child::start(std::move(title), arguments);
        if (!child) return std::unexpected(child.error());
        children_.push_back(std::move(*child));
        return {};
    };
    std::vector<std::string> consumer{"consume", ring_, "--until-closed", "--quiet",
                                      fmt::format("--producers={}", options_->producers)};
    consumer.push_back(options_->hold != 0 ? fmt::format("--hold={}", options_->hold)
                                           : "--group-size=" + options_->group_size);
    if (!options_->output.empty()) consumer.push_back("--output=" + options_->output);
    if (auto added = add("consumer", consumer); !added) return added;
    for (std::uint32_t i = 0; i < options_->producers; i++) {
        InputOptions input = options_->input;
        input.shard = fmt::format("{}/{}", i, options_->producers);
        std::vector<std::string> producer{"produce", ring_, "--quiet",
                                          fmt::format("--name=producer {}", i),
                                          "--checksum=" + options_->checksum};
        if (options_->records_max != 0) {
            const std::uint64_t share = options_->records_max / options_->producers +
                                        (i < options_->records_max % options_->producers ? 1 : 0);
            producer.push_back(fmt::format("--records={}", share));
        }
        std::ranges::move(to_arguments(input), std::back_inserter(producer));
        if (auto added = add(fmt::format("producer {}", i), producer); !added) return added;
    }
    return {};
}

void Demo::stop_all() {
    for (const auto& child : children_) child.signal(SIGTERM);
    const std::int64_t until_ns = monotonic_ns() + 5'000'000'000;
    while (any_running() && monotonic_ns() < until_ns) {
        wait_for_any(children_, 50);
        for (auto& child : children_) child.look();
    }
    for (auto& child : children_) child.signal(SIGKILL);
}

void Demo::watch(std::optional<std::uint64_t> total) {
    Progress progress("demo", options_->json);
    while (any_running()) {
        wait_for_any(children_, 50);
        for (auto& child : children_) child.look();
        // The others would wait for one that failed.
        if (interrupted() || any_failed()) return stop_all();
        if (!progress.due()) continue;
        const auto stat = stat_ring(ring_);
        if (!stat) continue;
        Amount amount;
        for (const auto& lane : stat->lanes) {
            amount.records += lane.committed_records;
            amount.tokens += lane.committed_tokens;
            amount.bytes += lane.committed_bytes;
        }
        std::optional<double> share;
        if (total && *total != 0) {
            share =
                std::min(1.0, static_cast<double>(amount.records) / static_cast<double>(*total));
        }
        progress.draw(amount, share);
    }
}

// A child's report, or null if it did not get that far.
Json report_of(const Child& child) {
    return parse_report(child.output());
}

// Records that the trainer left in the ring count, too: members of incomplete groups.
void Demo::drain() {
    auto consumer = Consumer::open(ring_, {.attach_timeout = std::chrono::milliseconds(1'000)});
    if (!consumer) return;
    Record record;
    while (consumer->poll(record) == Poll::record) {
        left_records_++;
        left_digest_ += record.view.digest(consumer->schema());
        consumer->release(record.ref);
    }
}

Json Demo::summary() const {
    const Json received = report_of(children_.front());
    const auto got = [&](const char* key) -> Json { return received.value(key, Json(0)); };
    std::uint64_t sent = 0;
    std::uint64_t digest = 0;
    std::uint64_t waits = 0;
    bool all_reported = received.is_object();
    for (std::size_t i = 1; i < children_.size(); i++) {
        const Json report = report_of(children_[i]);
        all_reported &= report.is_object();
        if (!report.is_object()) continue;
        sent += report["records"].get<std::uint64_t>();
        waits += report["waits"].get<std::uint64_t>();
        digest += parse_digest(report["digest"].get<std::string>()).value_or(0);
    }
    Json json{{"ok", false}, {"producers", options_->producers}, {"sent", sent}};
    for (const char* key : {"records", "tokens", "bytes", "seconds", "tokens_per_s", "gb_per_s",
                            "lost", "duplicates", "torn", "redelivered", "producers_died"}) {
        json[key] = received.is_object() ? got(key) : Json(0);
    }
    json["elapsed_seconds"] = static_cast<double>(ended_ns_ - began_ns_) * 1e-9;
    json["waits"] = waits;
    const bool grouped = received.contains("groups");
    bool conserved = true;
    if (grouped) {
        for (const char* key : {"groups", "groups_partial", "groups_dropped", "open_groups",
                                "batches", "dropped", "records_dropped", "records_shipped",
                                "conserved", "copied_bytes", "evacuated_records", "last_groups"}) {
            json[key] = received[key];
        }
        json["records_left"] = left_records_;
        conserved = json["conserved"] == true &&
                    json["records"] == json["records_shipped"].get<std::uint64_t>() +
                                           json["records_dropped"].get<std::uint64_t>() +
                                           left_records_;
    }
    json["digest_sent"] = digest_text(digest);
    json["digest_received"] = nullptr;
    json["digest_equal"] = false;
    if (received.is_object()) {
        const auto got_digest = parse_digest(got("digest").get<std::string>()).value_or(0);
        json["digest_received"] = digest_text(got_digest + left_digest_);
        json["digest_equal"] = json["digest_sent"] == json["digest_received"];
    }
    // No process reads the bytes of dropped records, and a run that was cut short has sent records
    // that were not received.
    const bool dropped = grouped && json["records_dropped"] != 0;
    const bool cut_short = interrupted() || !all_reported || any_failed();
    if (dropped || cut_short) json["digest_equal"] = nullptr;
    // `--records` may end in the middle of groups.
    const bool whole = !grouped || options_->records_max != 0 || json["open_groups"] == 0;
    json["interrupted"] = interrupted();
    json["ok"] = all_reported && !any_failed() && !interrupted() && conserved && whole &&
                 (dropped || json["digest_equal"] == true) && json["records"] == sent &&
                 json["lost"] == 0 && json["duplicates"] == 0 && json["torn"] == 0 &&
                 json["producers_died"] == 0;
    return json;
}

void Demo::print_table(const Json& json) const {
    const auto count = [&](const char* key) { return count_text(json[key].get<std::uint64_t>()); };
    const auto number = [&](const char* key) { return json[key].get<double>(); };
    const std::string rate = fmt::format("{} tokens/s, {:.2f} GB/s while records arrived",
                                         short_text(number("tokens_per_s")), number("gb_per_s"));
    const std::string digest =
        json["interrupted"] == true      ? "not compared: interrupted"
        : any_failed()                   ? "not compared: a process failed"
        : json["digest_equal"].is_null() ? "not compared: some records were dropped"
        : json["digest_equal"] == true
            ? fmt::format("equal: yes ({})", json["digest_sent"].get<std::string>())
            : "MISMATCH: sent " + json["digest_sent"].dump() + ", received " +
                  json["digest_received"].dump();
    std::string text =
        painted(Style::heading,
                fmt::format("{}, 1 trainer, lanes of {}", counted(options_->producers, "producer"),
                            bytes_text(lane_bytes_)),
                STDOUT_FILENO) +
        "\n";
    const auto row = [&](const char* title, const std::string& value) {
        text += fmt::format("  {:<12} {}\n", title, value);
    };
    row("sent", count("sent"));
    row("received", count("records"));
    row("tokens", count("tokens"));
    row("bytes", bytes_text(json["bytes"].get<std::uint64_t>()));
    row("time", fmt::format("{}; records arrived over {}", duration_text(number("elapsed_seconds")),
                            duration_text(number("seconds"))));
    row("rate", rate);
    row("waits", count("waits") + " for room in a lane");
    row("lost", count("lost"));
    row("duplicates", count("duplicates"));
    row("torn", count("torn"));
    row("digest", digest);
    if (json.contains("groups")) {
        row("groups",
            fmt::format("{} in {}; {} partial, {} dropped, {} incomplete", count("groups"),
                        counted(json["batches"].get<std::uint64_t>(), "batch"),
                        count("groups_partial"), count("groups_dropped"), count("open_groups")));
        row("copied", bytes_text(json["copied_bytes"].get<std::uint64_t>()));
        row("account",
            fmt::format("{}: {} records shipped, {} dropped, {}",
                        json["conserved"] == true ? "balanced" : "NOT BALANCED",
                        count("records_shipped"), count("records_dropped"),
                        json["interrupted"] == true ? "the rest not counted (interrupted)"
                                                    : count("records_left") + " left"));
        if (!json["last_groups"].empty()) {
            text += "  the last batch:\n" + groups_table(json["last_groups"]);
        }
    }
    if (json.contains("groups") && json["open_groups"] != 0 && options_->records_max == 0 &&
        json["interrupted"] != true) {
        text +=
            "Some groups are incomplete: the input lacks members, or group_size (--group-size) is "
            "wrong.\n";
    }
    const bool compared = !json["digest_equal"].is_null();
    text += json["ok"] == true && !compared
                ? "Every record arrived. The contents of dropped records were not compared.\n"
            : json["ok"] == true          ? "Every record arrived exactly once and intact.\n"
            : json["interrupted"] == true ? "Interrupted before the end.\n"
                                          : painted(Style::error, "FAILED", STDOUT_FILENO) + "\n";
    print(text);
}

int Demo::conclude() {
    std::vector<std::string> bad;
    for (const auto& child : children_) {
        if (interrupted() || child.exit_code() == 0) continue;
        const Json report = report_of(child);
        if (report.is_object() && !report["bad_record"].is_null()) {
            bad.push_back(report["bad_record"].get<std::string>());
            continue;
        }
        // The others were stopped because of it, and end with 128 + SIGTERM.
        if (child.exit_code() != 128 + SIGTERM) {
            warn(fmt::format("{} exited with code {}", child.title(), child.exit_code()));
        }
    }
    if (!bad.empty()) fail(Errc::bad_record, first_bad(options_->input, bad));
    const Json json = summary();
    if (options_->json) {
        print_json(json);
    } else if (!any_failed() || interrupted()) {
        print_table(json);
    } else if (json["records"] != 0) {
        print(fmt::format("{} after {}\n", painted(Style::error, "FAILED", STDOUT_FILENO),
                          counted(json["records"].get<std::uint64_t>(), "record")));
    }
    if (interrupted()) return interrupt_exit();
    return json["ok"] == true ? exit_ok : exit_failed;
}

int Demo::go() {
    // Opened here as well, so that a faulty input is reported once, before anything starts.
    auto source = open_source(options_->input);
    if (!source) return fail(source.error());
    std::optional<std::uint64_t> total = (*source)->total();
    if (options_->records_max != 0) {
        total = std::min(options_->records_max, total.value_or(options_->records_max));
    }
    if (!options_->json) {
        Draft first;  // its keys are remarked upon
        static_cast<void>((*source)->next(first));
        for (const std::string& remark : (*source)->remarks()) note(remark);
    }
    source->reset();
    if (auto started = start(); !started) return fail(started.error());
    watch(total);
    ended_ns_ = monotonic_ns();
    for (auto& child : children_) child.look();
    if (options_->hold == 0 && !interrupted()) drain();
    return conclude();
}

int demo(DemoOptions& options) {
    if (options.lane_bytes == 0) {
        return fail(Errc::invalid_argument, "--lane-bytes is 0 B, must be 1 B to 128 GiB");
    }
    if (options.input.input.empty() && options.input.synthetic.empty()) {
        options.input.synthetic = "groups=2000,group-size=8,tokens=256:4096";
    }
    if (options.input.input == "-") {
        return fail(Errc::invalid_argument,
                    "demo reads a file, which its producers share: write one, or send standard "
                    "input with 'rollring produce RING --input -'");
    }
    if (options.output == "-") {
        return fail(Errc::invalid_argument,
                    "the report goes to standard output: pass a file to --output");
    }
    return Demo(options).go();
}

}  // namespace

Command add_demo(CLI::App& app) {
    auto options = std::make_shared<DemoOptions>();
    CLI::App* sub = app.add_subcommand(
        "demo", "Run producers and a trainer on a temporary ring and verify delivery");
    sub->footer(demo_footer);
    add_input_options(sub, options->input, "");
    sub->get_option("--synthetic")->default_str("groups=2000,group-size=8,tokens=256:4096");
    sub->add_option("--producers", options->producers,
                    "Number of producer processes that share the input")
        ->check(CLI::Range(1, 4096))
        ->type_name("N")
        ->capture_default_str();
    add_bytes(sub, "--lane-bytes", options->lane_bytes, "Memory of each lane")
        ->default_str("as for `rollring create`, or less if memory is short");
    add_bytes(sub, "--soft-bytes", options->soft_bytes, "See `rollring create`")->default_str("0");
    add_spill_options(sub, options->spill, false);
    sub->add_option("--group-rows", options->group_rows, "See `rollring create`")
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--journal-records", options->journal_records, "See `rollring create`")
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--records", options->records_max, "Stop after N records; 0: all")
        ->type_name("N")
        ->capture_default_str();
    sub->add_option("--hold", options->hold, "See `rollring consume`")
        ->type_name("K")
        ->capture_default_str();
    add_group_size(sub, "See `rollring consume`; with --hold no groups are formed",
                   [options](const std::string& text, std::optional<std::uint32_t> size) {
                       options->group_size = text;
                       options->input.group_size = size.value_or(0);
                   })
        ->excludes("--hold")
        ->default_str(options->group_size);
    sub->add_option("--checksum", options->checksum, "See `rollring produce`")
        ->check(CLI::IsMember({"none", "xxh3"}))
        ->type_name("KIND")
        ->capture_default_str();
    sub->add_option("-o,--output", options->output,
                    "Write the batches as JSON lines; with --hold the records")
        ->type_name("FILE");
    sub->add_flag("--json", options->json, "Print the report as one JSON object");
    return {sub, [options] { return demo(*options); }};
}

}  // namespace rollring::cli
