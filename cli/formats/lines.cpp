#include "cli/formats/lines.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <system_error>

#include "cli/formats/random.hpp"
#include "cli/terminal/output.hpp"

namespace rollring::cli {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr auto entry_bytes_max = std::numeric_limits<std::uint32_t>::max();  // stands for any more

bool blank(std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string errno_text(int number) {
    return std::generic_category().message(number);
}

}  // namespace

void Lines::CloseFile::operator()(std::FILE* file) const {
    if (file != stdin) static_cast<void>(std::fclose(file));
}

Result<Lines> Lines::open(const std::string& path, const Selection& selection) {
    Lines lines;
    lines.path_ = path == "-" ? "stdin" : path;
    lines.selection_ = selection;
    lines.file_.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rbe"));
    const auto refuse = [&](Errc code, int number, const std::string& why) {
        return failed(code, number, fmt::format("{}: {}", lines.path_, why));
    };
    if (!lines.file_) {
        const int number = errno;
        const Errc code = number == ENOENT   ? Errc::not_found
                          : number == EACCES ? Errc::permission_denied
                                             : Errc::system;
        return refuse(code, number, "cannot be read: check the path given to --input");
    }
    struct stat status{};
    if (::fstat(::fileno(lines.file_.get()), &status) != 0) {
        return refuse(Errc::system, errno, "cannot be read");
    }
    if (S_ISDIR(status.st_mode)) return refuse(Errc::system, EISDIR, "cannot be read");
    const bool regular = S_ISREG(status.st_mode) && path != "-";
    lines.streamed_ = !regular && !selection.shuffle && selection.repeat == 1;
    lines.in_memory_ = !regular && !lines.streamed_;
    if (!lines.streamed_ && !(regular ? lines.index_file() : lines.slurp())) {
        return refused(Errc::system, lines.problem_);
    }
    lines.start_pass();
    return lines;
}

void Lines::add_line(std::uint64_t offset, std::uint64_t bytes, bool is_blank) {
    lines_seen_++;
    if (is_blank) return;
    if (lines_seen_ > std::numeric_limits<std::uint32_t>::max()) {
        problem_ = fmt::format("{}:{}: more than 4 Gi lines", path_, lines_seen_);
        return;
    }
    entries_.push_back({offset,
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, entry_bytes_max)),
                        static_cast<std::uint32_t>(lines_seen_)});
}

bool Lines::index_file() {
    std::string block(block_bytes, '\0');
    std::uint64_t offset = 0;  // of the line, of which so much was seen:
    std::uint64_t bytes = 0;
    bool is_blank = true;
    while (std::feof(file_.get()) == 0 && std::ferror(file_.get()) == 0) {
        const std::size_t got = std::fread(block.data(), 1, block.size(), file_.get());
        std::string_view rest(block.data(), got);
        while (!rest.empty()) {
            const auto end = std::min(rest.find('\n'), rest.size());
            bytes += end;
            is_blank = is_blank && blank(rest.substr(0, end));
            if (end == rest.size()) break;
            add_line(offset, bytes, is_blank);
            offset += bytes + 1;
            bytes = 0;
            is_blank = true;
            rest.remove_prefix(end + 1);
        }
    }
    if (std::ferror(file_.get()) != 0) problem_ = fmt::format("{}: cannot be read", path_);
    if (bytes != 0) add_line(offset, bytes, is_blank);
    return problem_.empty();
}

// After a read that got nothing, or not all: whether a further one can get more.
bool Lines::may_read_on() {
    if (std::ferror(file_.get()) == 0) return std::feof(file_.get()) == 0;
    if (!wait_for_input(::fileno(file_.get()), errno)) return false;
    std::clearerr(file_.get());
    return true;
}

bool Lines::slurp() {
    std::string block(block_bytes, '\0');
    do {
        const std::size_t got = std::fread(block.data(), 1, block.size(), file_.get());
        memory_.append(block, 0, got);
    } while (may_read_on());
    if (std::ferror(file_.get()) != 0) problem_ = fmt::format("{}: cannot be read", path_);
    std::uint64_t offset = 0;
    for (std::string_view rest = memory_; !rest.empty();) {
        const auto end = std::min(rest.find('\n'), rest.size());
        add_line(offset, end, blank(rest.substr(0, end)));
        const std::size_t step = std::min(end + 1, rest.size());
        rest.remove_prefix(step);
        offset += step;
    }
    return problem_.empty();
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

bool Lines::next_streamed(Line& line) {
    for (;;) {
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
            if (errno == EINTR) return false;  // Ctrl-C while waiting for input
            problem_ = fmt::format("{}: cannot be read: {}", path_, errno_text(errno));
            return false;
        }
        if (c == EOF && !any) return false;
        lines_seen_++;
        if (!line.too_long && blank(scratch_)) continue;
        const Shard& shard = selection_.shard;
        if (records_seen_++ % shard.count != shard.index) continue;
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

bool Lines::again(const Bookmark& bookmark, Line& line) {
    const Entry& entry = entries_[bookmark.at];
    line.number = entry.number;
    line.pass = bookmark.pass;
    line.too_long = entry.bytes == entry_bytes_max || entry.bytes > selection_.line_bytes_max;
    line.text = {};
    return line.too_long || read_entry(entry, line.text);
}

bool Lines::read_entry(const Entry& entry, std::string_view& text) {
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
