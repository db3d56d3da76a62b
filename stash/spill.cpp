#include "spill.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fault_point.hpp"
#include "record_bytes.hpp"

namespace rollring {

// NOLINTNEXTLINE(readability-function-size): the parts of one object
Spill::Spill(Mapping owner_page, Mapping data, const Geometry& geometry, const ReaderEntry& entry,
             ReaderControl& control, Overflow* overflow)
    : owner_page_(std::move(owner_page)),
      data_(std::move(data)),
      lane_(geometry.spill_lane()),
      capacity_bytes_(geometry.capacity(lane_)),
      memory_bytes_(geometry.spill_bytes),
      control_(&control),
      overflow_(overflow),
      writer_(owner_page_.at<LaneOwner>(0).tail, entry.head, NativePlatform::Frames{data_.data()},
              capacity_bytes_, std::min(geometry.lane_bytes, geometry.spill_bytes)) {}

// Reserves the part's released-bits as well. With an overflow file all of them are reserved
// already, so that growth into the file needs no memory of a full /dev/shm. The bytes before the
// part are reserved already, and are left out, because the kernel would visit each of their pages.
Result<void> Spill::reserve(const Part& part, const RingMap& map, const Overflow* overflow) {
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    const auto in_memory = [&](std::uint64_t offset, const Part& wanted) -> Result<void> {
        if (wanted.from >= wanted.to) return {};
        return map.segment().reserve(offset + wanted.from, wanted.to - wanted.from, "the spill",
                                     "create the ring with less --spill-bytes");
    };
    const bool overflows = overflow != nullptr && overflow->usable();
    if (!overflows) {
        const auto bits = [](std::uint64_t bytes) {
            return round_up(bytes / line_bytes / 8, page_bytes);
        };
        auto done = in_memory(geometry.bits_offset(lane), {bits(part.from), bits(part.to)});
        if (!done) return done;
    }
    const std::uint64_t memory = overflows ? std::min(part.to, overflow->begin()) : part.to;
    auto done = in_memory(geometry.data_offset(lane), {part.from, memory});
    return done && overflows ? overflow->reserve(part.from, part.to) : done;
}

namespace {

// The first part is as long as a lane, and at least `least_bytes`, without the overflow file. Bytes
// that a predecessor reserved may be in use.
constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;

std::uint64_t first_bytes(const Geometry& geometry, const ReaderControl& control,
                          const Overflow* overflow) {
    const bool overflows = overflow != nullptr && overflow->usable();
    const std::uint64_t memory = overflow != nullptr ? overflow->begin() : geometry.spill_bytes;
    const std::uint64_t most = overflows ? geometry.capacity(geometry.spill_lane()) : memory;
    const std::uint64_t before = std::min(peek(control.spill_reserved_bytes), most);
    return std::max(std::min(std::max(geometry.lane_bytes, least_bytes), memory),
                    round_up(before, page_bytes));
}

}  // namespace

Result<void> Spill::reserve_first(const RingMap& map, const ReaderControl& control,
                                  Overflow* overflow) {
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    if (geometry.spill_bytes == 0) return {};
    if (overflow != nullptr && overflow->usable()) {
        auto bits = map.segment().reserve(geometry.bits_offset(lane), geometry.bits_bytes(lane),
                                          "the bookkeeping of the spill and its overflow file",
                                          "create the ring with less --overflow-bytes");
        // The spill cannot do without the file if records may lie in it.
        if (!bits && peek(control.spill_reserved_bytes) > overflow->begin()) return bits;
        if (!bits) overflow->forgo(bits.error().to_string());
    }
    auto reserved = reserve({0, first_bytes(geometry, control, overflow)}, map, overflow);
    if (!reserved) give_back(map);  // a part may have been reserved
    return reserved;
}

void Spill::give_back(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    if (geometry.spill_bytes == 0) return;
    const std::uint32_t lane = geometry.spill_lane();
    map.segment().give_back_unused(geometry.bits_offset(lane), geometry.stride(lane));
}

Result<Spill> Spill::open(const RingMap& map, ReaderControl& control, Overflow* overflow) {
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    auto page = map.segment().map(geometry.owner_offset(lane), page_bytes, true);
    if (!page) return std::unexpected(page.error());
    auto data = map.segment().map(geometry.data_offset(lane), geometry.capacity(lane), true);
    if (!data) return std::unexpected(data.error());
    if (overflow != nullptr) {
        if (auto laid = overflow->lay_under(data->data(), true); !laid) {
            return std::unexpected(laid.error());
        }
    }
    Spill spill(std::move(*page), std::move(*data), geometry, map.entry(lane), control, overflow);
    // Read once: others may overwrite it.
    const std::uint64_t bytes = first_bytes(geometry, control, overflow);
    if (auto reserved = reserve({0, bytes}, map, overflow); !reserved) {
        return std::unexpected(reserved.error());
    }
    spill.use(bytes);
    spill.find_lap_end();
    return spill;
}

// If a predecessor wrapped to the start, the bytes after its skip are free, not occupied.
void Spill::find_lap_end() {
    const std::uint64_t tail = writer_.position();
    const std::uint64_t head = writer_.head();
    if (head > tail || tail - head > 2 * capacity_bytes_ || head % line_bytes != 0) return;
    const LaneSize size(capacity_bytes_);
    const NativePlatform::Frames frames{data_.data()};
    Frame frame;
    for (std::uint64_t at = head; at < tail;) {
        if (!checked_frame(frames, size, at, tail, frame)) {
            at = next_frame(frames, size, at, tail);
            continue;
        }
        const bool to_the_end = size.offset(at) + frame.bytes == capacity_bytes_;
        if (is_skip(frame) && to_the_end) writer_.lap_before_ended(at);
        at += frame.bytes;
    }
}

void Spill::use(std::uint64_t bytes) {
    reserved_bytes_ = bytes;
    store_release(control_->spill_reserved_bytes, bytes);
    writer_.set_end(bytes < capacity_bytes_ ? bytes - line_bytes : bytes);
}

bool Spill::grow_to(std::uint64_t usable_bytes, std::uint64_t most, const RingMap& map,
                    std::int64_t now_ns) {
    constexpr std::int64_t try_again_ns = 1'000'000'000;
    constexpr std::uint64_t step_bytes = std::uint64_t{16} << 20;
    const std::uint64_t wanted = std::min(usable_bytes, most);  // at most all
    while (reserved_bytes_ < most) {
        const std::uint64_t usable = this->usable_bytes();
        if (usable >= wanted) break;
        // If memory was refused, the file may have room.
        const bool elsewhere = most > memory_bytes() && reserved_bytes_ < memory_bytes();
        if (refused_ns_ != 0 && now_ns - refused_ns_ < try_again_ns && !elsewhere) return false;
        const std::uint64_t missing = wanted - usable;
        const std::uint64_t least = round_up(missing + missing / 3, page_bytes);
        if (auto done = add_part(least, std::max(least, step_bytes), most, map); !done) {
            refused_ns_ = now_ns;
            grow_error_ = done.error().to_string();
            return false;
        }
        refused_ns_ = 0;
        grow_error_.clear();
    }
    return this->usable_bytes() >= usable_bytes;
}

void Spill::grow_ahead(std::uint64_t usable_bytes, const RingMap& map, std::int64_t now_ns) {
    if (ahead_refused_ || refused_ns_ != 0) return;
    ahead_refused_ = !grow_in_memory(usable_bytes, map, now_ns);
    refused_ns_ = 0;
    grow_error_.clear();
}

// Adds memory up to its limit, and then the file if `most` reaches into it. The added part may be
// shorter than `least`.
Result<void> Spill::add_part(std::uint64_t least, std::uint64_t wanted, std::uint64_t most,
                             const RingMap& map) {
    const std::uint64_t memory = memory_bytes();
    const bool in_memory = reserved_bytes_ < memory;
    Result<void> done;
    for (const std::uint64_t bytes : {wanted, least}) {
        const std::uint64_t next = std::min(reserved_bytes_ + bytes, in_memory ? memory : most);
        done = reserve({reserved_bytes_, next}, map, overflow_);
        if (!done) continue;
        use(next);
        return done;
    }
    if (!in_memory || most <= memory) return done;
    done = overflow_->begin_at(reserved_bytes_, *control_);
    return done ? add_part(least, wanted, most, map) : done;
}

// A quarter stays free, so that compaction copies each byte only a few times; or room for four of
// the longest records if that is more, but not more than half.
std::uint64_t Spill::usable_of(std::uint64_t bytes) const {
    const std::uint64_t longest =
        std::max(largest_bytes_, std::uint64_t{peek(control_->record_lines)} * line_bytes);
    return bytes - std::min(bytes / 2, std::max(bytes / 4, 4 * (longest + line_bytes)));
}

void Spill::note_live(const LaneFeed& own) {
    live_bytes_ = own.unreleased_bytes();
    largest_bytes_ = own.largest_bytes();
}

// Compaction copies the oldest record to the end, perhaps behind a skip: without room for that, one
// record would keep all the dead bytes behind it. At most half of the spill is kept free for that.
bool Spill::leaves_room(std::uint64_t bytes, const LaneFeed& own) const {
    const std::uint64_t occupied = occupied_bytes(own);
    if (occupied == 0) return true;
    const std::uint64_t largest = std::max(bytes, own.largest_bytes());
    const std::uint64_t kept = std::min(2 * largest + line_bytes, reserved_bytes_ / 2);
    return occupied + bytes + kept <= reserved_bytes_;
}

std::optional<RecordRef> Spill::move(const Straggler& straggler, LaneFeed& own,
                                     RingJournal& journal) {
    const RecordRef& from = straggler.ref;
    LaneFeed& source = *straggler.feed;
    // The predecessor's records are read first: our reader follows our writer record by record.
    if (own.read_position() != writer_.position()) return std::nullopt;
    if (&source != &own && !leaves_room(from.bytes(), own)) return std::nullopt;
    if (writer_.reserve(from.bytes()) != Reserve::ok) {
        own.pass_written({writer_.position(), 0});  // a skip: wait at the start
        return std::nullopt;
    }
    [[maybe_unused]] const bool compacts = &source == &own;
    std::byte* const to = data_.data() + writer_.offset();
    std::memcpy(to + line_bytes, straggler.bytes + line_bytes, from.bytes() - line_bytes);
    // A file may return bytes that differ from those written, so the record needs a checksum. The
    // producer's own checksum is kept.
    if (overflow_ != nullptr && writer_.offset() + from.bytes() > overflow_->begin()) {
        const std::span payload(to + line_bytes, straggler.frame.payload_bytes);
        if (!has_checksum(payload)) seal_with_checksum(payload);
    }
    if (compacts) FAULT_POINT("compact.after_copy");
    FAULT_POINT("evacuate.after_copy");
    const RecordRef moved{writer_.position(), lane_, from.lines};
    Frame copy = straggler.frame;
    copy.bytes = from.bytes();
    writer_.commit(copy);
    journal.announce_move(writer_.position());
    if (compacts) FAULT_POINT("compact.before_journal");
    FAULT_POINT("evacuate.before_journal");
    journal.move(from, [&] {
        if (compacts) FAULT_POINT("compact.before_tail");
        FAULT_POINT("evacuate.before_tail");
        static_cast<void>(writer_.show());
        if (compacts) FAULT_POINT("compact.after_tail");
        FAULT_POINT("evacuate.after_tail");
        source.mark({from.position, from.bytes()});
        if (compacts) FAULT_POINT("compact.after_mark");
        FAULT_POINT("evacuate.after_mark");
    });
    if (compacts) FAULT_POINT("compact.before_advance");
    FAULT_POINT("evacuate.before_advance");
    own.pass_written({moved.position, moved.bytes()});
    source.advance(0, from.bytes());
    note_live(own);
    add(control_->copied_bytes, from.bytes());
    add(control_->evacuated_records, std::uint64_t{1});
    FAULT_POINT("evacuate.after");
    return moved;
}

}  // namespace rollring
