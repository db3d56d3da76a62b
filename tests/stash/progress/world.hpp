#pragma once
// One seeded world of progress_simulation: a ring, its producers, a trainer, and the oracle.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::test {

// Of this process: clock_gettime() says it.
inline constexpr std::int64_t epoch_ns = 1'000'000'000'000;
extern std::int64_t clock_ns;
// The signal that ends it, or 0.
extern std::atomic<int> stop_signal;

inline constexpr std::int64_t us = 1'000;
inline constexpr std::int64_t ms = 1'000'000;
inline constexpr std::int64_t let_go_ns = 2 * ms;       // standstill.cpp: standstill_ns
inline constexpr std::int64_t patience_ns = 1000 * ms;  // standstill.cpp
inline constexpr std::int64_t stall_ns = 20'000 * ms;   // then nothing will ever move

enum class Plant { none, deaf, owed, halves };
enum class Choice { willing, sticky, ordered };  // how producers choose what to send
enum class Known { declared, learned, wrong };   // the source of a claim
inline constexpr std::array choice_names{"willing", "sticky", "ordered"};
inline constexpr std::array known_names{"declared", "learned", "wrong"};

struct Stands {
    std::uint64_t seeds = 0;
    std::uint64_t told = 0;  // that stood for ever, where nothing is promised, and said so
    std::uint64_t groups = 0;
    std::uint64_t let_go = 0;   // standstills of 2 ms and more
    std::uint64_t patient = 0;  // of a second and more
    std::int64_t longest_ns = 0;
};

struct Counts {
    std::uint64_t records = 0;
    std::uint64_t refused = 0;
    std::uint64_t batches = 0;
    std::uint64_t batches_short = 0;
    std::uint64_t groups = 0;
    std::uint64_t voided = 0;
    std::uint64_t evacuated = 0;
    std::uint64_t deaths = 0;
    std::uint64_t restarts = 0;
    std::uint64_t duplicates = 0;
    std::uint64_t nacks = 0;
    std::map<std::pair<Choice, Known>, Stands> stands;
};

struct Settings {
    Plant plant = Plant::none;
    bool verbose = false;
};

struct Group {
    std::string name;
    std::uint32_t size = 0;
    std::uint32_t sent_all = 0;  // members that will be sent
    std::uint32_t tokens_most = 0;
    GroupPlan plan;
    bool voided = false;
    bool over = false;  // acknowledged
};

struct Member {
    std::uint32_t group = 0;
    std::uint32_t repetition = 0;
    std::uint32_t tokens = 0;
    std::uint32_t attempt = 0;
    bool fails = false;
    bool again = false;  // it was sent before
};

struct Rollouts {
    std::optional<Producer> producer;
    std::deque<Member> todo;
    std::optional<Member> current;  // its group may be sent: nothing else goes before it
    bool waits = false;             // refused when it was tried last
};

class World {
  public:
    World(std::uint64_t seed, const Settings& settings, Counts& counts);
    World(const World&) = delete;
    World& operator=(const World&) = delete;
    ~World();

    void run();

  private:
    std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
    bool chance(double probability) {
        return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
    }
    template <class T>
    T one_of(std::initializer_list<T> values) {
        return values.begin()[below(values.size())];
    }
    // Evenly over the orders of magnitude.
    std::uint64_t between(std::uint64_t least, std::uint64_t most);

    static std::uint64_t payload_bytes(std::uint32_t tokens);

    void draw();

    // The least that has room for the largest group, up to some times of it; or the default.
    void draw_spill();

    void make_groups();

    void plan(Group& group);

    // To the producers, out of order within a window; or in the same order for all.
    void deal(std::vector<Member>& all);

    void open_stash();

    // No producer waits, so the lane must be free now.
    bool open_producer(Rollouts& one);

    void move();

    template <class... Args>
    void say(fmt::format_string<Args...> format, Args&&... args) const {
        if (!settings_.verbose) return;
        fmt::print("{:9.3f} ms  {}\n", static_cast<double>(clock_ns - epoch_ns) * 1e-6,
                   fmt::format(format, std::forward<Args>(args)...));
    }

    // One turn of anybody, some of them several in a row.
    void somebody();

    // All in turn, and time goes by, until something moves.
    void everybody();

    void produce(Rollouts& one);

    // True if it may be sent after all.
    bool waits_for_place(Rollouts& one, const Member& member);

    void choose(Rollouts& one);

    static void take(Rollouts& one, std::size_t index);

    void send(Rollouts& one, const Member& member);

    [[nodiscard]] std::uint64_t claimed_bytes(std::uint32_t lane) const;

    void train();

    void check_group(const Batch& batch, std::size_t index);

    static std::uint32_t number_of(const Batch& batch, std::uint32_t sequence);

    void end_lease(bool ack);

    // Its lane says closed, or still has a dead one's words. Others send the rest of its records.
    void kill(Rollouts& one);

    void restart();

    // Sent records are sent once more: the same, or a later attempt.
    void repeat(Rollouts& one);

    // The next member of a group fails, and so its group.
    void void_group(Rollouts& one);

    [[nodiscard]] bool all_sent() const;
    [[nodiscard]] bool done() const { return to_do_ == 0 && batches_.empty() && all_sent(); }

    // The state that the stash would see if something were broken.
    void lie();

    LaneOwner& owner(std::uint32_t lane);

    void check_end();

    void describe() const;

    [[noreturn]] void fail(const std::string& what);

    std::uint64_t seed_;
    const Settings& settings_;
    std::mt19937_64 random_;
    Counts& counts_;
    Choice choice_ = Choice::willing;
    Known known_ = Known::declared;
    RingOptions ring_;
    StashOptions options_;
    std::uint32_t tokens_most_ = 0;
    bool closes_ = false;
    double kills_ = 0;
    double restarts_ = 0;
    double repeats_ = 0;
    double voids_ = 0;
    std::uint64_t held_most_ = 0;

    std::string name_;
    std::optional<RingMap> map_;
    std::optional<Mapping> control_;
    std::vector<std::optional<Mapping>> owners_;
    std::unique_ptr<Stash> stash_;
    std::vector<Rollouts> rollouts_;
    std::vector<Group> groups_;
    std::vector<Member> sent_;
    std::vector<std::unique_ptr<Batch>> batches_;
    std::size_t to_do_ = 0;
    std::int64_t step_ = 0;
    bool restarted_ = false;
    bool promised_ = false;
    bool told_ = false;     // since something moved
    bool stalled_ = false;  // where it may
    std::uint64_t copied_ = 0;
    std::uint64_t moves_ = 0;
    std::int64_t moved_ns_ = epoch_ns;

  public:
    std::int64_t slow_ns = 0;  // its longest standstill
};

}  // namespace rollring::test
