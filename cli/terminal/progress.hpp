#pragma once
// One line on a terminal's stderr: a bar, the rate, the time left. Nothing elsewhere.

#include <cstdint>
#include <optional>
#include <string>

namespace rollring::cli {

struct Amount {
    std::uint64_t records = 0;
    std::uint64_t tokens = 0;
    std::uint64_t bytes = 0;
};

class Progress {
  public:
    // Draws if stderr is a terminal and, with `json`, stdout too.
    Progress(std::string title, bool json);
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress() { clear(); }

    // True at most ten times a second, and never without a terminal: time to call draw().
    [[nodiscard]] bool due();
    // `share` from 0 to 1, if known.
    void draw(const Amount& done, std::optional<double> share);
    void clear();  // before anything else is written

    [[nodiscard]] bool enabled() const { return enabled_; }

  private:
    std::string title_;
    bool enabled_;
    bool drawn_ = false;
    std::int64_t started_ns_;
    std::int64_t next_ns_ = 0;
    std::int64_t last_ns_ = 0;
    Amount last_;
    double tokens_per_s_ = 0;  // smoothed
    double bytes_per_s_ = 0;
};

}  // namespace rollring::cli
