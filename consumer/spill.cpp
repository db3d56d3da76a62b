#include "spill.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fault_point.hpp"

namespace rollring {

Spill::Spill(Mapping owner_page, Mapping data, const Geometry& geometry, const ReaderEntry& entry,
             ReaderControl& control)
    : owner_page_(std::move(owner_page)),
      data_(std::move(data)),
      lane_(geometry.spill_lane()),
      capacity_bytes_(geometry.spill_bytes),
      control_(&control),
      writer_(owner_page_.at<LaneOwner>(0).tail, entry.head, NativePlatform::Frames{data_.data()},
              geometry.spill_bytes, std::min(geometry.lane_bytes, geometry.spill_bytes)) {}

// The released-bits of that part with it.
Result<void> Spill::reserve(std::uint64_t bytes, const RingMap& map) {
    constexpr const char* what = "the spill";
    constexpr const char* remedy = "create the ring with less --spill-bytes";
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    const std::uint64_t bits = round_up(bytes / line_bytes / 8, page_bytes);
    auto done = map.segment().reserve(geometry.bits_offset(lane), bits, what, remedy);
    if (done) done = map.segment().reserve(geometry.data_offset(lane), bytes, what, remedy);
    return done;
}

namespace {

// A lane's worth is wanted at once, and never less than the least; what a predecessor reserved may
// be in use.
constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;

std::uint64_t first_bytes(const Geometry& geometry, const ReaderControl& control) {
    const std::uint64_t before = std::min(peek(control.spill_reserved_bytes), geometry.spill_bytes);
    return std::min(std::max({geometry.lane_bytes, least_bytes, round_up(before, page_bytes)}),
                    geometry.spill_bytes);
}

}  // namespace

Result<void> Spill::reserve_first(const RingMap& map, const ReaderControl& control) {
    if (map.geometry().spill_bytes == 0) return {};
    auto reserved = reserve(first_bytes(map.geometry(), control), map);
    if (!reserved) give_back(map);  // it may have had a part
    return reserved;
}

void Spill::give_back(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    if (geometry.spill_bytes == 0) return;
    const std::uint32_t lane = geometry.spill_lane();
    map.segment().give_back_unused(geometry.bits_offset(lane), geometry.stride(lane));
}

Result<Spill> Spill::open(const RingMap& map, ReaderControl& control) {
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    auto page = map.segment().map(geometry.owner_offset(lane), page_bytes, true);
    if (!page) return std::unexpected(page.error());
    auto data = map.segment().map(geometry.data_offset(lane), geometry.spill_bytes, true);
    if (!data) return std::unexpected(data.error());
    Spill spill(std::move(*page), std::move(*data), geometry, map.entry(lane), control);
    const std::uint64_t bytes = first_bytes(geometry, control);  // read once: others can write it
    if (auto reserved = reserve(bytes, map); !reserved) return std::unexpected(reserved.error());
    spill.use(bytes);
    return spill;
}

void Spill::use(std::uint64_t bytes) {
    reserved_bytes_ = bytes;
    rollring::publish(control_->spill_reserved_bytes, bytes);
    writer_.set_end(bytes < capacity_bytes_ ? bytes - line_bytes : bytes);
}

bool Spill::grow(std::uint64_t usable_bytes, const RingMap& map, std::int64_t now_ns) {
    constexpr std::int64_t try_again_ns = 1'000'000'000;
    constexpr std::uint64_t step_bytes = std::uint64_t{16} << 20;
    const std::uint64_t most = capacity_bytes_;
    const std::uint64_t wanted = std::min(usable_bytes, most);  // whatever was asked for
    while (reserved_bytes_ < most) {
        const std::uint64_t usable = this->usable_bytes();
        if (usable >= wanted) break;
        if (refused_ns_ != 0 && now_ns - refused_ns_ < try_again_ns) return false;
        const std::uint64_t missing = wanted - usable;
        const std::uint64_t step =
            round_up(std::max(missing + missing / 3, step_bytes), page_bytes);
        const std::uint64_t next = std::min(most, reserved_bytes_ + step);
        if (auto done = reserve(next, map); !done) {
            refused_ns_ = now_ns;
            grow_error_ = done.error().message;
            return false;
        }
        use(next);
        refused_ns_ = 0;
        grow_error_.clear();
    }
    return this->usable_bytes() >= usable_bytes;
}

// A quarter stays free, so that compaction copies each byte a few times at the most; or four of the
// longest records, which may be more, but not more than half.
std::uint64_t Spill::usable_of(std::uint64_t bytes) const {
    const std::uint64_t longest =
        std::max(largest_bytes_, std::uint64_t{peek(control_->record_lines)} * line_bytes);
    return bytes - std::min(bytes / 2, std::max(bytes / 4, 4 * (longest + line_bytes)));
}

void Spill::note_live(const LaneFeed& own) {
    live_bytes_ = own.unreleased_bytes();
    largest_bytes_ = own.largest_bytes();
}

Result<void> Spill::set_tail(const RingMap& map, std::uint64_t tail) {
    auto page = map.segment().map(map.geometry().owner_offset(map.geometry().spill_lane()),
                                  page_bytes, true);
    if (!page) return std::unexpected(page.error());
    publish(page->at<LaneOwner>(0).tail, tail);
    return {};
}

Result<void> Spill::recover(const RingMap& map, ReaderControl& control) {
    const std::uint64_t tail = peek(control.journal_spill_tail);
    if (tail == 0) return {};
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    const std::uint64_t head = observe(map.entry(lane).head);
    const bool possible = geometry.spill_bytes != 0 && tail % line_bytes == 0 && tail >= head &&
                          tail - head <= 2 * geometry.spill_bytes;
    if (control.journal_count.load() != 0 && possible) {
        if (auto set = set_tail(map, tail); !set) return set;
    }
    FAULT_POINT("spill.after_tail_again");
    // The journal itself is replayed once the lanes are recovered; it does not need this any more.
    publish(control.journal_spill_tail, std::uint64_t{0});
    return {};
}

// Compaction copies the oldest record to the end, behind a skip perhaps: without room for that, one
// record would keep all the dead bytes behind it. Half of the spill is enough to give for it.
bool Spill::leaves_room(std::uint64_t bytes, const LaneFeed& own) const {
    const std::uint64_t occupied = occupied_bytes(own);
    if (occupied == 0) return true;
    const std::uint64_t largest = std::max(bytes, own.largest_bytes());
    const std::uint64_t kept = std::min(2 * largest + line_bytes, reserved_bytes_ / 2);
    return occupied + bytes + kept <= reserved_bytes_;
}

std::optional<RecordRef> Spill::move(const Straggler& straggler, LaneFeed& own,
                                     ReaderControl& control, Journal<NativePlatform> journal) {
    const RecordRef& from = straggler.ref;
    LaneFeed& source = *straggler.feed;
    // What a predecessor left there is read first: our reader follows our writer record by record.
    if (own.read_position() != writer_.position()) return std::nullopt;
    if (&source != &own && !leaves_room(from.bytes(), own)) return std::nullopt;
    if (writer_.reserve(from.bytes()) != Reserve::ok) {
        own.pass_written({writer_.position(), 0});  // a skip, to wait at the start
        return std::nullopt;
    }
    [[maybe_unused]] const bool compacts = &source == &own;
    std::byte* const to = data_.data() + writer_.offset();
    std::memcpy(to + line_bytes, straggler.bytes + line_bytes, from.bytes() - line_bytes);
    if (compacts) FAULT_POINT("compact.after_copy");
    FAULT_POINT("evacuate.after_copy");
    const RecordRef moved{writer_.position(), lane_, from.lines};
    Frame copy = straggler.frame;
    copy.bytes = from.bytes();
    writer_.commit(copy);
    publish(control.journal_spill_tail, writer_.position());
    if (compacts) FAULT_POINT("compact.before_journal");
    FAULT_POINT("evacuate.before_journal");
    const JournalEntry entry{from.position, from.lane, from.lines};
    journal.release_all({&entry, 1}, -1, [&](const JournalEntry&) {
        if (compacts) FAULT_POINT("compact.before_tail");
        FAULT_POINT("evacuate.before_tail");
        static_cast<void>(writer_.publish());
        if (compacts) FAULT_POINT("compact.after_tail");
        FAULT_POINT("evacuate.after_tail");
        source.mark({from.position, from.bytes()});
        if (compacts) FAULT_POINT("compact.after_mark");
        FAULT_POINT("evacuate.after_mark");
    });
    publish(control.journal_spill_tail, std::uint64_t{0});
    if (compacts) FAULT_POINT("compact.before_settle");
    FAULT_POINT("evacuate.before_settle");
    own.pass_written({moved.position, moved.bytes()});
    source.settle(0, from.bytes());
    note_live(own);
    add(control.copied_bytes, from.bytes());
    add(control.evacuated_records, std::uint64_t{1});
    FAULT_POINT("evacuate.after");
    return moved;
}

}  // namespace rollring
