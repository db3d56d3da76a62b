#pragma once
// A consumer's view of many producer processes, compared with their own words.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "load.hpp"

namespace rollring::test {

constexpr std::size_t lives_max = 1 << 17;

// Written by one producer process, read by the parent after its death.
struct Life {
    std::atomic<std::uint64_t> attempted;  // stored before the call
    std::atomic<std::uint64_t> committed;  // stored after it has returned
    std::atomic<std::int64_t> open_ns;     // how long it took to get a lane
};
struct Lives {
    Life life[lives_max];
};

struct Seen {
    pid_t pid = 0;
    std::uint64_t records = 0;
    std::int64_t last_ns = 0;
    bool running = true;
    bool joined = false;
    bool told_dead = false;
    bool told_closed = false;
};

// Starts producers, takes and checks their records, releases in random order.
class Arrivals {
  public:
    Arrivals(const std::string& ring, Dice& dice);
    Arrivals(const Arrivals&) = delete;
    Arrivals& operator=(const Arrivals&) = delete;
    ~Arrivals();

    // A new producer process; it closes after `records`, if that is not 0. Returns its stream.
    std::size_t start(const std::string& fault = {}, std::uint64_t records = 0);
    // Kills it; false if it had ended by itself.
    bool strike(std::size_t stream);
    void collected(std::size_t stream) { seen_[stream].running = false; }

    // One poll, and a release in random order. False if there was nothing to do.
    bool turn();
    // Until all lanes are given back and nothing is held; then all sums must be right.
    void finish();

    [[nodiscard]] const Seen& seen(std::size_t stream) const { return seen_.at(stream); }
    [[nodiscard]] const Life& life(std::size_t stream) const { return lives_->life[stream]; }
    [[nodiscard]] std::size_t streams() const { return seen_.size(); }
    [[nodiscard]] std::uint64_t records() const { return records_; }
    [[nodiscard]] std::uint64_t joined() const { return joined_; }
    [[nodiscard]] std::int64_t longest_gap_ns() const { return gap_ns_; }

  private:
    void take(const Record& record);
    void hear(const Event& event);
    void check(std::size_t stream) const;

    std::string ring_;
    Dice& dice_;
    Shared<Lives> lives_;
    Consumer consumer_;
    std::vector<Seen> seen_;  // by stream
    std::vector<RecordRef> held_;
    std::uint64_t records_ = 0;
    std::uint64_t joined_ = 0;
    std::int64_t gap_ns_ = 0;
};

// --producer FD RING STREAM RECORDS
int producer_role(const std::vector<std::string>& arguments);

}  // namespace rollring::test
