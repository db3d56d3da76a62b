#pragma once
// An exhaustive, stateless explorer. Threads are ucontexts; each step that could go more than one
// way (which thread runs next, which store a load sees, whether the process is killed here) is a
// numbered choice, and the choices are replayed depth first until none is left, within bounds on
// preemptions, stale reads and crashes. In random mode the same choices are drawn from a seed.
//
// Plain accesses are not scheduling points: vector clocks judge them, and whether two of them are
// ordered does not depend on which of them ran first. They are crash points.
//
// A killed thread is started again with the next incarnation number. That it keeps the view and the
// clock of its predecessor is the acquire edge of a proven death.

#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace model {

inline constexpr int threads_max = 4;
inline constexpr int locations_max = 40;
using Clock = std::array<std::uint32_t, threads_max>;
using View = std::array<std::uint32_t, locations_max>;

template <class A>
void join(A& to, const A& from) {
    for (std::size_t i = 0; i < to.size(); i++) {
        if (from[i] > to[i]) to[i] = from[i];
    }
}

// The stores of a killed thread that the compiler may still have had in hand (see crash()).
class Undoable {
  public:
    [[nodiscard]] virtual bool can_undo() const = 0;
    virtual void undo() = 0;

  protected:
    ~Undoable() = default;
};

struct Bounds {
    int preemptions = 2;
    int stale = 1;
    int crashes = 0;
    std::uint64_t steps = 5'000;  // of one execution; more is a livelock
};

struct Counts {
    std::uint64_t executions = 0;
    std::uint64_t steps = 0;
    std::uint64_t crashes = 0;
    std::uint64_t dropped_stores = 0;
    std::uint64_t stale_reads = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t wakes = 0;
    std::uint64_t timeouts = 0;
};

// One program under test. Bodies must own no heap memory: a killed one is never unwound.
class Program {
  public:
    virtual ~Program() = default;
    virtual int threads() const = 0;
    virtual void set_up() = 0;
    virtual void run(int thread, int incarnation) = 0;
    virtual void finish() = 0;  // after all threads are done
    virtual bool killable(int) const { return false; }
    virtual bool could_go_on(int) const { return true; }  // of a sleeper without a wake-up to come
};

enum class Choice { data, schedule, stale, crash };

class World {
  public:
    explicit World(Bounds bounds) : bounds_(bounds) {
        for (auto& thread : threads_) thread.stack.resize(stack_bytes);
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    // True if every execution passed. Stops at the first that does not.
    bool explore(Program& program);
    // Execution i draws from seed + i, so that one that fails can be run again alone.
    bool explore_random(Program& program, std::uint64_t seed, std::uint64_t executions);
    bool replay(Program& program, const std::vector<std::uint32_t>& choices);

    [[nodiscard]] const std::string& failure() const { return failure_; }
    [[nodiscard]] const Counts& counts() const { return counts_; }
    [[nodiscard]] std::string trail() const;

    // --- for programs
    std::uint32_t choose(std::uint32_t ways, Choice kind = Choice::data);
    void fail(const std::string& what);
    void check(bool holds, const char* what) {
        if (!holds) fail(what);
    }
    void park();      // goes on when another thread has stored something
    void nudge();     // lets the parked ones look again
    void external();  // the outside world has seen how far we are: nothing before it is undone
    bool verbose = false;

    // --- for the memory model
    void access_point(bool shared);
    bool stale_allowed() const { return current_ >= 0 && stale_left_ > 0 && idle_rounds_ == 0; }
    void stale_read() { stale_left_--, counts_.stale_reads++; }
    void stored(Undoable& store, bool release);
    void progress();  // something changed that others may be waiting for
    void sleep_on(int location);
    void wake(int location);
    [[nodiscard]] int current() const { return current_; }
    [[nodiscard]] View& view() { return threads_[thread_index()].view; }
    [[nodiscard]] Clock& clock() { return threads_[thread_index()].clock; }
    int next_location() { return locations_++; }

  private:
    enum class State { ready, parked, sleeping, done };
    struct Thread {
        ucontext_t context{};
        std::vector<char> stack;
        State state = State::done;
        int incarnation = 0;
        int sleeps_on = -1;
        View view{};
        Clock clock{};
        std::vector<Undoable*> pending;  // stores not followed by a release store; the last release
    };
    struct Step {
        std::uint32_t value;
        std::uint32_t ways;
    };
    static constexpr std::size_t stack_bytes = 64 * 1024;

    static void enter();
    void execute(Program& program);
    void start(int index);
    void switch_to(int next);
    void leave_to_main();
    void pick_next();
    bool release_waiters();
    [[noreturn]] void crash();
    bool advance();
    std::uint64_t random();
    // the main program (set up and finish) uses the last thread
    [[nodiscard]] int thread_index() const { return current_ < 0 ? threads_max - 1 : current_; }

    Bounds bounds_;
    Counts counts_;
    Program* program_ = nullptr;
    std::array<Thread, threads_max> threads_;
    ucontext_t main_{};
    std::vector<Step> trail_;
    std::size_t at_ = 0;
    std::string failure_;
    std::uint64_t rng_ = 0;
    std::uint64_t steps_ = 0;
    int current_ = -1;
    int locations_ = 0;
    int preemptions_left_ = 0;
    int stale_left_ = 0;
    int crashes_left_ = 0;
    int idle_rounds_ = 0;  // rounds in which no thread could run, since the last store
    bool random_ = false;
    bool died_ = false;
};

inline World* world = nullptr;

}  // namespace model
