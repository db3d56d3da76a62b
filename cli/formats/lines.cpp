#include "cli/formats/lines.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "cli/formats/content.hpp"
#include "cli/formats/gzip.hpp"
#include "cli/formats/random.hpp"
#include "cli/terminal/output.hpp"

namespace rollring::cli {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr std::string_view blanks = " \t\r\n";
constexpr const char* no_record = "contains no records: the file is empty, or has only blank lines";
constexpr const char* empty_list = "contains no records: its list is empty";

bool blank(std::string_view text) {
    return text.find_first_not_of(blanks) == std::string_view::npos;
}

std::string errno_text(int number) {
    return std::generic_category().message(number);
}

}  // namespace

void Lines::CloseFile::operator()(std::FILE* file) const {
    if (file != stdin) static_cast<void>(std::fclose(file));
}

Result<Lines> Lines::open(const std::string& path, const Selection& selection, bool list_is_one) {
    Lines lines;
    lines.path_ = path == "-" ? "stdin" : path;
    lines.selection_ = selection;
    lines.list_is_one_ = list_is_one;
    lines.file_.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rbe"));
    const auto refuse = [&](Errc code, int number, const std::string& why) {
        return failed(code, number, fmt::format("{}: {}", lines.path_, why));
    };
    if (!lines.file_) {
        const int number = errno;
        const Errc code = number == ENOENT   ? Errc::not_found
                          : number == EACCES ? Errc::permission_denied
                                             : Errc::system;
        return refuse(code, number, "cannot be read: check the path of --input");
    }
    struct stat status{};
    if (::fstat(::fileno(lines.file_.get()), &status) != 0) {
        return refuse(Errc::system, errno, "cannot be read");
    }
    if (S_ISDIR(status.st_mode))
        return refuse(Errc::system, 0, path == "-" ? "is a folder" : folder_remedy(path));
    const bool regular = S_ISREG(status.st_mode) && path != "-";
    lines.streamed_ = !regular && !selection.shuffle && selection.repeat == 1;
    if (!lines.streamed_ &&
        !(regular ? lines.index_file() : lines.index_memory(lines.rest_of_file({})))) {
        return refused(Errc::bad_record, lines.problem_);
    }
    lines.start_pass();
    return lines;
}

bool Lines::refuse(const std::string& why) {
    if (problem_.empty()) problem_ = fmt::format("{}: {}", path_, why);
    return false;
}

bool Lines::finish(TextIndex& index) {
    if (const std::string problem = index.finish(entries_); !problem.empty()) {
        return refuse(problem);
    }
    if (entries_.empty()) return refuse(listed() ? empty_list : no_record);
    return problem_.empty();
}

std::string Lines::rest_of_file(std::string first) {
    std::string block(block_bytes, '\0');
    while (may_read_on()) {
        // NOLINTNEXTLINE(clang-analyzer-unix.Stream): EAGAIN leaves the position as it was
        const std::size_t got = std::fread(block.data(), 1, block.size(), file_.get());
        first.append(block, 0, got);
    }
    if (std::ferror(file_.get()) != 0) refuse("cannot be read: " + errno_text(errno));
    return first;
}

bool Lines::index_memory(std::string bytes) {
    in_memory_ = true;
    memory_ = std::move(bytes);
    if (is_gzip(memory_)) {
        try {
            memory_ = unpack_gzip(memory_, memory_.max_size());
        } catch (const BadGzip& error) {
            return refuse(error.what());
        }
    }
    const std::string_view text = memory_;
    if (const std::string what = foreign_content(text, path_); !what.empty()) return refuse(what);
    const std::size_t begin = bom_bytes(text);
    const auto first = std::min(text.find_first_not_of(blanks, begin), text.size());
    layout_ = layout_of(text.substr(first, text.find('\n', first) - first), list_is_one_);
    TextIndex index(layout_, begin);
    index.take(text.substr(begin));
    return finish(index);
}

// The first line that is not blank, which may be as long as the file.
std::string Lines::first_line(std::uint64_t from) {
    std::string line;
    std::string block(block_bytes, '\0');
    for (;;) {
        const ssize_t got =
            ::pread(::fileno(file_.get()), block.data(), block.size(), static_cast<off_t>(from));
        if (got <= 0) return line;
        line.append(block, 0, static_cast<std::size_t>(got));
        from += static_cast<std::uint64_t>(got);
        const auto begin = line.find_first_not_of(blanks);
        if (begin == std::string::npos) {
            line.clear();
        } else if (const auto end = line.find('\n', begin); end != std::string::npos) {
            return line.substr(0, end);
        }
    }
}

// After a read that got nothing, or not everything: whether another one can get more.
bool Lines::may_read_on() {
    if (std::ferror(file_.get()) == 0) return std::feof(file_.get()) == 0;
    if (!wait_for_input(::fileno(file_.get()), errno)) return false;
    std::clearerr(file_.get());
    return true;
}

bool Lines::index_file() {
    std::string first(content_bytes, '\0');
    first.resize(std::fread(first.data(), 1, first.size(), file_.get()));
    if (is_gzip(first)) return index_memory(rest_of_file(std::move(first)));
    if (const std::string what = foreign_content(first, path_); !what.empty()) return refuse(what);
    const std::size_t begin = bom_bytes(first);
    layout_ = layout_of(first_line(begin), list_is_one_);
    TextIndex index(layout_, begin);
    if (std::fseek(file_.get(), static_cast<long>(begin), SEEK_SET) != 0) {
        return refuse("cannot be read: " + errno_text(errno));
    }
    std::string block(block_bytes, '\0');
    while (std::feof(file_.get()) == 0 && std::ferror(file_.get()) == 0) {
        const std::size_t got = std::fread(block.data(), 1, block.size(), file_.get());
        index.take(std::string_view(block).substr(0, got));
    }
    if (std::ferror(file_.get()) != 0) return refuse("cannot be read: " + errno_text(errno));
    return finish(index);
}

void Lines::start_pass() {
    at_ = selection_.shard.index;
    if (!selection_.shuffle) return;
    order_.resize(entries_.size());
    std::iota(order_.begin(), order_.end(), std::uint64_t{0});
    Random random(*selection_.shuffle + pass_ * 0x9e3779b97f4a7c15U);
    shuffle(std::span(order_), random);
}

bool Lines::next(Line& line) {
    return streamed_ ? next_streamed(line) : next_indexed(line);
}

// Reads the next line into scratch_, blank or not. False at the end, and if reading failed.
bool Lines::read_streamed(Line& line) {
    scratch_.clear();
    bool any = false;
    line.too_long = false;
    int c = 0;
    while ((c = ::getc_unlocked(file_.get())) != '\n') {
        if (c == EOF && std::ferror(file_.get()) != 0 && may_read_on()) continue;
        if (c == EOF) break;
        any = true;
        line.too_long |= scratch_.size() >= selection_.line_bytes_max;
        if (!line.too_long) scratch_ += static_cast<char>(c);
    }
    if (c == EOF && std::ferror(file_.get()) != 0) {
        if (errno != EINTR) refuse("cannot be read: " + errno_text(errno));  // otherwise Ctrl-C
        return false;
    }
    ended_line_ = c == '\n';
    if (c == EOF && !any) return false;
    if (++lines_seen_ == 1) scratch_.erase(0, bom_bytes(scratch_));
    return true;
}

// A text that is not a stream of lines is read to its end. False: it is a stream of lines.
bool Lines::begin_stream(Line& line) {
    if (line.too_long) return false;
    const Layout layout = layout_of(scratch_, list_is_one_);
    if (layout == Layout::lines && !is_gzip(scratch_) && foreign_content(scratch_, path_).empty()) {
        return false;
    }
    streamed_ = false;
    if (ended_line_) scratch_ += '\n';
    // Lines before this one were blank; its number counts them.
    const std::string before(lines_seen_ - 1, '\n');
    if (index_memory(rest_of_file(before + scratch_))) start_pass();
    return true;
}

bool Lines::next_streamed(Line& line) {
    for (;;) {
        if (!read_streamed(line)) {
            if (records_seen_ == 0 && std::feof(file_.get()) != 0) refuse(no_record);
            return false;
        }
        if (!line.too_long && blank(scratch_)) continue;
        if (records_seen_ == 0 && begin_stream(line)) {
            return problem_.empty() && next_indexed(line);
        }
        const Shard& shard = selection_.shard;
        line.place = records_seen_++;
        if (line.place % shard.count != shard.index) continue;
        line.text = scratch_;
        line.number = lines_seen_;
        line.pass = 0;
        return true;
    }
}

bool Lines::next_indexed(Line& line) {
    while (at_ >= entries_.size()) {
        if (pass_ + 1 >= selection_.repeat) return false;
        pass_++;
        start_pass();
        if (selection_.shard.index >= entries_.size()) return false;
    }
    last_ = {order_.empty() ? at_ : order_[at_], pass_};
    at_ += selection_.shard.count;
    return again(last_, line);
}

bool Lines::at(std::uint64_t place, Line& line) {
    return again({place, 0}, line);
}

bool Lines::again(const Bookmark& bookmark, Line& line) {
    const TextEntry& entry = entries_[bookmark.at];
    line.number = entry.number;
    line.place = bookmark.at;
    line.pass = bookmark.pass;
    line.too_long = entry.bytes == entry_bytes_max || entry.bytes > selection_.line_bytes_max;
    line.text = {};
    return line.too_long || read_entry(entry, line.text);
}

bool Lines::read_entry(const TextEntry& entry, std::string_view& text) {
    if (in_memory_) {
        text = std::string_view(memory_).substr(entry.offset, entry.bytes);
        return true;
    }
    scratch_.resize(entry.bytes);
    std::size_t done = 0;
    while (done < entry.bytes) {
        const ssize_t got = ::pread(::fileno(file_.get()), scratch_.data() + done,
                                    entry.bytes - done, static_cast<off_t>(entry.offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            problem_ = fmt::format("{}:{}: {}", path_, entry.number,
                                   got == 0 ? "the file became shorter" : errno_text(errno));
            return false;
        }
        done += static_cast<std::size_t>(got);
    }
    text = scratch_;
    return true;
}

std::optional<std::uint64_t> Lines::total() const {
    if (streamed_) return std::nullopt;
    return entries_.size() * selection_.repeat;
}

std::optional<double> Lines::progress() const {
    if (streamed_) return std::nullopt;
    if (entries_.empty()) return 1.0;
    const double share =
        std::min(1.0, static_cast<double>(at_) / static_cast<double>(entries_.size()));
    return (static_cast<double>(pass_) + share) / static_cast<double>(selection_.repeat);
}

}  // namespace rollring::cli
