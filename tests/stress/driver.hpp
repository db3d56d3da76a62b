#pragma once
// Starts all processes, kills and stops them, fills every medium that can be full, and feeds the
// oracle.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "faults.hpp"
#include "progress.hpp"

namespace rollring::test {

inline constexpr std::int64_t ms = 1'000'000;  // in ns

constexpr std::size_t roles = static_cast<std::size_t>(Role::count);

struct Options {
    double seconds = 600;
    std::uint64_t kills = 0;  // 0: as many as the seconds hold
    std::uint64_t seed = 0;
    std::uint32_t producers = 3;
    std::uint32_t subscribers = 2;
    bool hostile = false;
    bool fills = true;
    bool json = false;
    std::string plant;
    std::uint64_t shm_mib = 128;
    std::int64_t floor_kills = -1;  // fails with fewer; -1: by the length of the run
    std::uint64_t floor_points = 0;
};

// Why it ended by Ctrl-C.
struct Interrupted {};

struct DriverCounts {
    std::array<std::uint64_t, roles> kills{};   // by the driver, or at a fault point
    std::array<std::uint64_t, roles> struck{};  // those at a fault point
    std::array<std::uint64_t, roles> worked{};  // killed after it had brought the run forward
    std::array<std::uint64_t, roles> stops{};
    std::array<std::uint64_t, roles> starts{};
    std::uint64_t armed = 0;  // starts with a fault point to strike itself at
    // Of the strikes at fault points: kill, stop or exit; then the count of each point.
    std::map<std::string, std::map<std::string, std::uint64_t>> at_points;
    std::array<std::int64_t, roles> silence_ns{};  // longest time between two words of a survivor
    std::array<std::int64_t, roles> pause_ns{};    // and between two successes
    std::uint64_t ended = 0;                       // producers that ended by themselves
    std::uint64_t ring_fills = 0;
    std::uint64_t shm_fills = 0;
    std::uint64_t shm_refusals = 0;  // of processes that started while /dev/shm was full
    std::uint64_t looks = 0;         // at the stash's account, from outside
    std::uint64_t heavy_turns = 0;
    std::uint64_t shm_peak_bytes = 0;  // of a /dev/shm of our own, while it is not being filled
    std::int64_t wall_ns = 0;
    std::size_t leftovers = 0;
    [[nodiscard]] std::uint64_t all_kills() const;
    [[nodiscard]] std::uint64_t points_struck() const;  // different ones
};

class Driver {
  public:
    Driver(const Options& options, bool private_shm);
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;
    ~Driver();

    // Throws Failure at the first broken promise, Interrupted at Ctrl-C.
    void run();

    [[nodiscard]] const Oracle& oracle() const { return oracle_; }
    [[nodiscard]] const DriverCounts& counts() const { return counts_; }
    [[nodiscard]] const Progress& progress() const { return progress_; }

  private:
    struct Process {
        Role role;
        std::uint32_t index;
        pid_t pid = 0;  // 0: not running
        std::uint64_t life = 0;
        std::optional<Fault> fault;  // where it strikes itself
        bool killed = false;         // by us; it may not have ended yet
        bool done = false;           // ended for good
        std::int64_t said_ns = 0;    // last word, or since when it may speak
        std::int64_t did_ns = 0;     // last success; 0: none yet
        std::int64_t resume_ns = 0;  // when it is let go on; 0: it is running
        std::int64_t start_ns = 0;   // when it comes back
        std::uint64_t waits = 0;     // times it said that it waits, in this life
        std::uint64_t words = 0;
        std::uint64_t refusals = 0;
        [[nodiscard]] bool runs() const { return pid != 0 && !killed; }
    };

    void start(Process& process);
    void strike(Process& process);
    void collect_ended(Process& process);
    void collect_if_struck(std::uint64_t life);
    void stop(Process& process, std::int64_t for_ns);
    void resume(Process& process);
    [[nodiscard]] std::int64_t some_while_ns();
    void act();
    void pump(int timeout_ms);
    static void heed_interrupt();
    void drain();
    void note(const std::byte* entry);
    void look_at(Process& process);
    void wait_for(std::string_view what, const std::function<bool()>& reached);
    void fill_ring();
    void fill_shm();
    void look_at_account();
    void look_at_shm();
    // heavy.cpp
    void take_turns();
    void heavy(bool on);
    [[nodiscard]] bool is_heavy() const;
    [[nodiscard]] bool spares_producers() const;
    [[nodiscard]] bool lives_on(Role role) const;
    [[nodiscard]] bool spared(Role role);
    [[nodiscard]] bool stays_away(Role role) const;
    void note_progress(const Process& process, const std::byte* entry);
    void note_end(const Process& process);
    void note_stop(const Process& process);
    void look_at_progress(std::int64_t until_ns);
    void finish();
    void end_all(Role role);
    void check_ring();
    void show();
    [[nodiscard]] bool over() const;
    [[nodiscard]] Process& find(Role role);

    Options options_;
    bool private_shm_;
    Dice dice_;
    int pipe_[2]{-1, -1};
    std::optional<ScratchRing> ring_;
    Shared<Board> board_;
    Oracle oracle_;
    Progress progress_;
    DriverCounts counts_;
    std::vector<Process> processes_;
    std::vector<std::size_t> by_life_;
    std::uint64_t lives_ = 0;
    std::int64_t started_ns_ = 0;
    std::int64_t shown_ns_ = 0;
    std::int64_t turn_ends_ns_ = 0;
    std::int64_t calm_from_ns_ = 0;
    std::uint64_t light_from_ = 0;  // records pushed
    bool arming_ = true;
    bool ending_ = false;
    bool stash_was_there_ = false;
    std::vector<std::byte> buffer_;
};

// Rings, sockets and fillers of this process that are still in /dev/shm.
std::size_t shm_leftovers();
// Gives this process and its children a /dev/shm of their own. False where that is not allowed.
bool make_private_shm(std::uint64_t mib);
void catch_interrupts();

}  // namespace rollring::test
