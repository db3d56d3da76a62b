#pragma once
// Delays of records that are sent one by one or as they come: for `rollring-bench latency`.

#include <array>
#include <vector>

#include "workload.hpp"

namespace bench {

// Counts of delays, in buckets 1.6 % wide.
class Delays {
  public:
    Delays() : counts_(bucket(~std::uint64_t{0}) + 1) {}
    void add(std::int64_t ns);
    void add(const Delays& others);

    [[nodiscard]] double at(double share) const;  // so many are not longer
    // [share, ns]: dense where the tail is.
    [[nodiscard]] Json quantiles() const;
    // [from ns, to ns, records], four buckets an octave, without the empty ones.
    [[nodiscard]] Json histogram() const;

  private:
    static constexpr unsigned fine_bits = 6;
    static std::size_t bucket(std::uint64_t ns);
    static double lower(std::size_t bucket);

    std::vector<std::uint64_t> counts_;
    std::uint64_t count_ = 0;
};

// How records are handed over.
enum class Way {
    ring_spinning,  // rollring, the consumer spins on poll()
    bare_record,    // the same bytes over fixed buffers, a flag each
    bare_line,      // one cache line, nothing else
    ring_asleep,    // rollring, the consumer sleeps in wait()
    bare_futex,     // a futex word, nothing else; woken only if it sleeps
};

// When the records of a run are sent.
struct Pace {
    std::uint32_t n_tokens = 64;
    std::uint64_t records = 0;
    std::int64_t gap_ns = 0;  // light: so long after the one before was sent
    double per_s = 0;         // heavy: at random at this rate, whatever became of those before
    std::uint32_t lanes = 1;  // of the ring; all but one have a producer that lives and is silent
    bool warm = true;         // two laps of the ring go before: its pages are in both page tables
    // push() as its users call it, instead of push_later(), a clock reading, flush(): there is no
    // from_commit then.
    bool whole_push = false;
};

struct Measurement {
    Delays from_commit;      // from just before the record became visible to when it was read
    Delays from_due;         // from when it was to be sent: includes the time in a queue
    double per_s_read = 0;   // from the first record to the last
    double per_s_taken = 0;  // that were due
};

// One run, with a ring of its own. A record is read when each byte has been summed.
Measurement measure_delays(Way way, const Pace& pace, const Cpus& cpus);

struct Percentiles {  // p50, p99 and p99.9 of each round, and all delays
    std::array<std::vector<double>, 3> rounds;
    Delays all;

    void add(const Delays& delays);
    [[nodiscard]] Json json() const;
};

}  // namespace bench
