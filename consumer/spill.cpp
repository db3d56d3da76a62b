#include "spill.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fault_point.hpp"

namespace rollring {

Spill::Spill(Mapping owner_page, Mapping data, const Geometry& geometry, const ReaderEntry& entry)
    : owner_page_(std::move(owner_page)),
      data_(std::move(data)),
      lane_(geometry.spill_lane()),
      writer_(owner_page_.at<LaneOwner>(0).tail, entry.head, NativePlatform::Frames{data_.data()},
              geometry.spill_bytes, geometry.spill_bytes) {}

Result<void> Spill::reserve(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    if (geometry.spill_bytes == 0) return {};
    const std::uint32_t lane = geometry.spill_lane();
    return map.segment().reserve(geometry.bits_offset(lane), geometry.stride(lane), "the spill",
                                 "create the ring with less --spill-bytes");
}

void Spill::give_back(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    if (geometry.spill_bytes == 0) return;
    const std::uint32_t lane = geometry.spill_lane();
    map.segment().give_back_unused(geometry.bits_offset(lane), geometry.stride(lane));
}

Result<Spill> Spill::open(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    if (auto reserved = reserve(map); !reserved) return std::unexpected(reserved.error());
    auto page = map.segment().map(geometry.owner_offset(lane), page_bytes, true);
    if (!page) return std::unexpected(page.error());
    auto data = map.segment().map(geometry.data_offset(lane), geometry.spill_bytes, true);
    if (!data) return std::unexpected(data.error());
    return Spill(std::move(*page), std::move(*data), geometry, map.entry(lane));
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
        auto page = map.segment().map(geometry.owner_offset(lane), page_bytes, true);
        if (!page) return std::unexpected(page.error());
        publish(page->at<LaneOwner>(0).tail, tail);
    }
    FAULT_POINT("spill.after_tail_again");
    // The journal itself is replayed once the lanes are recovered; it does not need this any more.
    publish(control.journal_spill_tail, std::uint64_t{0});
    return {};
}

// Compaction copies the oldest record to the end, behind a skip perhaps: without room for that, one
// record would keep all the dead bytes behind it. Half of the spill is enough to give for it.
bool Spill::leaves_room(std::uint64_t bytes, const LaneFeed& own) const {
    if (own.pinned_bytes() == 0) return true;
    const std::uint64_t largest = std::max(bytes, own.largest_bytes());
    const std::uint64_t kept = std::min(2 * largest + line_bytes, own.capacity_bytes() / 2);
    return own.pinned_bytes() + bytes + kept <= own.capacity_bytes();
}

std::optional<RecordRef> Spill::move(const Straggler& straggler, LaneFeed& own,
                                     ReaderControl& control, Journal<NativePlatform> journal) {
    const RecordRef& from = straggler.ref;
    LaneFeed& source = *straggler.feed;
    // What a predecessor left there is read first: our reader follows our writer record by record.
    if (own.read_position() != writer_.position()) return std::nullopt;
    if (&source != &own && !leaves_room(from.bytes(), own)) return std::nullopt;
    if (writer_.reserve(from.bytes()) != Reserve::ok) {
        own.pass_skips();  // one may have been published to wait at the start
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
    own.pass_evacuated(moved.position);
    source.settle(0, from.bytes());
    add(control.copied_bytes, from.bytes());
    add(control.evacuated_records, std::uint64_t{1});
    FAULT_POINT("evacuate.after");
    return moved;
}

}  // namespace rollring
