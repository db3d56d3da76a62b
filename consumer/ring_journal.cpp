#include "ring_journal.hpp"

namespace rollring {

Result<void> set_spill_tail(const RingMap& map, std::uint64_t tail) {
    auto page = map.segment().map(map.geometry().owner_offset(map.geometry().spill_lane()),
                                  page_bytes, true);
    if (!page) return std::unexpected(page.error());
    store_release(page->at<LaneOwner>(0).tail, tail);
    return {};
}

Result<void> RingJournal::recover_spill_tail(const RingMap& map) {
    const std::uint64_t tail = peek(control_->journal_spill_tail);
    if (tail == 0) return {};
    const Geometry& geometry = map.geometry();
    const std::uint32_t lane = geometry.spill_lane();
    const std::uint64_t head = observe(map.entry(lane).head);
    const bool possible = geometry.spill_bytes != 0 && tail % line_bytes == 0 && tail >= head &&
                          tail - head <= 2 * geometry.capacity(lane);
    if (control_->journal_count.load() != 0 && possible) {
        if (auto set = set_spill_tail(map, tail); !set) return set;
    }
    FAULT_POINT("spill.after_tail_again");
    // The journal is replayed later, once the lanes are recovered, and without this word.
    store_release(control_->journal_spill_tail, std::uint64_t{0});
    return {};
}

}  // namespace rollring
