#pragma once
// The lines of a text file that one shard has to send, in order, pass after pass. If the file is
// pretty-printed JSON, or one list, its values take the place of lines.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/formats/record_source.hpp"
#include "cli/formats/text_index.hpp"
#include "rollring/error.hpp"

namespace rollring::cli {

struct Line {
    std::string_view text;     // until the next call
    std::uint64_t number = 0;  // in the file, from 1
    std::uint64_t pass = 0;    // from 0
    std::uint64_t place = 0;   // index among all lines that are not blank
    bool too_long = false;     // longer than Selection::line_bytes_max: without its text
};

// Blank lines count for the line number and are left out. A regular file is indexed first (16 bytes
// a line) and read line by line; a pipe is streamed, and kept in memory if it is to be shuffled or
// repeated. gzip is unpacked into memory, and so is a pipe without lines. Of a line that is too
// long no more is kept in memory than the limit.
class Lines {
  public:
    // `list_is_one`: see layout_of(). A file with only blank lines is an error.
    static Result<Lines> open(const std::string& path, const Selection& selection,
                              bool list_is_one = false);

    // False at the end, and if reading failed: then problem() is not empty.
    bool next(Line& line);
    // A bookmark of the last line of next(), and that line again; empty while a pipe is streamed.
    [[nodiscard]] std::optional<Bookmark> bookmark() const {
        if (streamed_) return std::nullopt;
        return last_;
    }
    bool again(const Bookmark& bookmark, Line& line);
    // The number of lines, and each by its index; none while a pipe is streamed.
    [[nodiscard]] std::uint64_t count() const { return entries_.size(); }
    bool at(std::uint64_t place, Line& line);
    [[nodiscard]] bool streamed() const { return streamed_; }
    [[nodiscard]] bool listed() const { return layout_ == Layout::list; }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::optional<double> progress() const;
    // Lines of all shards and passes; unknown while a pipe is streamed.
    [[nodiscard]] std::optional<std::uint64_t> total() const;

  private:
    struct CloseFile {
        void operator()(std::FILE* file) const;
    };

    Lines() = default;
    bool refuse(const std::string& why);
    bool index_file();
    bool index_memory(std::string bytes);
    bool finish(TextIndex& index);
    std::string first_line(std::uint64_t from);
    std::string rest_of_file(std::string first);
    bool read_entry(const TextEntry& entry, std::string_view& text);
    bool may_read_on();
    void start_pass();
    bool read_streamed(Line& line);
    bool begin_stream(Line& line);
    bool next_streamed(Line& line);
    bool next_indexed(Line& line);

    std::string path_;
    std::string problem_;
    Selection selection_;
    std::unique_ptr<std::FILE, CloseFile> file_;
    Layout layout_ = Layout::lines;
    bool list_is_one_ = false;
    bool streamed_ = false;
    bool in_memory_ = false;
    std::string memory_;                // the whole text, if in_memory_
    std::vector<TextEntry> entries_;    // the lines that are not blank
    std::vector<std::uint64_t> order_;  // a permutation of entries_, if shuffled
    std::uint64_t lines_seen_ = 0;
    std::uint64_t records_seen_ = 0;  // streamed: lines that are not blank
    std::uint64_t at_ = 0;            // index into the order, moves by shard.count
    std::uint64_t pass_ = 0;
    Bookmark last_{};
    std::string scratch_;      // the line
    bool ended_line_ = false;  // for a streamed line: by its newline
};

}  // namespace rollring::cli
