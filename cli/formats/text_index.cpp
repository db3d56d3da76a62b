#include "cli/formats/text_index.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace rollring::cli {
namespace {

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

void TextIndex::add(std::uint64_t offset, std::uint64_t bytes, std::uint64_t number) {
    too_many_ |= number > std::numeric_limits<std::uint32_t>::max();
    entries_.push_back({offset,
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, entry_bytes_max)),
                        static_cast<std::uint32_t>(number)});
}

void TextIndex::take(std::string_view block) {
    if (layout_ == Layout::lines) {
        take_lines(block);
    } else {
        take_values(block);
    }
}

void TextIndex::take_lines(std::string_view block) {
    while (!block.empty()) {
        const auto end = std::min(block.find('\n'), block.size());
        within_ = within_ || !std::ranges::all_of(block.substr(0, end), is_space);
        if (end == block.size()) {
            offset_ += end;
            return;
        }
        if (within_) add(from_, offset_ + end - from_, line_);
        within_ = false;
        line_++;
        offset_ += end + 1;
        from_ = offset_;
        block.remove_prefix(end + 1);
    }
}

void TextIndex::take_values(std::string_view block) {
    for (const char c : block) {
        if (!within_) take_between(c);
        if (within_) take_within(c);
        if (c == '\n') line_++;
        offset_++;
    }
}

void TextIndex::take_between(char c) {
    if (is_space(c) || (in_list_ && c == ',')) return;
    if (layout_ == Layout::list && !in_list_ && c == '[') {
        in_list_ = true;
    } else if (in_list_ && c == ']') {
        in_list_ = false;
    } else {
        within_ = true;
        from_ = offset_;
        from_line_ = line_;
    }
}

void TextIndex::take_within(char c) {
    if (quoted_) {
        quoted_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
        if (!quoted_ && depth_ == 0) end_value(offset_ + 1);
        return;
    }
    switch (c) {
        case '"':
            quoted_ = true;
            return;
        case '[':
        case '{':
            depth_++;
            return;
        case ']':
        case '}':
            if (depth_ == 0) {  // of the list: ends a number before it
                end_value(offset_);
                in_list_ = false;
            } else if (--depth_ == 0) {
                end_value(offset_ + 1);
            }
            return;
        default:
            if (depth_ == 0 && (is_space(c) || c == ',')) end_value(offset_);
    }
}

void TextIndex::end_value(std::uint64_t end) {
    add(from_, std::max<std::uint64_t>(end - from_, 1), from_line_);
    within_ = false;
}

std::string TextIndex::finish(std::vector<TextEntry>& entries) {
    if (within_ && (layout_ == Layout::lines || (depth_ == 0 && !quoted_))) {
        add(from_, offset_ - from_, layout_ == Layout::lines ? line_ : from_line_);
        within_ = false;
    }
    entries = std::move(entries_);
    if (too_many_) return "it has more than 4 Gi lines";
    if (within_) {
        return fmt::format("the value that begins on line {} does not end: the file was cut off",
                           from_line_);
    }
    if (in_list_) return "its list does not end: the file was cut off";
    return {};
}

}  // namespace rollring::cli
