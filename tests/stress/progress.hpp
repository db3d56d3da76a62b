#pragma once
// Progress is a promise, too (P9): while a trainer looks and producers have something to send,
// something moves. Judged by the words of the processes themselves, not by the clock alone: on a
// loaded machine a second may pass in which none of them had a CPU.

#include <cstdint>
#include <map>
#include <string>

#include "journal.hpp"

namespace rollring::test {

class Progress {
  public:
    // Entries of the trainer, and of producers (not of the hostile one).
    void trainer_said(const Head& head);
    void producer_said(const Word& word);

    // The trainer was killed, stopped, or let go on; or /dev/shm was full: all waits begin anew.
    void disturb();
    // This producer waits no longer.
    void forget(std::uint64_t life) { producers_.erase(life); }
    // So was this producer: its own wait begins anew.
    void disturb(std::uint64_t life);
    // A producer was killed: its leftovers may hold all memory until its groups are due.
    void producer_died();

    // The producer and the aim of its wait, if that is too long; else empty.
    [[nodiscard]] std::string stalled(std::int64_t now_ns);

    [[nodiscard]] std::int64_t longest_ns() const { return longest_ns_; }
    [[nodiscard]] std::int64_t watched_ns() const { return watched_ns_; }

  private:
    struct Since {
        std::int64_t at_ns = 0;
        std::uint64_t looks = 0;  // of the trainer, until then
    };
    struct Producer {
        Waits what = Waits::none;
        std::uint64_t bytes = 0;
        Since since;
        std::uint64_t said = 0;        // that it waits, since then
        std::uint64_t said_still = 0;  // and since anything moved
    };
    [[nodiscard]] Since now() const;
    void moved();
    [[nodiscard]] bool over(const Since& since, std::int64_t for_ns, std::int64_t now_ns) const;
    [[nodiscard]] bool all_wait() const;
    [[nodiscard]] std::string describe(std::int64_t now_ns) const;

    std::map<std::uint64_t, Producer> producers_;  // by life
    std::uint64_t looks_ = 0;                      // the trainer's
    Since still_;                                  // nothing has moved since
    std::int64_t quiet_from_ns_ = 0;
    std::int64_t longest_ns_ = 0;  // that a producer waited for room, while it counted
    std::int64_t watched_ns_ = 0;  // how long it counted
    std::int64_t checked_ns_ = 0;
};

}  // namespace rollring::test
