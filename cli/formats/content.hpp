#pragma once
// The kind of a file by its first bytes: text that we read, text to unpack, or another kind, which
// gets its name and a remedy instead of "not JSON".

#include <cstddef>
#include <string>
#include <string_view>

namespace rollring::cli {

// The number of bytes that bom_bytes(), is_gzip() and foreign_content() check.
inline constexpr std::size_t content_bytes = 512;

// Bytes of a UTF-8 byte order mark in front of the text: 3 or 0.
std::size_t bom_bytes(std::string_view first);

// For a folder: it is one, and a way to send its files.
std::string folder_remedy(const std::string& path);

// The kind of the file, and a remedy; empty for text and for gzip.
std::string foreign_content(std::string_view first, const std::string& path);

// Whether it may be an object or a list; also true of blanks.
bool begins_as_json(std::string_view text);

// The layout of values in a text of JSON.
enum class Layout {
    lines,   // one on each line
    values,  // each over several lines, as a pretty-printer writes them
    list,    // as elements of one list
};

// The layout, from the text up to the end of its first line that is not blank. `list_is_one`: a
// list on a line of its own is one value (a batch of Atropos), and not a list of records.
Layout layout_of(std::string_view first_line, bool list_is_one);

}  // namespace rollring::cli
