#include "stored.hpp"

#include <fmt/format.h>

#include <cstring>

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

    // As checked_frame() reads one.
    [[nodiscard]] const Frame& read(std::uint64_t /*offset*/) const { return frame; }
    [[nodiscard]] const std::byte* payload() const {
        return reinterpret_cast<const std::byte*>(&header);
    }
};
static_assert(offsetof(Beginning, header) == line_bytes);
static_assert(sizeof(Beginning) == line_bytes + sizeof(RecordHeader) + line_bytes);

std::unexpected<Error> not_stored(Location at) {
    return refused(Errc::not_stored,
                   fmt::format("no value of the store lies at {}: it was cleared, or replaced, or "
                               "never put",
                               at.number));
}

}  // namespace

// Whoever keeps the books marks it, or moves the cursor over it, before its memory is another's.
// The marks go when the cursor has passed them, so they are looked at first.
bool StoredValues::released(const Place& place) const {
    const Geometry& geometry = map_->geometry();
    const std::uint64_t line =
        LaneSize(geometry.capacity(place.lane)).offset(place.position) / line_bytes;
    std::uint64_t word = 0;
    const std::uint64_t at = geometry.bits_offset(place.lane) + line / 64 * sizeof word;
    if (!map_->segment().read(at, &word, sizeof word) || (word >> line % 64 & 1) != 0) return true;
    return place.position < map_->entry(place.lane).cursor.load();
}

Result<StoredValues::Found> StoredValues::find(Location at) const {
    const Geometry& geometry = map_->geometry();
    const Place place = place_of(at);
    if (place.lane >= geometry.lane_count) return not_stored(at);
    const std::uint64_t tail = observe(map_->owner(place.lane).tail);
    if (place.position >= tail || released(place)) return not_stored(at);
    const LaneSize size(geometry.capacity(place.lane));
    const std::uint64_t offset = geometry.data_offset(place.lane) + size.offset(place.position);
    Beginning beginning;
    Frame frame;
    if (!map_->segment().read(offset, &beginning, sizeof beginning) ||
        !checked_frame(beginning, size, place.position, tail, frame) || !is_record(frame)) {
        return not_stored(at);
    }
    // A second look reads what was copied, and says of the rest where it lies.
    TrajectoryView view;
    const bool ours = beginning.header.column_count == columns &&
                      view.parse({beginning.payload(), frame.payload_bytes}, map_->schema(),
                                 TrajectoryView::Look::again)
                          .empty();
    const ColumnView* const value = ours ? view.find(value_column) : nullptr;
    if (value == nullptr) {
        if (released(place)) return not_stored(at);
        return refused(
            Errc::bad_record,
            fmt::format("what lies at {} is damaged, or is no value of a store", at.number));
    }
    const ValueForm form{value->dtype, value->dims, value->shape, view.meta().origin};
    return Found{form, offset + line_bytes +
                           static_cast<std::uint64_t>(value->data.data() - beginning.payload())};
}

Result<void> StoredValues::read(Location at, const Found& found, std::span<std::byte> to) const {
    const bool whole = to.empty() || map_->segment().read(found.offset, to.data(), to.size());
    if (!whole || released(place_of(at))) return not_stored(at);
    return {};
}

StoredValues::Sum StoredValues::sum(std::uint32_t lane) const {
    const Geometry& geometry = map_->geometry();
    const LaneSize size(geometry.capacity(lane));
    const std::uint64_t tail = observe(map_->owner(lane).tail);
    Sum made;
    Place place{lane, observe(map_->entry(lane).cursor)};
    while (place.position < tail && place.position % line_bytes == 0) {
        Frame frame;
        const FramesByRead frames{map_->segment(), geometry.data_offset(lane)};
        if (!checked_frame(frames, size, place.position, tail, frame)) break;
        if (is_record(frame) && !released(place)) {
            made.values++;
            made.bytes += frame.bytes;
        }
        place.position += frame.bytes;
    }
    return made;
}

}  // namespace rollring
