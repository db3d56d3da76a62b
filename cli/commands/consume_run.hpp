#pragma once
// Shared by both forms of `rollring consume`, by records and by batches: the reasons to end, the
// clock, reports about producers, and the final report.

#include <cstdint>
#include <string>

#include "cli/commands/consume.hpp"
#include "cli/terminal/progress.hpp"
#include "rollring/consumer.hpp"

namespace rollring::cli {

enum class Reason { records, batches, closed, idle, interrupted, removed, failed };

class RunClock {
  public:
    // A record came; the first one counts from `at_ns` at the earliest.
    void came(std::int64_t at_ns) {
        if (first_ns_ == 0) first_ns_ = at_ns;
        busy_ = true;
    }
    [[nodiscard]] bool started() const { return first_ns_ != 0; }
    // Notes when the last record was handled, without reading the clock for each.
    void stop() {
        if (busy_) last_ns_ = monotonic_ns();
        busy_ = false;
    }
    [[nodiscard]] double seconds() const;  // from the first to the last
    // No record came for this long; never if it is 0.
    [[nodiscard]] bool quiet_for(std::int64_t idle_ms) const;

  private:
    std::int64_t started_ns_ = monotonic_ns();
    std::int64_t first_ns_ = 0;
    std::int64_t last_ns_ = 0;
    bool busy_ = false;
};

// The counts of a Consumer or a Stash so far.
struct Received {
    ConsumerStats stats;
    std::uint32_t producers_active;
};
template <class Source>
Received received_by(const Source& source) {
    return {source.stats(), source.producers_active()};
}

// Reports once that it waits for producers, when no record comes and no producer is there.
class Quiet {
  public:
    explicit Quiet(const ConsumeOptions& options) : options_(&options), waiting_(options.idle_ms) {}
    void look(const Received& received, const RunClock& clock);

  private:
    const ConsumeOptions* options_;
    Waiting waiting_;
};

// `source` is a Consumer or a Stash.
template <class Source>
void tell_events(Source& source, Progress& progress, bool quiet);
void tell_event(const Event& event, Progress& progress, bool quiet);

// Whether all producers that joined are gone again, and enough have joined.
bool all_gone(const Received& received, const ConsumeOptions& options);

Amount amount_of(const ConsumerStats& stats);
void draw(Progress& progress, const Amount& amount, const ConsumeOptions& options);

Json run_json(const ConsumeOptions& options, Reason reason, const ConsumerStats& stats,
              double seconds, std::uint64_t digest);
std::string run_text(const ConsumeOptions& options, const Json& json);
// Prints to stdout, or to stderr if the records go to stdout.
void print_report(const ConsumeOptions& options, const std::string& text);

// The exit code. `more`: another problem that the idle timeout found.
int conclude(const ConsumeOptions& options, Reason reason, const Received& received,
             const std::string& more);

template <class Source>
void tell_events(Source& source, Progress& progress, bool quiet) {
    Event event;
    while (source.next_event(event)) tell_event(event, progress, quiet);
}

}  // namespace rollring::cli
