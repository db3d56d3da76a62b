#include "record_stream.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "file_names.hpp"
#include "quiet_thread.hpp"

namespace rollring::ledger {
namespace {

constexpr std::size_t window_count = 3;
// The caller begins with the first records soon.
constexpr std::uint64_t first_window_bytes = std::uint64_t{2} << 20;
constexpr std::uint64_t window_bytes_max = std::uint64_t{16} << 20;
// Bytes between two records that are read with them: a disk needs as long to begin anew.
constexpr std::uint64_t gap_bytes_max = std::uint64_t{128} << 10;

}  // namespace

Result<DataFile> DataFile::open(const std::filesystem::path& path, std::uint64_t file_id,
                                bool cached) {
    constexpr int how = O_RDONLY | O_CLOEXEC;
    Fd fd(::open(path.c_str(), cached ? how : how | O_DIRECT));
    if (!fd && !cached && errno == EINVAL) fd = Fd(::open(path.c_str(), how));
    if (!fd) return recording::file_failed(errno, "cannot open", path);
    return DataFile(std::move(fd), path, file_id);
}

int DataFile::read_some(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
        const ssize_t got = pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        const auto some = static_cast<std::uint64_t>(got);
        to = to.subspan(some);
        offset += some;
        // Only the end of the file lies within a block.
        if (some == 0 || offset % block != 0) break;
    }
    std::ranges::fill(to, std::byte{});
    return 0;
}

void DataFile::read(std::uint64_t offset, std::span<std::byte> to,
                    std::vector<Unread>& unread) const {
    int error = read_some(offset, to);
    const int flags = error == EINVAL ? fcntl(fd_.get(), F_GETFL) : 0;
    if ((flags & O_DIRECT) != 0) {
        // A file system may refuse at the first read, or want larger blocks.
        static_cast<void>(fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT));
        error = read_some(offset, to);
    }
    if (error == 0) return;
    for (; !to.empty(); to = to.subspan(block), offset += block) {
        error = read_some(offset, to.first(block));
        if (error == 0) continue;
        std::ranges::fill(to.first(block), std::byte{});
        unread.push_back({.offset = offset, .error = error});
    }
}

RecordStream::RecordStream(DataFiles files, std::vector<Place> order)
    : files_(std::move(files)), order_(std::move(order)), windows_(window_count) {}

RecordStream::~RecordStream() {
    {
        const std::scoped_lock held(guard_);
        ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Result<void> RecordStream::start() {
    const int error = start_quiet_thread(thread_, [this] { run(); });
    if (error == 0) return {};
    return failed(Errc::system, error, "cannot start the thread that reads the ledger");
}

// Neighbours in the files are read at once, in whichever order they are wanted.
void RecordStream::plan(Window& window, std::size_t first, std::uint64_t bytes_max) const {
    std::uint64_t bytes = 0;
    std::size_t count = 0;
    for (; first + count < order_.size(); count++) {
        bytes += order_[first + count].bytes;
        if (count != 0 && bytes > bytes_max) break;
    }
    std::vector<std::size_t> by_place(count);
    for (std::size_t i = 0; i < count; i++) by_place[i] = i;
    std::ranges::sort(by_place, {}, [&](std::size_t i) {
        return std::pair(order_[first + i].segment, order_[first + i].offset);
    });
    window.pieces.clear();
    window.records.resize(count);
    std::uint64_t gaps = 0;
    for (const std::size_t i : by_place) {
        const Place& place = order_[first + i];
        const DataFile* const file = &files_.at(place.segment);
        const std::uint64_t begin = place.offset / block * block;
        const std::uint64_t end = in_blocks(place.offset + place.bytes);
        auto* last = window.pieces.empty() ? nullptr : &window.pieces.back();
        const std::uint64_t gap =
            last != nullptr && begin > last->end ? begin - last->end : std::uint64_t{0};
        if (last == nullptr || last->file != file || gap > gap_bytes_max ||
            gaps + gap > bytes_max) {
            const std::uint64_t at = last == nullptr ? 0 : last->at + (last->end - last->begin);
            window.pieces.push_back(
                {.file = file, .begin = begin, .end = end, .at = at, .unread = {}});
        } else {
            gaps += gap;
            last->end = std::max(last->end, end);
        }
        window.records[i] = {
            .piece = window.pieces.size() - 1, .offset = place.offset, .bytes = place.bytes};
    }
}

void RecordStream::fill(Window& window) {
    window.memory.clear();
    const auto& last = window.pieces.back();
    std::byte* const memory = window.memory.grow(last.at + (last.end - last.begin));
    for (Window::Piece& one : window.pieces) {
        one.file->read(one.begin, {memory + one.at, one.end - one.begin}, one.unread);
    }
}

void RecordStream::run() {
    std::uint64_t bytes = first_window_bytes;
    for (std::size_t first = 0; first < order_.size();) {
        Window* window = nullptr;
        {
            std::unique_lock held(guard_);
            changed_.wait(held, [&] { return ends_ || read_ - used_ < windows_.size(); });
            if (ends_) return;
            window = &windows_[read_ % windows_.size()];
        }
        plan(*window, first, bytes);
        fill(*window);
        first += window->records.size();
        bytes = std::min(2 * bytes, window_bytes_max);
        {
            const std::scoped_lock held(guard_);
            read_++;
        }
        changed_.notify_all();
    }
}

RecordStream::Read RecordStream::next() {
    const Window* window = &windows_[used_ % windows_.size()];
    std::unique_lock held(guard_);
    if (read_ != used_ && given_ == window->records.size()) {
        given_ = 0;
        used_++;
        changed_.notify_all();
        window = &windows_[used_ % windows_.size()];
    }
    changed_.wait(held, [&] { return read_ != used_; });
    held.unlock();
    const Window::Record& record = window->records[given_++];
    const Window::Piece& piece = window->pieces[record.piece];
    Read read{.file = piece.file,
              .bytes = window->memory.bytes().subspan(piece.at + (record.offset - piece.begin),
                                                      record.bytes),
              .problem = {}};
    for (const DataFile::Unread& one : piece.unread) {
        if (one.offset + block <= record.offset || one.offset >= record.offset + record.bytes) {
            continue;
        }
        read.problem = fmt::format("{}: byte {} cannot be read: {}", piece.file->path().string(),
                                   one.offset, std::generic_category().message(one.error));
        break;
    }
    return read;
}

}  // namespace rollring::ledger
