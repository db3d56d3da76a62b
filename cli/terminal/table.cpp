#include "cli/terminal/table.hpp"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace rollring::cli {
namespace {

constexpr std::size_t gap = 2;

// Bytes that begin a letter; good enough for the usual names of prompts.
std::size_t letters(std::string_view text) {
    return static_cast<std::size_t>(std::ranges::count_if(
        text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::size_t sum_of(const std::vector<std::size_t>& widths) {
    std::size_t sum = 0;
    for (const std::size_t width : widths) sum += width == 0 ? 0 : width + gap;
    return sum == 0 ? 0 : sum - gap;
}

// The start of the letter with this number.
std::size_t offset_of(std::string_view text, std::size_t letter) {
    std::size_t at = 0;
    while (at < text.size() && letters(text.substr(0, at + 1)) <= letter) at++;
    return at;
}

// Keeps the beginning and the end, because names of one kind often differ only in the end.
std::string cut(const std::string& cell, std::size_t width) {
    const std::size_t count = letters(cell);
    if (count <= width || width == 0) return cell;
    const std::size_t before = (width - 1) / 2;
    const std::size_t after = width - 1 - before;
    return cell.substr(0, offset_of(cell, before)) + "\u2026" +
           cell.substr(offset_of(cell, count - after));
}

std::string padded(const std::string& cell, std::size_t width, Table::Align align) {
    const std::string shown = cut(cell, width);
    const std::string blanks(width - std::min(width, letters(shown)), ' ');
    return align == Table::Align::left ? shown + blanks : blanks + shown;
}

}  // namespace

std::size_t width_of(int descriptor) {
    struct winsize window{};
    if (::isatty(descriptor) == 0) return any_width;
    if (::ioctl(descriptor, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return 80;
    return window.ws_col;
}

std::string wrapped(std::string_view text, std::size_t width) {
    std::string out;
    std::size_t column = 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
        const std::string_view word = text.substr(at, end - at);
        if (column > 0 && column + letters(word) > width) {
            if (out.back() == ' ') out.pop_back();
            out += "\n  ";
            column = 2;
        }
        out += word;
        column += letters(word);
        if (end < text.size()) out += text[end];
        column = end < text.size() && text[end] == '\n' ? 0 : column + 1;
        at = end + 1;
    }
    return out;
}

void Table::add(std::vector<std::string> cells) {
    rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::whole_widths() const {
    std::vector<std::size_t> widths;
    for (std::size_t i = 0; i < columns_.size(); i++) {
        std::size_t most = 0;
        for (const auto& row : rows_) most = std::max(most, letters(row[i]));
        widths.push_back(std::max(letters(columns_[i].title), std::min(most, columns_[i].most)));
    }
    return widths;
}

// 0: left out. First the columns that can be shortened are, as far as necessary; if that is not
// enough, the next column is left out, and the rest gets its room.
std::vector<std::size_t> Table::widths_for(std::size_t width) const {
    std::vector<std::size_t> whole = whole_widths();
    std::vector<std::size_t> order(columns_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // The number decides among equals: a stable sort of libstdc++ 12 warns in clang.
    std::ranges::sort(order, [&](std::size_t one, std::size_t other) {
        const auto rank = columns_[one].rank;
        return rank != columns_[other].rank ? rank > columns_[other].rank : one < other;
    });
    for (const std::size_t next : order) {
        std::vector<std::size_t> widths = whole;
        for (std::size_t i = 0; i < columns_.size() && sum_of(widths) > width; i++) {
            const std::size_t least = std::max(columns_[i].least, letters(columns_[i].title));
            if (columns_[i].least == 0 || widths[i] <= least) continue;
            widths[i] -= std::min(widths[i] - least, sum_of(widths) - width);
        }
        if (sum_of(widths) <= width || columns_[next].rank == 0) return widths;
        whole[next] = 0;
    }
    return whole;
}

std::string Table::text(std::size_t width, bool bold) const {
    const std::vector<std::size_t> widths = widths_for(width);
    std::string out;
    const auto line = [&](const auto& cell_of) {
        std::string text;
        for (std::size_t i = 0; i < columns_.size(); i++) {
            if (widths[i] == 0) continue;
            if (!text.empty()) text += std::string(gap, ' ');
            text += padded(cell_of(i), widths[i], columns_[i].align);
        }
        text.erase(text.find_last_not_of(' ') + 1);
        out += text + "\n";
    };
    line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
    if (bold) out = "\x1b[1m" + out.substr(0, out.size() - 1) + "\x1b[0m\n";
    for (const auto& row : rows_) line([&](std::size_t i) -> const std::string& { return row[i]; });
    return out;
}

}  // namespace rollring::cli
