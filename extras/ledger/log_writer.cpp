#include "log_writer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "human.hpp"
#include "quiet_thread.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

constexpr std::uint64_t behind_bytes_max = std::uint64_t{32} << 20;  // in memory
// The buffers that wait for another chunk.
constexpr std::uint64_t spare_bytes_max = behind_bytes_max + (std::uint64_t{16} << 20);
constexpr auto space_again = std::chrono::milliseconds(200);

}  // namespace

LogWriter::LogWriter(LogPlan plan, std::deque<SegmentSize> before, std::uint64_t next_segment,
                     Show show)
    : plan_(std::move(plan)),
      show_(std::move(show)),
      segments_(std::move(before)),
      next_segment_(next_segment) {
    for (const SegmentSize& one : segments_) file_bytes_ += one.bytes + one.index_bytes;
}

LogWriter::~LogWriter() {
    {
        const std::scoped_lock held(guard_);
        ends_ = true;
    }
    work_.notify_all();
    if (thread_.joinable()) thread_.join();
    write_last_index();
}

// After the thread.
void LogWriter::write_last_index() {
    const bool whole = begun_ && problem_.empty() && durable_ + 1 == next_ticket_ &&
                       file_segment_ == segments_.back().number;
    if (!whole) return;
    const auto index = index_.take(segment_id_);
    static_cast<void>(disk().keep(index_path(plan_.directory, file_segment_), index));
}

Result<void> LogWriter::start() {
    const int error = start_quiet_thread(thread_, [this] { run(); });
    if (error == 0) return {};
    return failed(Errc::system, error, "cannot start the ledger's thread");
}

// Lays the entry out behind the others, and returns its offset in the segment.
std::uint64_t LogWriter::put(Chunk& chunk, EntryHeader header,
                             std::span<const std::span<const std::byte>> payload) {
    const std::uint64_t offset = chunk.offset + chunk.buffer.used();
    header.payload_bytes = 0;
    for (const auto& part : payload) header.payload_bytes += part.size();
    const std::uint64_t whole = line + padded(header.payload_bytes);
    std::byte* const entry = chunk.buffer.grow(whole);
    std::byte* to = entry + line;
    for (const auto& part : payload) {
        if (!part.empty()) std::memcpy(to, part.data(), part.size());
        to += part.size();
    }
    std::memset(to, 0, static_cast<std::size_t>(entry + whole - to));
    header.payload_checksum = XXH3_64bits_withSeed(entry + line, header.payload_bytes, segment_id_);
    std::memcpy(entry, &header, sizeof header);
    header.checksum = XXH3_64bits_withSeed(entry, offsetof(EntryHeader, checksum), segment_id_);
    std::memcpy(entry, &header, sizeof header);
    index_.add(offset, header, payload);
    return offset;
}

// The thread writes it behind the chunk: the disk has all of its segment by then.
void LogWriter::close_index(Chunk& next) {
    next.index = index_.take(segment_id_);
    if (next.index.empty()) return;
    next.index_of = segments_.back().number;
    segments_.back().index_bytes = next.index.size();
    file_bytes_ += next.index.size();
}

void LogWriter::take_spare(Chunk& chunk) {
    if (!spare_.empty()) {
        chunk.buffer = std::move(spare_.back());
        spare_.pop_back();
        spare_bytes_ -= chunk.buffer.size();
    }
    chunk.segment = segments_.back().number;
    chunk.offset = segment_end_;
    chunk.ticket = next_ticket_ - 1;
}

// `bytes`: of the entry that it begins for, which must fit.
Chunk& LogWriter::begin_segment(std::uint64_t bytes) {
    if (!queue_.empty()) queue_.back().buffer.pad();
    Chunk fresh;
    if (begun_) close_index(fresh);
    begun_ = true;
    segment_id_ = random_id();
    const std::string text = plan_.ring + (plan_.so_far ? plan_.so_far() : std::string());
    const std::uint64_t first = head_bytes(plan_) + line + padded(text.size()) + bytes;
    segments_.push_back({next_segment_++, std::max(plan_.segment_bytes(), in_blocks(first))});
    file_bytes_ += segments_.back().bytes;
    segment_end_ = 0;
    take_spare(fresh);
    fresh.file_bytes = segments_.back().bytes;
    queue_.push_back(std::move(fresh));
    Chunk& chunk = queue_.back();
    const std::int64_t now_ns = realtime_ns();
    put_head(chunk.buffer, plan_, chunk.segment, segment_id_, now_ns);
    put(chunk, {.kind = stored(Kind::ring), .time_ns = now_ns}, {{std::as_bytes(std::span(text))}});
    return chunk;
}

// No entry follows in it.
void LogWriter::close(Chunk& chunk) {
    chunk.closed = true;
    chunk.buffer.pad();
    segment_end_ = chunk.offset + chunk.buffer.used();
}

Chunk& LogWriter::open_chunk(std::uint64_t bytes) {
    if (!begun_) return begin_segment(bytes);
    const std::uint64_t end = segments_.back().bytes;
    bool open = !queue_.empty() && !queue_.back().closed &&
                queue_.back().segment == segments_.back().number;
    if (open && queue_.back().is_full_with(bytes)) {
        close(queue_.back());
        open = false;
    }
    const std::uint64_t at =
        open ? queue_.back().offset + queue_.back().buffer.used() : segment_end_;
    if (at + bytes > end) return begin_segment(bytes);
    if (!open) take_spare(queue_.emplace_back());
    return queue_.back();
}

Place LogWriter::append(EntryHeader header, std::span<const std::span<const std::byte>> payload) {
    std::uint64_t bytes = 0;
    for (const auto& part : payload) bytes += part.size();
    bytes = line + padded(bytes);
    std::unique_lock held(guard_);
    if (!problem_.empty()) {
        next_ticket_++;  // that is never durable
        return {.segment = next_segment_ - 1, .offset = 0, .bytes = bytes};
    }
    Chunk& chunk = open_chunk(bytes);
    chunk.ticket = next_ticket_++;
    // Without the lock, so that the thread takes chunks before this one, and the disk has work.
    filling_ = true;
    held.unlock();
    const Place place{
        .segment = chunk.segment, .offset = put(chunk, header, payload), .bytes = bytes};
    held.lock();
    filling_ = false;
    if (!wanted_) return place;
    // The next entry goes elsewhere: it would be under way by the time that the thread has woken.
    wanted_ = false;
    close(chunk);
    held.unlock();
    work_.notify_one();
    return place;
}

void LogWriter::mark(const Mark& mark) {
    const std::scoped_lock held(guard_);
    if (!problem_.empty()) return;
    Chunk& chunk = open_chunk(0);
    chunk.ticket = next_ticket_++;  // also if it is alone there
    const auto found = std::ranges::find(chunk.marks, mark.lane, &Mark::lane);
    if (found != chunk.marks.end()) {
        *found = mark;
    } else {
        chunk.marks.push_back(mark);
    }
}

void LogWriter::remove_below(std::uint64_t segment) {
    const std::scoped_lock held(guard_);
    if (!problem_.empty()) return;
    open_chunk(0).remove_below = segment;
}

std::uint64_t LogWriter::hand_over() {
    std::uint64_t ticket = 0;
    {
        const std::scoped_lock held(guard_);
        ticket = next_ticket_ - 1;
        handed_ = !queue_.empty();
    }
    work_.notify_one();
    return ticket;
}

std::uint64_t LogWriter::last_ticket() const {
    const std::scoped_lock held(guard_);
    return next_ticket_ - 1;
}

std::uint64_t LogWriter::queued_bytes() const {
    std::uint64_t bytes = writing_bytes_;
    for (const Chunk& chunk : queue_) bytes += chunk.buffer.used();
    return bytes;
}

// The last segment is for acknowledgements and settlements, without which a full ledger would stay
// full. The end of the one before it, too: the last record may reach there.
bool LogWriter::full() const {
    if (file_bytes_ + 2 * plan_.segment_bytes() <= plan_.max_bytes) return false;
    if (file_bytes_ + plan_.segment_bytes() > plan_.max_bytes) return true;
    // The session before this one may have read on in such a segment: groups that it left open may
    // lack records that lie unread.
    if (!begun_) return false;
    const std::uint64_t at =
        queue_.empty() ? segment_end_ : queue_.back().offset + queue_.back().buffer.used();
    return at + plan_.segment_bytes() / 8 > segments_.back().bytes;
}

bool LogWriter::takes() const {
    const std::scoped_lock held(guard_);
    return problem_.empty() && !no_space_ && queued_bytes() < behind_bytes_max && !full();
}

bool LogWriter::takes_known() const {
    const std::scoped_lock held(guard_);
    return problem_.empty() && !no_space_ && queued_bytes() < behind_bytes_max &&
           file_bytes_ <= plan_.max_bytes + plan_.max_bytes / 4;
}

void LogWriter::wait(Deadline deadline) {
    std::unique_lock held(guard_);
    if (!problem_.empty()) return;
    const auto left = std::chrono::nanoseconds(deadline.at_ns - monotonic_ns());
    done_.wait_for(held, std::clamp<std::chrono::nanoseconds>(left, {}, std::chrono::seconds(1)));
}

Result<void> LogWriter::wait_for(std::uint64_t ticket, Deadline deadline) {
    std::unique_lock held(guard_);
    while (durable_ < ticket) {
        if (!problem_.empty()) return refused(Errc::ledger_failed, problem_);
        if (deadline.passed()) {
            return refused(Errc::timed_out,
                           fmt::format("the disk of the ledger {} has not answered in time{}",
                                       plan_.directory.string(), no_space_ ? ": it is full" : ""));
        }
        const auto left = std::chrono::nanoseconds(deadline.at_ns - monotonic_ns());
        done_.wait_for(held, std::min<std::chrono::nanoseconds>(left, std::chrono::seconds(1)));
    }
    return {};
}

bool LogWriter::has(std::uint64_t ticket) const {
    const std::scoped_lock held(guard_);
    return durable_ >= ticket;
}

std::uint64_t LogWriter::bytes() const {
    const std::scoped_lock held(guard_);
    return file_bytes_;
}

std::uint64_t LogWriter::current_segment() const {
    const std::scoped_lock held(guard_);
    return begun_ ? segments_.back().number : next_segment_;
}

bool LogWriter::has_no_space() const {
    const std::scoped_lock held(guard_);
    return no_space_;
}

// So a byte is moved no more often than one is freed, on the average.
bool LogWriter::should_empty(std::uint64_t kept_bytes) const {
    const std::scoped_lock held(guard_);
    return problem_.empty() && !no_space_ && 2 * file_bytes_ > plan_.max_bytes &&
           2 * kept_bytes <= plan_.segment_bytes();
}

std::string LogWriter::problem() const {
    const std::scoped_lock held(guard_);
    return problem_;
}

std::string LogWriter::waits_for() const {
    const std::scoped_lock held(guard_);
    if (!problem_.empty()) return problem_;
    const std::string directory = plan_.directory.string();
    if (no_space_) return fmt::format("the disk of the ledger {} is full", directory);
    if (full()) {
        return fmt::format(
            "the ledger {} is full: its records take {} of {}, and no checkpoint has "
            "settled them. Call Stash.checkpointed(step) with each checkpoint, or "
            "create the ring with more ledger_bytes",
            directory, human_bytes(file_bytes_), human_bytes(plan_.max_bytes));
    }
    if (queued_bytes() >= behind_bytes_max) {
        return fmt::format("the disk of the ledger {} is behind", directory);
    }
    return {};
}

int LogWriter::make_segment(const Chunk& chunk) {
    Fd made;
    const auto path = segment_path(plan_.directory, chunk.segment);
    did_ = "cannot make a file";
    retry_ = true;
    const int error = disk().make(path, chunk.file_bytes, true, made);
    if (error != 0) return error;
    file_ = std::move(made);
    file_segment_ = chunk.segment;
    did_ = "cannot sync the directory";
    retry_ = false;
    return plan_.durable == Durable::none ? 0 : disk().sync_names(plan_.directory);
}

int LogWriter::commit(const Chunk& chunk) {
    if (file_segment_ != chunk.segment) {
        if (const int error = make_segment(chunk); error != 0) return error;
    }
    if (chunk.buffer.used() == 0) return 0;
    did_ = "cannot write";
    retry_ = true;
    if (const int error = disk().write(file_.get(), chunk.buffer.bytes(), chunk.offset)) {
        return error;
    }
    did_ = "fdatasync";
    retry_ = false;
    return plan_.durable == Durable::none ? 0 : disk().sync(file_.get());
}

// Their records are gone, and the disk has the entries that say so. Each of them is off the disk
// before the next: that may have the entries that say so of the one before.
int LogWriter::remove_old(std::uint64_t below) {
    while (true) {
        SegmentSize oldest{};
        {
            const std::scoped_lock held(guard_);
            if (segments_.empty() || segments_.front().number >= below) return 0;
            oldest = segments_.front();
        }
        // One whose segment stays only saves time.
        static_cast<void>(disk().remove(index_path(plan_.directory, oldest.number)));
        const int error = disk().remove(segment_path(plan_.directory, oldest.number));
        // One that cannot be removed only takes space, as do all later ones: it is tried again.
        if (error != 0 && error != ENOENT) return 0;
        did_ = "cannot sync the directory";
        if (plan_.durable != Durable::none) {
            if (const int unsynced = disk().sync_names(plan_.directory)) return unsynced;
        }
        const std::scoped_lock held(guard_);
        file_bytes_ -= oldest.bytes + oldest.index_bytes;
        segments_.pop_front();
    }
}

void LogWriter::finish(Chunk chunk) {
    for (const Mark& mark : chunk.marks) show_(mark);
    const std::scoped_lock held(guard_);
    durable_ = std::max(durable_, chunk.ticket);
    writing_bytes_ = 0;
    no_space_ = false;
    if (spare_bytes_ + chunk.buffer.size() <= spare_bytes_max && chunk.buffer.size() != 0) {
        spare_bytes_ += chunk.buffer.size();
        chunk.buffer.clear();
        spare_.push_back(std::move(chunk.buffer));
    }
}

void LogWriter::fail(int error) {
    const std::string text = note_failure(plan_.directory, did_, error);
    const std::scoped_lock held(guard_);
    problem_ = text;
}

bool LogWriter::has_work() {
    if (!handed_ || queue_.empty()) return false;
    wanted_ = filling_ && queue_.size() == 1;
    return !wanted_;
}

void LogWriter::run() {
    std::unique_lock held(guard_);
    while (true) {
        work_.wait(held, [&] { return ends_ || has_work(); });
        if (queue_.empty()) return;  // it ends
        Chunk chunk = std::move(queue_.front());
        queue_.pop_front();
        chunk.buffer.pad();
        if (queue_.empty()) {
            handed_ = false;
            segment_end_ = chunk.offset + chunk.buffer.used();
        }
        writing_bytes_ = chunk.buffer.used();
        held.unlock();
        int error = commit(chunk);
        // Nothing of the chunk was synced yet: the same bytes at the same place can be tried again.
        while (retry_ && (error == ENOSPC || error == EDQUOT)) {
            held.lock();
            no_space_ = true;
            done_.notify_all();
            work_.wait_for(held, space_again, [&] { return ends_; });
            if (ends_) return;
            held.unlock();
            error = commit(chunk);
        }
        const std::uint64_t remove_below = chunk.remove_below;
        const std::uint64_t index_of = chunk.index_of;
        const std::vector<std::byte> index = std::move(chunk.index);
        if (error == 0) {
            finish(std::move(chunk));
            done_.notify_all();
            // One that the disk does not take is missing, and its segment is read instead.
            if (!index.empty())
                static_cast<void>(disk().keep(index_path(plan_.directory, index_of), index));
            error = remove_old(remove_below);
        }
        if (error != 0) {
            fail(error);
            done_.notify_all();
            return;
        }
        done_.notify_all();
        held.lock();
    }
}

}  // namespace rollring::ledger
