#include "ring_ledger.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "columns_text.hpp"
#include "file_names.hpp"
#include "file_scan.hpp"
#include "ledger_layout.hpp"
#include "restored_map.hpp"
#include "segment_index.hpp"

namespace rollring::ledger {
namespace {

constexpr std::int64_t restore_patience_ms = 10'000;
// Of a turn: the disk begins with these bytes while the others are copied.
constexpr std::uint64_t early_bytes = std::uint64_t{1} << 20;

// By segment.
using NewIndexes = std::vector<std::pair<std::uint64_t, std::vector<std::byte>>>;

std::string ring_text(const LedgerRequest& request) {
    const RingHead head{.ring_id = request.ring_id, .name_bytes = request.ring.size()};
    std::string text(reinterpret_cast<const char*>(&head), sizeof head);
    text += request.ring;
    text += request.sizes;
    return text;
}

LogPlan plan_of(const LedgerRequest& request, std::function<std::string()> so_far) {
    return {.directory = request.plan.directory,
            .columns = recording::columns_text(request.schema),
            .schema_id = request.schema.id(),
            .ring = ring_text(request),
            .so_far = std::move(so_far),
            .max_bytes = request.plan.bytes,
            .durable = request.plan.durable};
}

Result<void> check_unbroken(const std::filesystem::path& directory) {
    std::ifstream file(directory / failed_name);
    if (!file) return {};
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    while (text.ends_with('\n')) text.pop_back();
    return refused(
        Errc::ledger_failed,
        text.empty() ? fmt::format("the ledger {} has failed", directory.string()) : text);
}

// A restore holds the directory until it has made the ring and begins to send.
Result<ProcessFd> take(const std::filesystem::path& directory) {
    const Deadline deadline = Deadline::after_ms(restore_patience_ms);
    while (true) {
        auto locked = recording::lock_directory(directory, "ledger");
        if (locked || locked.error().code != Errc::busy || deadline.passed()) return locked;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

// A ledger continues in the ring that it is of, and in one that it was restored into.
Result<void> check_ring(const Contents& found, const LedgerRequest& request, bool restored) {
    if (!found.empty && found.schema.id() != request.schema.id()) {
        return refused(Errc::layout_mismatch,
                       fmt::format("the ledger {} has other columns than ring {}: name another "
                                   "directory",
                                   request.plan.directory, request.ring));
    }
    if (restored || found.ring.id == request.ring_id || found.book.records().empty()) return {};
    return refused(
        Errc::busy,
        fmt::format("the ledger {} holds {} records of ring {} that no checkpoint has: remove ring "
                    "{} and let 'rollring restore {} {}' make it, or name another directory for "
                    "its ledger",
                    request.plan.directory, found.book.records().size(), found.ring.name,
                    request.ring, request.plan.directory, request.ring));
}

// The reserved rest of the segment that was written last. Damage stays, as evidence.
void cut_end(const std::filesystem::path& directory, Contents& found) {
    if (found.segments.empty() || found.newest == 0) return;
    SegmentSize& last = found.segments.back();
    if (last.number != found.newest) return;
    const std::uint64_t end = in_blocks(found.used);
    if (end >= last.bytes) return;
    const auto path = segment_path(directory, last.number);
    if (truncate(path.c_str(), static_cast<off_t>(end)) == 0) last.bytes = end;
}

// The scan may have read the page cache alone: a stash that was killed had not synced all of it.
Result<void> sync_files(const std::filesystem::path& directory, const Contents& found) {
    const auto failure = [&](std::string_view did, int error) {
        return refused(Errc::ledger_failed, note_failure(directory, did, error));
    };
    for (const SegmentSize& one : found.segments) {
        if (const int error = disk().sync_file(segment_path(directory, one.number))) {
            return failure("fdatasync", error);
        }
    }
    if (found.segments.empty()) return {};
    const int error = disk().sync_names(directory);
    return error == 0 ? Result<void>{} : failure("cannot sync the directory", error);
}

// Of a session that was killed, the last segment has none.
void write_indexes(const std::filesystem::path& directory, const NewIndexes& made,
                   Contents& found) {
    for (const auto& [segment, index] : made) {
        if (disk().keep(index_path(directory, segment), index) != 0) continue;
        const auto at = std::ranges::find(found.segments, segment, &SegmentSize::number);
        if (at != found.segments.end()) at->index_bytes = index.size();
    }
}

// Those of segments that are gone.
void remove_old_indexes(const std::filesystem::path& directory, const Contents& found) {
    const auto files = recording::files_of(directory, index_ending);
    if (!files) return;
    for (const recording::NumberedFile& one : *files) {
        const bool needed = std::ranges::find(found.segments, one.number, &SegmentSize::number) !=
                            found.segments.end();
        if (!needed) static_cast<void>(disk().remove(one.path));
    }
}

}  // namespace

Result<std::unique_ptr<StashLedger>> RingLedger::open(LedgerRequest request) {
    const std::filesystem::path directory = request.plan.directory;
    std::error_code wrong;
    std::filesystem::create_directories(directory, wrong);
    if (wrong) return recording::file_failed(wrong.value(), "cannot make the ledger", directory);
    auto locked = take(directory);
    if (!locked) return std::unexpected(locked.error());
    if (auto unbroken = check_unbroken(directory); !unbroken) {
        return std::unexpected(unbroken.error());
    }
    NewIndexes indexes;
    const auto keep = [&](std::uint64_t segment, std::span<const std::byte> index) {
        indexes.emplace_back(segment, std::vector(index.begin(), index.end()));
    };
    auto found = scan(directory, {.indexed = keep});
    if (!found) return std::unexpected(found.error());
    // Records that cannot be read now must not be taken for lost ones, whose files may go.
    if (!found->unread.empty()) {
        return refused(Errc::ledger_failed,
                       fmt::format("{}. No stash goes on with such a ledger: 'rollring restore "
                                   "--ledger NEW' gives the records that can be read to another "
                                   "directory",
                                   found->unread));
    }
    const auto maps = read_maps(directory);
    if (!maps) return std::unexpected(maps.error());
    const bool restored = std::ranges::any_of(
        *maps, [&](const RestoredMap& map) { return map.ring_id == request.ring_id; });
    if (auto fits = check_ring(*found, request, restored); !fits) {
        return std::unexpected(fits.error());
    }
    // A directory in which all is settled may serve another run, with steps of its own.
    const bool goes_on = restored || found->ring.id == request.ring_id;
    if (!goes_on) found->book.go_on(1, 1, -1);
    for (const RestoredMap& map : *maps) name_all(map, *found);
    remove_old_maps(directory, *maps, found->book, request.ring_id);
    cut_end(directory, *found);
    write_indexes(directory, indexes, *found);
    remove_old_indexes(directory, *found);
    if (request.plan.durable != Durable::none) {
        if (auto synced = sync_files(directory, *found); !synced) {
            return std::unexpected(synced.error());
        }
    }
    std::unique_ptr<RingLedger> made(
        new RingLedger(std::move(*locked), std::move(*found), request));
    if (auto started = made->log_.start(); !started) return std::unexpected(started.error());
    made->remove_empty_segments();
    return made;
}

RingLedger::RingLedger(ProcessFd locked, Contents contents, const LedgerRequest& request)
    : locked_(std::move(locked)),
      directory_(request.plan.directory),
      ring_id_(request.ring_id),
      waits_for_each_(request.plan.durable == Durable::record),
      book_(std::move(contents.book)),
      moved_are_read_(request.moved_are_read),
      log_(plan_of(request, [this] { return so_far(); }), contents.segments, contents.next_segment,
           [show = request.show](const Mark& mark) { show(mark.lane, mark.epoch, mark.records); }) {
    for (const SegmentSize& one : contents.segments) segments_.push_back(one.number);
    book_.enter_ring(ring_id_);
    for (const auto& [number, one] : book_.records()) {
        if (!one.acked) unread_.insert(number);
    }
}

// Of files that may be removed before the segment is.
std::string RingLedger::so_far() const {
    std::string text =
        fmt::format("next_number {}\nnext_batch {}\n", book_.next_number(), book_.next_batch());
    if (book_.settled_step() >= 0) text += fmt::format("settled_step {}\n", book_.settled_step());
    return text;
}

RingLedger::~RingLedger() {
    recording::unlock_directory(locked_);
}

bool RingLedger::read(const Record& record) {
    const auto number = book_.find(identity_of(record));
    const Kept* const known = number ? book_.record(*number) : nullptr;
    if (number) unread_.erase(*number);
    if (number && known == nullptr) return false;
    if (known == nullptr) {
        read_.push_back(&record);
    } else if (known->acked) {
        again_.push_back(*number);
    }
    const Mark mark{record.producer_lane, record.producer_epoch, record.sequence + 1};
    const auto of_lane = std::ranges::find(marks_, mark.lane, &Mark::lane);
    if (of_lane == marks_.end()) {
        marks_.push_back(mark);
    } else if (std::pair(of_lane->epoch, of_lane->records) < std::pair(mark.epoch, mark.records)) {
        *of_lane = mark;
    }
    return true;
}

void RingLedger::dropped(const Record& record) {
    if (const auto at = std::ranges::find(read_, &record); at != read_.end()) {
        read_.erase(at);
        return;
    }
    if (const auto number = book_.find(identity_of(record))) gone_.push_back(*number);
}

void RingLedger::append_record(const Record& record) {
    const GroupKey key = record.view.group_key();
    const Identity identity = identity_of(record);
    const RecordOrigin origin{.ring_id = ring_id_,
                              .lane = identity.lane,
                              .epoch = identity.epoch,
                              .sequence = identity.sequence,
                              .key_low = key.low,
                              .key_high = key.high,
                              .tokens = record.view.n_tokens(),
                              .reserved = {}};
    const std::uint64_t number = book_.next_number();
    const std::array parts{std::as_bytes(std::span(&origin, 1)), record.bytes};
    const Place place = log_.append(
        {.kind = stored(Kind::record), .number = number, .time_ns = realtime_ns()}, parts);
    note_place(number, {.origin = identity, .key = key, .tokens = origin.tokens}, place);
}

void RingLedger::note_place(std::uint64_t number, Kept record, const Place& place) {
    record.segment = place.segment;
    record.offset = place.offset;
    record.bytes = place.bytes;
    book_.keep(number, record);
    if (segments_.empty() || segments_.back() < place.segment) segments_.push_back(place.segment);
}

void RingLedger::append_numbers(Kind kind, std::span<const std::uint64_t> numbers,
                                std::uint64_t batch, std::int64_t step) {
    const std::array parts{std::as_bytes(numbers)};
    log_.append({.kind = stored(kind), .number = batch, .time_ns = realtime_ns(), .step = step},
                parts);
}

bool RingLedger::may_mark() {
    if (moved_are_read_ && moved_are_read_()) moved_are_read_ = nullptr;
    return !moved_are_read_;
}

void RingLedger::end_turn() {
    const bool marks = !marks_.empty() && may_mark();
    if (read_.empty() && !marks && gone_.empty() && again_.empty()) return;
    if (!again_.empty()) {
        append_numbers(Kind::again, again_);
        book_.give_again(std::exchange(again_, {}));
    }
    std::uint64_t bytes = 0;
    for (const Record* one : read_) {
        append_record(*one);
        bytes += one->bytes.size();
        if (bytes < early_bytes) continue;
        static_cast<void>(log_.hand_over());
        bytes = 0;
    }
    if (!read_.empty()) cut_ticket_ = log_.last_ticket();
    read_.clear();
    if (!gone_.empty()) {
        append_numbers(Kind::gone, gone_);
        static_cast<void>(book_.forget(gone_));
        gone_.clear();
        remove_empty_segments();
        empty_oldest_segment();
    }
    if (marks) {
        for (const Mark& mark : marks_) log_.mark(mark);
        marks_.clear();
    }
    ticket_ = log_.hand_over();
}

bool RingLedger::may_cut() {
    return !waits_for_each_ || log_.has(cut_ticket_);
}

void RingLedger::begin_ack(std::span<const Record* const> records, std::int64_t step) {
    end_turn();
    acked_.clear();
    for (const Record* one : records) {
        if (const auto number = book_.find(identity_of(*one))) acked_.push_back(*number);
    }
    const std::uint64_t batch = book_.next_batch();
    append_numbers(Kind::acked, acked_, batch, step);
    book_.ack(batch, step, acked_);
    ack_ticket_ = ticket_ = log_.hand_over();
}

Result<void> RingLedger::end_ack(Deadline deadline) {
    auto durable = log_.wait_for(ack_ticket_, deadline);
    if (!durable) ack_failed();
    return durable;
}

void RingLedger::ack_failed() {
    append_numbers(Kind::again, acked_);
    book_.give_again(acked_);
    ticket_ = log_.hand_over();
}

Result<std::uint64_t> RingLedger::forget(const std::vector<std::uint64_t>& numbers) {
    if (numbers.empty()) return std::uint64_t{0};
    // Also of those that were acknowledged in an earlier ring.
    std::int64_t step = -1;
    for (const std::uint64_t number : numbers) {
        step = std::max(step, book_.record(number)->step);
    }
    append_numbers(Kind::gone, numbers, 0, step);
    book_.settle_step(step);
    ticket_ = log_.hand_over();
    auto durable = log_.wait_for(ticket_, Deadline::after_ms(disk_patience_ms));
    if (!durable) return std::unexpected(durable.error());
    const std::uint64_t count = book_.forget(numbers);
    for (const std::uint64_t number : numbers) unread_.erase(number);
    remove_empty_segments();
    empty_oldest_segment();
    return count;
}

Result<std::uint64_t> RingLedger::settle(std::uint64_t ring_id,
                                         std::span<const RecordIdentity> records) {
    std::vector<std::uint64_t> numbers;
    for (const RecordIdentity& one : records) {
        const auto number = book_.find({ring_id, one.lane, one.epoch, one.sequence});
        if (number && book_.record(*number) != nullptr) numbers.push_back(*number);
    }
    return forget(numbers);
}

Result<std::uint64_t> RingLedger::settle_through(std::int64_t step) {
    return forget(book_.through(step));
}

Result<void> RingLedger::sync(Deadline deadline) {
    end_turn();
    return log_.wait_for(ticket_, deadline);
}

// From the oldest on: an entry may name records of older segments, so it must outlive them.
void RingLedger::remove_empty_segments() {
    const std::uint64_t current = log_.current_segment();
    bool removed = false;
    while (!segments_.empty() && segments_.front() < current &&
           book_.load(segments_.front()).records == 0) {
        segments_.pop_front();
        removed = true;
    }
    if (!removed) return;
    log_.remove_below(segments_.empty() ? current : segments_.front());
    ticket_ = log_.hand_over();
}

// A group that stays open must not keep the files of all later ones. Acknowledged records stay:
// the next checkpoint takes them.
void RingLedger::empty_oldest_segment() {
    constexpr std::uint64_t moved_bytes_max = std::uint64_t{4} << 20;
    if (segments_.empty()) return;
    const std::uint64_t oldest = segments_.front();
    if (oldest >= log_.current_segment() || oldest == unmovable_) return;
    if (!log_.should_empty(book_.load(oldest).bytes)) return;
    // The records must be in the file before they are read there.
    if (!log_.has(ticket_)) return;
    std::vector<std::uint64_t> numbers;
    std::uint64_t bytes = 0;
    for (const std::uint64_t number : book_.in_segment(oldest)) {
        const Kept& one = *book_.record(number);
        if (one.acked) return;
        if (bytes < moved_bytes_max) numbers.push_back(number);
        bytes += one.bytes;
    }
    if (!move_records(oldest, numbers)) unmovable_ = oldest;
    remove_empty_segments();
}

Result<void> RingLedger::move_records(std::uint64_t segment,
                                      std::span<const std::uint64_t> numbers) {
    const auto file = recording::FileReader::open(segment_path(directory_, segment), segment_type);
    if (!file) return std::unexpected(file.error());
    std::vector<std::byte> payload;
    for (const std::uint64_t number : numbers) {
        const Kept one = *book_.record(number);
        const auto entry = file->entry_at(one.offset);
        if (!entry) return std::unexpected(entry.error());
        if (!*entry) return refused(Errc::checksum_mismatch, "the entry is damaged");
        payload.resize((*entry)->payload_bytes);
        if (auto read = file->read_payload(one.offset, **entry, payload.data()); !read) return read;
        const std::array parts{std::span<const std::byte>(payload)};
        note_place(
            number, one,
            log_.append(
                {.kind = stored(Kind::record), .number = number, .time_ns = (*entry)->time_ns},
                parts));
    }
    ticket_ = log_.hand_over();
    return {};
}

namespace {

[[maybe_unused]] const bool registered = (open_stash_ledger.store(&RingLedger::open), true);

}  // namespace
}  // namespace rollring::ledger
