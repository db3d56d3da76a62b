#include "cli/formats/content.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace rollring::cli {
namespace {

struct Known {
    std::string_view magic;
    std::string_view what;
    std::string_view remedy;  // {}: the path
};

constexpr std::string_view by_python =
    "in an environment with the Python package, python3 -m rollring.rollouts {} prints it as "
    "lines for 'rollring produce RING --input -'";
constexpr std::string_view by_iconv = "convert it: iconv -f {1} -t UTF-8 {0} > new.jsonl";

constexpr std::array known{
    Known{"PAR1", "a Parquet file", by_python},
    Known{"ARROW1", "an Arrow file", by_python},
    Known{std::string_view("\xff\xfe\0\0", 4), "UTF-32", by_iconv},
    Known{std::string_view("\0\0\xfe\xff", 4), "UTF-32", by_iconv},
    Known{"\xff\xfe", "UTF-16", by_iconv},
    Known{"\xfe\xff", "UTF-16", by_iconv},
    Known{"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it first: zstd -d {}"},
    Known{"\xfd\x37zXZ", "compressed by xz", "unpack it first: xz -d {}"},
    Known{"BZh", "compressed by bzip2", "unpack it first: bzip2 -d {}"},
    Known{"PK\x03\x04", "a zip archive", "unpack it first: unzip {}"},
};

// The mark of a tar archive lies behind the name of its first file.
constexpr std::string_view tar_mark = "ustar";
constexpr std::size_t tar_mark_at = 257;

constexpr std::string_view spaces = " \t\r\n";

// Whether brackets and braces are open at the end.
bool is_open(std::string_view text) {
    std::size_t depth = 0;
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\') i++;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if ((c == ']' || c == '}') && depth != 0) {
            depth--;
        }
    }
    return depth != 0;
}

// No text has such a byte.
bool is_binary(char c) {
    return static_cast<unsigned char>(c) < 0x20 && (c < '\t' || c > '\r') && c != '\x1b';
}

}  // namespace

std::size_t bom_bytes(std::string_view first) {
    return first.starts_with("\xef\xbb\xbf") ? 3 : 0;
}

std::string folder_remedy(const std::string& path) {
    return "is a folder: " + fmt::format(by_python, path);
}

std::string foreign_content(std::string_view first, const std::string& path) {
    first = first.substr(0, content_bytes);  // the rest of a text may hold any character
    for (const Known& one : known) {
        if (!first.starts_with(one.magic)) continue;
        return fmt::format("{}: {}", one.what,
                           fmt::format(fmt::runtime(one.remedy), path, one.what));
    }
    if (first.size() > tar_mark_at && first.substr(tar_mark_at).starts_with(tar_mark)) {
        return fmt::format("a tar archive: unpack it first: tar -xf {}", path);
    }
    if (!begins_as_json(first) && std::ranges::any_of(first, is_binary)) {
        return "binary data: `rollring formats` shows the accepted files";
    }
    return {};
}

bool begins_as_json(std::string_view text) {
    text.remove_prefix(bom_bytes(text));
    const auto begin = text.find_first_not_of(spaces);
    return begin == std::string_view::npos || text[begin] == '{' || text[begin] == '[';
}

Layout layout_of(std::string_view first_line, bool list_is_one) {
    const auto begin = first_line.find_first_not_of(spaces);
    if (begin == std::string_view::npos) return Layout::lines;
    const std::string_view line =
        first_line.substr(begin, first_line.find_last_not_of(spaces) + 1 - begin);
    const bool is_list = line.front() == '[';
    if (is_list && !list_is_one) return Layout::list;
    if (!is_list && line.front() != '{') return Layout::lines;
    // A line that was cut off is open as well, but ends anywhere.
    const bool breaks_off = std::string_view("[{,").contains(line.back());
    return breaks_off && is_open(line) ? Layout::values : Layout::lines;
}

}  // namespace rollring::cli
