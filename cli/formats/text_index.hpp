#pragma once
// The begin and end of each value of a text: one on each line, or over several lines, or as the
// elements of a list.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/content.hpp"

namespace rollring::cli {

// 16 bytes for each value of any length.
struct TextEntry {
    std::uint64_t offset;
    std::uint32_t bytes;   // entry_bytes_max stands for that and more
    std::uint32_t number;  // of the line on which it begins, from 1
};
inline constexpr std::uint32_t entry_bytes_max = UINT32_MAX;

class TextIndex {
  public:
    // `offset` is where the text begins in its file.
    TextIndex(Layout layout, std::uint64_t offset)
        : layout_(layout), offset_(offset), from_(offset) {}

    void take(std::string_view block);  // the bytes that follow those of the last call
    // Returns the fault of the whole text, empty if there is none.
    std::string finish(std::vector<TextEntry>& entries);

  private:
    void take_lines(std::string_view block);
    void take_values(std::string_view block);
    void take_between(char c);
    void take_within(char c);
    void end_value(std::uint64_t end);
    void add(std::uint64_t offset, std::uint64_t bytes, std::uint64_t number);

    Layout layout_;
    std::uint64_t offset_;  // of the next byte
    std::uint64_t from_;    // the begin of the line or the value
    std::uint64_t line_ = 1;
    std::uint64_t from_line_ = 0;
    bool within_ = false;  // a line that is not blank, or a value
    bool in_list_ = false;
    bool quoted_ = false;
    bool escaped_ = false;
    std::uint64_t depth_ = 0;  // in the value
    bool too_many_ = false;
    std::vector<TextEntry> entries_;
};

}  // namespace rollring::cli
