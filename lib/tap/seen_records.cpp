#include "seen_records.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

namespace rollring {
namespace {

constexpr std::size_t gaps_kept = 256;         // of each lane
constexpr std::size_t spilled_kept = 1 << 16;  // a set of a few megabytes

}  // namespace

void SeenRecords::begin_behind(std::uint32_t lane, std::uint32_t epoch, std::uint64_t records) {
    Lane& at = lanes_[lane];
    at = {.begun = true, .first_epoch = epoch, .first = records, .epoch = epoch, .next = records};
}

std::uint64_t SeenRecords::spilled_in(std::uint32_t lane, const Gap& gap) const {
    if (spilled_.empty()) return 0;
    const auto from = spilled_.lower_bound({lane, gap.epoch, gap.begin});
    const auto to = spilled_.lower_bound({lane, gap.epoch, gap.end});
    return static_cast<std::uint64_t>(std::distance(from, to));
}

void SeenRecords::note_gap(std::uint32_t number, const RecordName& to) {
    Lane& lane = lanes_[number];
    const bool same = to.epoch == lane.epoch;
    constexpr auto open_end = std::numeric_limits<std::uint64_t>::max();
    if (!same) lane.gaps.push_back({lane.epoch, lane.next, open_end, false});
    const Gap gap{to.epoch, same ? lane.next : 0, to.sequence, true};
    if (gap.begin < gap.end) {
        missed_ += gap.end - gap.begin - spilled_in(number, gap);
        lane.gaps.push_back(gap);
    }
    while (lane.gaps.size() > gaps_kept) lane.gaps.pop_front();
}

bool SeenRecords::take(const RecordName& record) {
    Lane& lane = lanes_[record.lane];
    if (!lane.begun) {
        begin_behind(record.lane, record.epoch, record.sequence);
    } else if (record.epoch == lane.epoch && record.sequence < lane.next) {
        return false;
    } else {
        note_gap(record.lane, record);
    }
    lane.epoch = record.epoch;
    lane.next = record.sequence + 1;
    return !spilled_.contains(record);
}

bool SeenRecords::take_spilled(const RecordName& record) {
    if (spilled_.contains(record)) return false;
    const Lane& lane = lanes_[record.lane];
    const auto place = std::tie(record.epoch, record.sequence);
    const bool reached = lane.begun && place < std::tie(lane.epoch, lane.next);
    if (reached && place >= std::tie(lane.first_epoch, lane.first)) {
        const auto gap = std::ranges::find_if(lane.gaps, [&](const Gap& one) {
            return one.epoch == record.epoch && one.begin <= record.sequence &&
                   record.sequence < one.end;
        });
        if (gap == lane.gaps.end()) return false;
        if (gap->counted && missed_ > 0) missed_--;
    }
    spilled_.insert(record);
    in_order_.push_back(record);
    if (in_order_.size() > spilled_kept) {
        spilled_.erase(in_order_.front());
        in_order_.pop_front();
    }
    return true;
}

}  // namespace rollring
