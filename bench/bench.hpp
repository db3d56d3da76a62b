#pragma once
// The parts that all questions of rollring-bench share: two pinned processes, a clock, the time
// that a cache line takes between their CPUs, progress, and the common options.

#include <array>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/interrupts.hpp"
#include "report.hpp"

namespace bench {

using rollring::cli::interrupted;  // rounds stop, and temporary objects are removed

// Ends the program with exit code 1 and this message, after its objects are removed.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};
[[noreturn]] void fail(const std::string& message);

std::int64_t now_ns();
void relax();  // inside a spin loop

// Two different CPUs if the process may use two, else the same one twice.
struct Cpus {
    int producer = 0;
    int consumer = 0;
    bool realtime = false;  // under SCHED_RR: others on a busy machine do not get in between

    static Cpus choose(const std::vector<int>& wanted, bool realtime);
    // Those that this program may use.
    static std::vector<int> allowed();
    [[nodiscard]] bool distinct() const { return producer != consumer; }
};

// Memory that a process shares with the children it forks. Zeroed.
class SharedBytes {
  public:
    explicit SharedBytes(std::size_t bytes);
    SharedBytes(const SharedBytes&) = delete;
    SharedBytes& operator=(const SharedBytes&) = delete;
    ~SharedBytes();

    [[nodiscard]] std::byte* data() const { return data_; }
    template <class T>
    [[nodiscard]] T* at(std::size_t offset = 0) const {
        return reinterpret_cast<T*>(data_ + offset);
    }

  private:
    std::byte* data_;
    std::size_t bytes_;
};

// The answers of a run's two sides to their parent.
struct Board {
    alignas(64) std::atomic<std::uint32_t> ready;  // sides that are set up
    alignas(64) std::array<char, 256> problem;
    std::array<std::int64_t, 8> figures;  // the question's own

    // Waits until both sides are here.
    void meet(std::uint32_t sides = 2);
    // Records the first problem and ends this process.
    [[noreturn]] void give_up(const std::string& why);
};

using Side = std::function<void(Board&)>;

// While it lives, no other rollring-bench of this user measures: they would disturb each other, and
// two pairs that spin with --realtime on the same CPUs get nowhere. Best effort.
class Turn {
  public:
    Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

  private:
    int file_;
};

struct Task {
    int cpu;
    Side side;
};

// Forks a process for each task, in their order, pinned unless its CPU is `any_cpu`, and waits for
// all. Returns the problem, empty if none.
inline constexpr int any_cpu = -1;
inline constexpr std::int64_t run_limit_s = 120;
std::string run_all(const std::vector<Task>& tasks, bool realtime, Board& board,
                    std::int64_t limit_s = run_limit_s);

// The same for two, the consumer first.
std::string run_pair(const Cpus& cpus, Board& board, const Side& producer, const Side& consumer);

// One-way time of a cache line between the two CPUs, ns: the median of many short bursts. It moves
// by a factor of ten on shared machines and explains most swings of the other figures.
double line_ns(const Cpus& cpus);

// One line on a terminal, rewritten in place; nothing when piped.
class Progress {
  public:
    explicit Progress(std::size_t steps);
    ~Progress();
    void step(std::string_view what);

  private:
    bool shown_;
    std::size_t steps_;
    std::size_t done_ = 0;
    std::int64_t began_ns_;
};

// The options that every question has.
struct Common {
    std::vector<int> cpus;  // producer's, consumer's
    int repeat = 7;
    double seconds = 0.3;  // of one run
    bool json = false;
    bool realtime = false;

    [[nodiscard]] Cpus choose_cpus() const { return Cpus::choose(cpus, realtime); }
};

// The machine and its CPUs, for the head of every report.
Json machine(const Cpus& cpus);

// All of `text` as a number; nothing if it is anything else.
template <class T>
std::optional<T> parse_number(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// "64MiB", "4M", "4096"; of an option.
std::uint64_t parse_bytes(const std::string& text);

}  // namespace bench
