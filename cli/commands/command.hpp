#pragma once
// The common parts of subcommands: options, exit codes, and failures.
//
// Exit codes: 0 done, 1 failed, 2 wrong use, 129, 130 or 143 stopped by SIGHUP, SIGINT or SIGTERM,
// 141 if the reader of stdout went away.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/terminal/interrupts.hpp"
#include "cli/terminal/options.hpp"
#include "cli/terminal/output.hpp"
#include "cli/terminal/quantity.hpp"
#include "rollring/error.hpp"

namespace rollring::cli {

class Json;
namespace CLI = command_line;

inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;
inline constexpr int exit_closed_pipe = 141;  // a shell's code for a process that SIGPIPE ended

struct Command {
    CLI::App* app;
    std::function<int()> run;  // returns the exit code
};

Command add_create(CLI::App& app);
Command add_rm(CLI::App& app);
Command add_ls(CLI::App& app);
Command add_stat(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_size(CLI::App& app);
Command add_produce(CLI::App& app);
Command add_consume(CLI::App& app);
Command add_groups(CLI::App& app);
Command add_weights(CLI::App& app);
Command add_metrics(CLI::App& app);
Command add_top(CLI::App& app);
Command add_view(CLI::App& app);
Command add_demo(CLI::App& app);
Command add_formats(CLI::App& app);
Command add_record(CLI::App& app);
Command add_replay(CLI::App& app);
Command add_ledger(CLI::App& app);
Command add_restore(CLI::App& app);

// Prints "rollring: <Errc name>: message" on stderr and, for wrong use, a pointer to the help.
// Returns the exit code.
int fail(const Error& error);
int fail(Errc code, const std::string& message);
// The final exit code of a command that ends with `code`, given its writes to stdout. Reports a
// failed write unless the pipe's reader went away (`rollring stat r --watch | head`).
[[nodiscard]] int code_after_writes(int code);
// For main(): the running command, for fail().
void set_command(const std::string& name);

void print_json(const Json& value);  // one line on stdout

// Options whose text is not just a number. The value is unchanged if the option is absent.
CLI::Option* add_bytes(CLI::App* app, const std::string& names, std::uint64_t& value,
                       const std::string& help);
CLI::Option* add_duration(CLI::App* app, const std::string& names, std::int64_t& value_ms,
                          const std::string& help);
inline constexpr std::uint64_t bytes_not_given = ~std::uint64_t{0};  // where 0 has a meaning
// One of several words.
template <class T>
using Choices = std::vector<std::pair<std::string, T>>;
template <class T>
CLI::Option* add_choice(CLI::App* app, const std::string& names, T& value,
                        const std::type_identity_t<Choices<T>>& choices, const std::string& help);
CLI::Option* add_ring_name(CLI::App* app, std::string& name);
// --watch [SECONDS]: repeats `look` until it fails, or until an interrupt; runs it once if
// `watch_s` is 0.
void add_watch(CLI::App* app, double& watch_s, const std::string& help);
int repeat(double watch_s, const std::function<int()>& look);

// Ends this process with its parent, if the parent started it with --parent PID (hidden).
CLI::Option* add_parent(CLI::App* app, std::uint32_t& parent);
void follow_parent(std::uint32_t parent);

// Reports the reasons for which a command waits: in full at first and at the end of that wait, and
// then as a sum, less and less often.
class Waiting {
  public:
    explicit Waiting(std::int64_t most_ms) : most_ms_(most_ms) {}  // 0: unlimited
    void tell(const std::string& what);                            // may be called at any rate
    void over();

  private:
    std::int64_t most_ms_;
    std::int64_t began_ns_ = 0;  // 0: not waiting
    std::int64_t told_ns_ = 0;
    std::int64_t sum_after_ns_ = first_sum_ns;
    std::int64_t waited_ns_ = 0;  // in finished waits
    std::uint64_t waits_ = 0;
    bool in_full_ = false;         // this wait was reported in full
    std::string told_;             // the reason, without its numbers
    std::set<std::string> known_;  // the reasons of finished waits

    static constexpr std::int64_t first_sum_ns = 30'000'000'000;
};

// Retries `open` until it works, fails for good, or the time is over; gives up early on an
// interrupt, and reports the reason of the wait. `open` gets the time for one attempt, in ms.
template <class T>
Result<T> open_patiently(std::int64_t timeout_ms,
                         const std::function<Result<T>(std::int64_t)>& open);

}  // namespace rollring::cli

#include "rollring/time.hpp"

namespace rollring::cli {

template <class T>
CLI::Option* add_choice(CLI::App* app, const std::string& names, T& value,
                        const std::type_identity_t<Choices<T>>& choices, const std::string& help) {
    std::vector<std::string> words;
    std::string now;
    for (const auto& [word, meaning] : choices) {
        words.push_back(word);
        if (meaning == value) now = word;
    }
    return app
        ->add_option_function<std::string>(
            names,
            [&value, choices](const std::string& text) {
                for (const auto& [word, meaning] : choices) {
                    if (word == text) value = meaning;
                }
            },
            help)
        ->check(CLI::IsMember(words))
        ->type_name("WORD")
        ->default_str(now);
}

template <class T>
Result<T> open_patiently(std::int64_t timeout_ms,
                         const std::function<Result<T>(std::int64_t)>& open) {
    constexpr std::int64_t slice_ms = 200;
    const std::int64_t end_ns = monotonic_ns() + timeout_ms * 1'000'000;
    Waiting waiting(timeout_ms);
    constexpr std::int64_t first_ms = 50;  // longer obstacles are reported
    for (std::int64_t try_ms = std::min(timeout_ms, first_ms);;) {
        Result<T> opened = open(try_ms);
        if (opened) waiting.over();
        if (opened || interrupted()) return opened;
        const Errc code = opened.error().code;
        const bool may_change = code == Errc::not_found || code == Errc::not_ready ||
                                code == Errc::busy || code == Errc::no_free_lane;
        const std::int64_t left_ms = (end_ns - monotonic_ns()) / 1'000'000;
        if (may_change && left_ms > 0) {
            waiting.tell(opened.error().message);
            try_ms = std::min(left_ms, slice_ms);
            continue;
        }
        // The error describes its own attempt alone.
        if (may_change && timeout_ms > 0) {
            Error& error = opened.error();
            error.message += "; waited " + duration_text(static_cast<double>(timeout_ms) * 1e-3);
        }
        return opened;
    }
}

}  // namespace rollring::cli
