#include "cli/commands/consume_run.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "cli/formats/stat_report.hpp"
#include "rollring/ring.hpp"

namespace rollring::cli {
namespace {

constexpr const char* reason_names[] = {"records",     "batches", "closed", "idle",
                                        "interrupted", "removed", "failed"};

// The text for the idle timeout: the records or producers that are missing, and the producers that
// could still send.
std::string missing(const ConsumeOptions& options, const Received& received) {
    const ConsumerStats& stats = received.stats;
    std::string text = fmt::format("nothing arrived for {}",
                                   duration_text(static_cast<double>(options.idle_ms) * 1e-3));
    if (options.records_max != 0) {
        text += fmt::format(
            "; {} of {} records are missing",
            options.records_max - std::min<std::uint64_t>(options.records_max, stats.records),
            options.records_max);
    } else {
        text += fmt::format("; {} of at least {} joined, {} still attached",
                            counted(stats.producers_joined, "producer"), options.producers,
                            received.producers_active);
    }
    if (const auto stat = stat_ring(options.ring)) {
        std::string alive;
        for (const auto& lane : stat->lanes) {
            if (lane.alive)
                alive += fmt::format(" '{}' (lane {}, pid {})", lane.producer, lane.lane, lane.pid);
        }
        text += alive.empty() ? "; no producer is alive" : "; alive:" + alive;
    }
    return text;
}

}  // namespace

double RunClock::seconds() const {
    if (first_ns_ == 0) return 0;
    return static_cast<double>(std::max<std::int64_t>(1, last_ns_ - first_ns_)) * 1e-9;
}

bool RunClock::quiet_for(std::int64_t idle_ms) const {
    return idle_ms > 0 && monotonic_ns() - std::max(started_ns_, last_ns_) > idle_ms * 1'000'000;
}

void Quiet::look(const Received& received, const RunClock& clock) {
    constexpr std::int64_t patience_ms = 1000;  // no report if both sides start at once
    if (received.producers_active != 0 || !clock.quiet_for(patience_ms)) return waiting_.over();
    if (options_->quiet) return;
    const std::uint64_t came = received.stats.producers_joined;
    waiting_.tell(came == 0 ? fmt::format("no producer has joined ring {} yet", options_->ring)
                            : fmt::format("{} joined ring {}, and all have left",
                                          counted(came, "producer"), options_->ring));
}

void tell_event(const Event& event, Progress& progress, bool quiet) {
    if (quiet && (event.kind == Event::Kind::producer_joined ||
                  event.kind == Event::Kind::producer_closed)) {
        return;
    }
    progress.clear();
    switch (event.kind) {
        case Event::Kind::stalled:
        case Event::Kind::overflow_failed:
            return note(event.detail);
        case Event::Kind::dropped:
        case Event::Kind::size_conflict:
        case Event::Kind::partial:
        case Event::Kind::overdue:
            return warn("warning: " + event.detail);
        default:
            break;
    }
    std::string text = fmt::format("{}: lane {} epoch {} '{}'", name(event.kind), event.lane,
                                   event.epoch, event.producer);
    if (event.kind != Event::Kind::producer_joined) {
        text += ", " + counted(event.records, "record");
    }
    if (!event.detail.empty()) text += ": " + event.detail;
    note(text);
}

bool all_gone(const Received& received, const ConsumeOptions& options) {
    if (received.producers_active != 0) return false;
    // Producers whose lane an earlier consumer has closed do not join again.
    const ConsumerStats& stats = received.stats;
    return stats.producers_joined >= options.producers ||
           (stats.producers_joined == 0 && stats.redelivered > 0);
}

Amount amount_of(const ConsumerStats& stats) {
    return {stats.records, stats.tokens, stats.bytes};
}

void draw(Progress& progress, const Amount& amount, const ConsumeOptions& options) {
    const auto most = static_cast<double>(options.records_max);
    progress.draw(amount, most > 0 ? std::optional(static_cast<double>(amount.records) / most)
                                   : std::nullopt);
}

Json run_json(const ConsumeOptions& options, Reason reason, const ConsumerStats& stats,
              double seconds, std::uint64_t digest) {
    const double rate = seconds > 0 ? 1 / seconds : 0;
    Json json{{"ring", options.ring},
              {"reason", reason_names[static_cast<std::size_t>(reason)]},
              {"seconds", seconds},
              {"tokens_per_s", static_cast<double>(stats.tokens) * rate},
              {"gb_per_s", static_cast<double>(stats.bytes) * 1e-9 * rate},
              {"digest", nullptr}};
    add_fields(json, stats);
    if (!options.no_verify) json["digest"] = digest_text(digest);
    return json;
}

std::string run_text(const ConsumeOptions& options, const Json& json) {
    const auto number = [&](const char* key) { return json[key].get<std::uint64_t>(); };
    std::string text =
        fmt::format("received {}, {}, {} in {}: {} tokens/s, {:.2f} GB/s\n",
                    counted(number("records"), "record"), counted(number("tokens"), "token"),
                    bytes_text(number("bytes")), duration_text(json["seconds"].get<double>()),
                    short_text(json["tokens_per_s"].get<double>()), json["gb_per_s"].get<double>());
    for (const char* key : {"lost", "duplicates", "torn", "redelivered", "producers_died"}) {
        text += fmt::format("{} {}  ", key, number(key));
    }
    return text + (options.no_verify
                       ? "(not verified)\n"
                       : fmt::format("\ndigest {}\n", json["digest"].get<std::string>()));
}

void print_report(const ConsumeOptions& options, const std::string& text) {
    if (options.output == "-") {
        print_report_on_stderr(text);
    } else {
        print(text);
    }
}

int conclude(const ConsumeOptions& options, Reason reason, const Received& received,
             const std::string& more) {
    if (reason == Reason::interrupted) return interrupt_exit();
    if (reason == Reason::removed) {
        return fail(Errc::not_found,
                    fmt::format("ring {} was removed while in use: create it again and restart "
                                "producers and consumer",
                                options.ring));
    }
    const bool wanted =
        options.records_max != 0 || options.until_closed || options.train.batches_max != 0;
    if (reason == Reason::idle && wanted) {
        return fail(Errc::not_ready, missing(options, received) + more +
                                         ". Start the missing producers, or raise --idle-timeout");
    }
    const ConsumerStats& stats = received.stats;
    if (stats.lost + stats.torn + stats.quarantines != 0) {
        return fail(
            Errc::bad_record,
            fmt::format("{} lost, {} torn, {} quarantined ({} discarded): a producer is "
                        "damaged; see the messages above",
                        counted(stats.lost, "record"), stats.torn,
                        counted(stats.quarantines, "lane"), bytes_text(stats.dropped_bytes)));
    }
    return exit_ok;
}

}  // namespace rollring::cli
