#include "cli/commands/command.hpp"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "cli/formats/json_tree.hpp"
#include "cli/terminal/option_names.hpp"

namespace rollring::cli {
namespace {

std::string running_command = "rollring";  // and its subcommand

template <class T>
struct Kind {
    std::optional<T> (*parse)(std::string_view text);
    const char* name;  // with an example
};

template <class T>
CLI::Option* add_text(CLI::App* app, const std::string& names, T& value, const Kind<T>& kind,
                      const std::string& help) {
    return app->add_option_function<std::string>(
        names,
        [&value, kind, names](const std::string& text) {
            const auto parsed = kind.parse(text);
            if (!parsed) {
                throw CLI::ValidationError(names, fmt::format("'{}' is not {}", text, kind.name));
            }
            value = *parsed;
        },
        help);
}

}  // namespace

int fail(const Error& error) {
    const bool usage = error.code == Errc::invalid_argument;
    Error told = error;
    if (usage) told.message = with_option_names(told.message);
    complain(told.to_string() + (usage ? "; see '" + running_command + " --help'" : ""));
    if (error.code == Errc::system && error.system_errno == EPIPE) return exit_closed_pipe;
    return usage ? exit_usage : exit_failed;
}

int fail(Errc code, const std::string& message) {
    return fail(Error{code, 0, message});
}

int code_after_writes(int code) {
    const int failed = failed_write();
    if (failed == 0) return code;
    if (failed == EPIPE) return code == exit_ok ? exit_closed_pipe : code;
    const int told = fail(Error{Errc::system, failed, "cannot write to standard output"});
    return code == exit_ok ? told : code;
}

void set_command(const std::string& name) {
    running_command = name;
}

void print_json(const Json& value) {
    print(dump_json(value) + "\n");
}

CLI::Option* add_bytes(CLI::App* app, const std::string& names, std::uint64_t& value,
                       const std::string& help) {
    constexpr Kind<std::uint64_t> bytes{parse_bytes, "a number of bytes such as 4096 or 64MiB"};
    return add_text(app, names, value, bytes, help)->type_name("BYTES");
}

CLI::Option* add_duration(CLI::App* app, const std::string& names, std::int64_t& value_ms,
                          const std::string& help) {
    constexpr Kind<std::int64_t> duration{parse_duration_ms, "a duration such as 30s or 500ms"};
    return add_text(app, names, value_ms, duration, help)->type_name("TIME");
}

CLI::Option* add_ring_name(CLI::App* app, std::string& name) {
    return app->add_option("NAME", name, "Name of the ring")->required();
}

void add_watch(CLI::App* app, double& watch_s, const std::string& help) {
    app->add_option_function<std::string>(
           "--watch",
           [&watch_s](const std::string& text) {
               const auto ms = parse_duration_ms(text.empty() ? "1s" : text);
               if (!ms || *ms < 10) {
                   throw CLI::ValidationError(
                       "--watch", "'" + text + "' is not a duration such as 1 or 500ms");
               }
               watch_s = static_cast<double>(*ms) * 1e-3;
           },
           help)
        ->expected(0, 1)
        ->type_name("[SECONDS]");
}

int repeat(double watch_s, const std::function<int()>& look) {
    for (;;) {
        const int code = look();
        if (code != exit_ok || watch_s <= 0 || failed_write() != 0) return code;
        pause_ms(static_cast<std::int64_t>(watch_s * 1e3));
        if (interrupted()) return interrupt_exit();
    }
}

CLI::Option* add_parent(CLI::App* app, std::uint32_t& parent) {
    return app->add_option("--parent", parent, "Exit when this process does")->group("");
}

void follow_parent(std::uint32_t parent) {
    if (parent == 0) return;
    static_cast<void>(::prctl(PR_SET_PDEATHSIG, SIGTERM));
    if (static_cast<std::uint32_t>(::getppid()) != parent) static_cast<void>(std::raise(SIGTERM));
}

void Waiting::tell(const std::string& what) {
    constexpr std::int64_t least_ns = 1'000'000'000;  // between two lines with different reasons
    constexpr std::int64_t longest_sum_ns = 600'000'000'000;
    const std::int64_t now_ns = monotonic_ns();
    if (began_ns_ == 0) {
        began_ns_ = now_ns;
        waits_++;
    }
    std::string sense = what;  // changing numbers are not news
    std::erase_if(sense, [](char c) { return (c >= '0' && c <= '9') || c == '.' || c == ','; });
    const bool known = sense == told_ || known_.contains(sense);
    const std::int64_t since_ns = now_ns - told_ns_;
    if (told_ns_ != 0 && since_ns < (known ? sum_after_ns_ : least_ns)) return;
    told_ns_ = now_ns;
    if (known) {
        sum_after_ns_ = std::min(2 * sum_after_ns_, longest_sum_ns);
        const auto waited_s = static_cast<double>(waited_ns_ + now_ns - began_ns_) * 1e-9;
        note(fmt::format("still waiting: {} so far, {} in all", counted(waits_, "wait"),
                         duration_text(waited_s)));
        return;
    }
    told_ = std::move(sense);
    in_full_ = true;
    const std::string most =
        most_ms_ > 0
            ? fmt::format(" ({} at most)", duration_text(static_cast<double>(most_ms_) * 1e-3))
            : "";
    note("waiting" + most + ": " + what);
}

void Waiting::over() {
    if (began_ns_ == 0) return;
    const std::int64_t waited_ns = monotonic_ns() - began_ns_;
    if (in_full_) note("continuing after " + duration_text(static_cast<double>(waited_ns) * 1e-9));
    waited_ns_ += waited_ns;
    began_ns_ = 0;
    known_.insert(std::move(told_));
    told_.clear();
    in_full_ = false;
}

}  // namespace rollring::cli
