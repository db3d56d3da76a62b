#include "cli/terminal/progress.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/terminal/colour.hpp"
#include "cli/terminal/output.hpp"
#include "cli/terminal/quantity.hpp"
#include "cli/terminal/table.hpp"
#include "rollring/time.hpp"

namespace rollring::cli {
namespace {

constexpr std::int64_t interval_ns = 100'000'000;

std::string bar(double share) {
    constexpr int cells = 12;
    const int full = std::clamp(static_cast<int>(share * cells), 0, cells);
    return "[" + std::string(static_cast<std::size_t>(full), '#') +
           std::string(static_cast<std::size_t>(cells - full), '.') + "]";
}

void smooth(double& rate, double now) {
    rate = rate == 0 ? now : rate + (now - rate) * 0.3;
}

}  // namespace

Progress::Progress(std::string title, bool json)
    : title_(std::move(title)),
      enabled_(moves_cursor(STDERR_FILENO) && (!json || ::isatty(STDOUT_FILENO) != 0)),
      started_ns_(monotonic_ns()),
      last_ns_(started_ns_) {}

bool Progress::due() {
    if (!enabled_) return false;
    const std::int64_t now = monotonic_ns();
    if (now < next_ns_) return false;
    next_ns_ = now + interval_ns;
    return true;
}

void Progress::draw(const Amount& done, std::optional<double> share) {
    if (!enabled_) return;
    const std::int64_t now = monotonic_ns();
    const double step = std::max(1e-3, static_cast<double>(now - last_ns_) * 1e-9);
    smooth(tokens_per_s_, static_cast<double>(done.tokens - last_.tokens) / step);
    smooth(bytes_per_s_, static_cast<double>(done.bytes - last_.bytes) / step);
    last_ = done;
    last_ns_ = now;
    std::string text = title_ + " ";
    const double elapsed = static_cast<double>(now - started_ns_) * 1e-9;
    if (share) text += fmt::format("{} {:3.0f}%  ", bar(*share), *share * 100);
    // The least important text comes last, because narrow terminals cut it off.
    text += share && *share > 0.001 && *share < 1
                ? "ETA " + duration_text(elapsed * (1 - *share) / *share)
                : duration_text(elapsed);
    text += fmt::format("  {} records  {} tokens/s  {:.2f} GB/s", count_text(done.records),
                        short_text(tokens_per_s_), bytes_per_s_ * 1e-9);
    text.resize(std::min(text.size(), width_of(STDERR_FILENO) - 1));
    static_cast<void>(write_all(STDERR_FILENO, "\r" + text + "\x1b[K"));
    drawn_ = true;
}

void Progress::clear() {
    if (!drawn_) return;
    static_cast<void>(write_all(STDERR_FILENO, "\r\x1b[K"));
    drawn_ = false;
}

}  // namespace rollring::cli
