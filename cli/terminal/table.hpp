#pragma once
// Tables and sentences for a terminal: as wide as it is, or of any width in a pipe.

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace rollring::cli {

inline constexpr std::size_t any_width = std::numeric_limits<std::size_t>::max();

// The columns of a descriptor's terminal; any_width if it is not one.
std::size_t width_of(int descriptor);

// Breaks long lines between words.
std::string wrapped(std::string_view text, std::size_t width);

class Table {
  public:
    enum class Align { left, right };
    struct Column {
        std::string title;
        Align align = Align::right;
        // If the terminal is too narrow, text columns are shortened to this many letters, in the
        // middle; 0: never.
        std::size_t least = 0;
        // If that is not enough, columns are left out: those with the highest rank first.
        int rank = 0;
        std::size_t most = any_width;  // letters shown even if there is more room
    };

    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

    void add(std::vector<std::string> cells);  // one for each column
    // `bold`: the titles, for a terminal with colours.
    [[nodiscard]] std::string text(std::size_t width, bool bold = false) const;

  private:
    [[nodiscard]] std::vector<std::size_t> whole_widths() const;
    [[nodiscard]] std::vector<std::size_t> widths_for(std::size_t width) const;

    std::vector<Column> columns_;
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace rollring::cli
