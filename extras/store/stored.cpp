#include "stored.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "checked_frame.hpp"
#include "frames_by_read.hpp"
#include "rollring/trajectory.hpp"
#include "wire.hpp"

namespace rollring {
namespace {

// A value's record has two columns, its key and itself.
constexpr std::uint16_t columns = 2;

// The beginning of a record, copied once.
struct Beginning {
    Frame frame;
    RecordHeader header;
    ColumnEntry entries[columns];

    // The interface that checked_frame() reads.
    [[nodiscard]] const Frame& read(std::uint64_t /*offset*/) const { return frame; }
    [[nodiscard]] const std::byte* payload() const {
        return reinterpret_cast<const std::byte*>(&header);
    }
};
static_assert(offsetof(Beginning, header) == line_bytes);
static_assert(sizeof(Beginning) == line_bytes + sizeof(RecordHeader) + line_bytes);

std::unexpected<Error> not_stored(Location at) {
    return refused(
        Errc::not_stored,
        fmt::format("the store has no value at {}: it was cleared, replaced, or never put",
                    at.number));
}

}  // namespace

// Marks are cleared once the cursor has passed them, so read them before the cursor.
bool ReleasedMarks::released(const Place& place) {
    return marked(place) || place.position < map_->entry(place.lane).cursor.load();
}

bool ReleasedMarks::marked(const Place& place) {
    const Geometry& geometry = map_->geometry();
    const std::uint64_t line =
        LaneSize(geometry.capacity(place.lane)).offset(place.position) / line_bytes;
    const std::uint64_t word = line / 64;
    if (place.lane != lane_ || word < first_ || word >= end_) {
        const std::uint64_t words = geometry.bits_bytes(place.lane) / sizeof word;
        lane_ = place.lane;
        first_ = word;
        end_ = std::min(word + words_.size(), words);
        const std::uint64_t at = geometry.bits_offset(place.lane) + word * sizeof word;
        if (!map_->segment().read(at, words_.data(), (end_ - first_) * sizeof word)) {
            end_ = first_;
            return true;
        }
    }
    return (words_[word - first_] >> line % 64 & 1) != 0;
}

// The value may have been released: the caller checks the marks afterwards.
Result<StoredValue> StoredValues::find_one(Location at) const {
    const Geometry& geometry = map_->geometry();
    const Place place = place_of(at);
    if (place.lane >= geometry.lane_count) return not_stored(at);
    const std::uint64_t tail = observe(map_->owner(place.lane).tail);
    if (place.position >= tail) return not_stored(at);
    const LaneSize size(geometry.capacity(place.lane));
    const std::uint64_t offset = geometry.data_offset(place.lane) + size.offset(place.position);
    Beginning beginning;
    Frame frame;
    if (!map_->segment().read(offset, &beginning, sizeof beginning) ||
        !checked_frame(beginning, size, place.position, tail, frame) || !is_record(frame)) {
        return not_stored(at);
    }
    // Parses the copied part; columns behind it are given by offset.
    TrajectoryView view;
    const bool ours = beginning.header.column_count == columns &&
                      view.parse({beginning.payload(), frame.payload_bytes}, map_->schema(),
                                 TrajectoryView::Look::again)
                          .empty();
    const ColumnView* const value = ours ? view.find(value_column) : nullptr;
    if (value == nullptr) {
        if (ReleasedMarks(*map_).released(place)) return not_stored(at);
        return refused(
            Errc::bad_record,
            fmt::format("the value at {} is damaged, or is not a value of a store", at.number));
    }
    const ValueForm form{value->dtype, value->dims, value->shape, view.meta().origin};
    return StoredValue{
        at, form,
        offset + line_bytes + static_cast<std::uint64_t>(value->data.data() - beginning.payload())};
}

Result<void> StoredValues::find(std::span<const Location> at, std::span<StoredValue> found) const {
    for (std::size_t i = 0; i < at.size(); i++) {
        auto one = find_one(at[i]);
        if (!one) return std::unexpected(one.error());
        found[i] = *one;
    }
    return still_there(found);
}

Result<void> StoredValues::read(std::span<const StoredValue> found,
                                std::span<std::byte* const> to) const {
    for (std::size_t i = 0; i < found.size(); i++) {
        const std::uint64_t bytes = found[i].form.bytes();
        if (bytes != 0 && !map_->segment().read(found[i].offset, to[i], bytes)) {
            return not_stored(found[i].at);
        }
    }
    return still_there(found);
}

Result<void> StoredValues::still_there(std::span<const StoredValue> found) const {
    ReleasedMarks marks(*map_);
    for (const StoredValue& each : found) {
        const Place place = place_of(each.at);
        if (place.lane >= map_->geometry().lane_count || marks.released(place)) {
            return not_stored(each.at);
        }
    }
    return {};
}

StoredValues::Sum StoredValues::sum(std::uint32_t lane) const {
    const Geometry& geometry = map_->geometry();
    const LaneSize size(geometry.capacity(lane));
    const std::uint64_t tail = observe(map_->owner(lane).tail);
    Sum made;
    ReleasedMarks marks(*map_);
    Place place{lane, observe(map_->entry(lane).cursor)};
    while (place.position < tail && place.position % line_bytes == 0) {
        Frame frame;
        const FramesByRead frames{map_->segment(), geometry.data_offset(lane)};
        if (!checked_frame(frames, size, place.position, tail, frame)) break;
        if (is_record(frame) && !marks.released(place)) {
            made.values++;
            made.bytes += frame.bytes;
        }
        place.position += frame.bytes;
    }
    return made;
}

}  // namespace rollring
