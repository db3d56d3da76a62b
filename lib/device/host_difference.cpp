#include "host_difference.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "entry_list.hpp"
#include "fault_point.hpp"
#include "find_changes.hpp"

namespace rollring::device {
namespace {

// A record of the list. Behind it follow, if it has places, u16[elements] of distances in elements
// from `address`, padded to 8 bytes; then the values.
struct Record {
    std::byte* address;
    std::uint32_t elements;
    std::uint16_t element_bytes;
    std::uint16_t has_places;  // 0: the values of neighbours from `address` on
};
static_assert(sizeof(Record) == 16);

constexpr std::uint64_t window = std::uint64_t{1} << 16;  // distances of a record are below it

std::uint64_t places_bytes(std::uint64_t elements) {
    return (elements * sizeof(std::uint16_t) + 7) / 8 * 8;
}
std::uint64_t record_bytes(const Record& record) {
    const std::uint64_t places = record.has_places != 0 ? places_bytes(record.elements) : 0;
    const std::uint64_t values = std::uint64_t{record.elements} * record.element_bytes;
    return sizeof record + places + (values + 7) / 8 * 8;
}

// Collects the differences of runs of elements, and appends them to the list as records.
template <class Element>
class Collector {
  public:
    explicit Collector(EntryList& list) : list_(&list) {}

    // A run of at most changes_max elements; of the slot, `from_stride` elements apart.
    void compare(std::byte* to, const std::byte* from, std::uint32_t elements,
                 std::int64_t from_stride) {
        place(to, elements);
        const auto first = static_cast<std::uint16_t>(distance(to));
        std::uint32_t found = 0;
        if (from_stride == 1) {
            found = find_changes(to, from, elements, first,
                                 Changes<Element>{&index_[count_], &value_[count_]});
        } else {
            for (std::uint32_t i = 0; i < elements; i++) {
                check(to + std::size_t{i} * sizeof(Element), load(from, i * from_stride),
                      static_cast<std::uint16_t>(first + i), found);
            }
        }
        changed_ += found;
        const std::uint64_t whole = sizeof(Record) + std::uint64_t{elements} * sizeof(Element);
        if (found * (sizeof(Element) + sizeof(std::uint16_t)) > whole) {
            flush();
            append_run(to, from, elements, from_stride);
        } else {
            count_ += found;
        }
    }
    // Elements that have a distance in the tensor, too.
    void compare_apart(std::byte* to, std::int64_t to_stride, const std::byte* from,
                       std::int64_t from_stride, std::int64_t elements) {
        for (std::int64_t i = 0; i < elements; i++) {
            std::byte* const at = to + i * to_stride * std::int64_t{sizeof(Element)};
            place(at, 1);
            std::uint32_t found = 0;
            check(at, load(from, i * from_stride), static_cast<std::uint16_t>(distance(at)), found);
            changed_ += found;
            count_ += found;
        }
    }
    // False: the list had no room.
    [[nodiscard]] bool finish() {
        flush();
        return !full_;
    }
    [[nodiscard]] bool full() const { return full_; }
    [[nodiscard]] std::uint64_t changed() const { return changed_; }

  private:
    static Element load(const std::byte* from, std::int64_t i) {
        Element value;
        std::memcpy(&value, from + i * std::int64_t{sizeof value}, sizeof value);
        return value;
    }
    void check(const std::byte* at, Element incoming, std::uint16_t index, std::uint32_t& found) {
        index_[count_ + found] = index;
        value_[count_ + found] = incoming;
        found += load(at, 0) != incoming ? 1 : 0;
    }
    [[nodiscard]] std::uint64_t distance(const std::byte* at) const {
        return static_cast<std::uint64_t>(at - base_) / sizeof(Element);
    }
    // Makes all elements of a run fit into the record that is being collected.
    void place(std::byte* to, std::uint32_t elements) {
        if (count_ > 0 &&
            (to < base_ || distance(to) + elements > window || count_ + elements > capacity)) {
            flush();
        }
        if (count_ == 0) base_ = to;
    }
    Record* append(const Record& record) {
        auto* const at = full_ ? nullptr : list_->append(record_bytes(record));
        full_ = at == nullptr;
        if (!full_) std::memcpy(at, &record, sizeof record);
        return reinterpret_cast<Record*>(at);
    }
    void flush() {
        if (count_ == 0) return;
        const Record record{base_, count_, sizeof(Element), 1};
        if (Record* made = append(record)) {
            auto* const to = reinterpret_cast<std::byte*>(made + 1);
            std::memcpy(to, index_.data(), count_ * sizeof(std::uint16_t));
            std::memcpy(to + places_bytes(count_), value_.data(), count_ * sizeof(Element));
        }
        count_ = 0;
    }
    void append_run(std::byte* to, const std::byte* from, std::uint32_t elements,
                    std::int64_t from_stride) {
        Record* made = append({to, elements, sizeof(Element), 0});
        if (made == nullptr) return;
        auto* const values = reinterpret_cast<std::byte*>(made + 1);
        if (from_stride == 1) {
            std::memcpy(values, from, std::size_t{elements} * sizeof(Element));
            return;
        }
        for (std::uint32_t i = 0; i < elements; i++) {
            const Element value = load(from, i * from_stride);
            std::memcpy(values + std::size_t{i} * sizeof value, &value, sizeof value);
        }
    }

    static constexpr std::uint32_t capacity = 2 * changes_max;
    EntryList* list_;
    std::byte* base_ = nullptr;
    std::uint32_t count_ = 0;  // entries since base_ that are in no record yet
    std::uint64_t changed_ = 0;
    bool full_ = false;
    std::array<std::uint16_t, capacity + changes_spare> index_;
    std::array<Element, capacity + changes_spare> value_;
};

// Of the innermost dimension. Strides are in elements.
struct Row {
    std::byte* to;
    std::int64_t to_stride;
    const std::byte* from;
    std::int64_t from_stride;
    std::uint64_t elements;
};

template <class Element>
void compare_row(Collector<Element>& collector, Row row) {
    if (row.to_stride != 1) {
        collector.compare_apart(row.to, row.to_stride, row.from, row.from_stride,
                                static_cast<std::int64_t>(row.elements));
        return;
    }
    while (row.elements > 0 && !collector.full()) {
        const auto now =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(row.elements, changes_max));
        collector.compare(row.to, row.from, now, row.from_stride);
        row.to += std::size_t{now} * sizeof(Element);
        row.from += now * row.from_stride * std::int64_t{sizeof(Element)};
        row.elements -= now;
    }
}

template <class Element>
bool compare_job(const CopyJob& job, const std::byte* from, EntryList& list,
                 std::uint64_t& changed) {
    Collector<Element> collector(list);
    if (job.shape.empty()) {
        compare_row(collector, {job.tensor, 1, from, 1, job.elements});
    } else {
        const std::size_t last = job.shape.size() - 1;
        const auto row = static_cast<std::uint64_t>(job.shape[last]);
        std::array<std::int64_t, CopyJob::dims_max> at{};
        for (std::uint64_t done = 0; done < job.elements && !collector.full(); done += row) {
            std::int64_t to = 0;
            std::int64_t of = 0;
            for (std::size_t dim = 0; dim < last; dim++) {
                to += at[dim] * job.strides[dim];
                of += at[dim] * job.packed_strides[dim];
            }
            compare_row(collector,
                        {job.tensor + to * std::int64_t{sizeof(Element)}, job.strides[last],
                         from + of * std::int64_t{sizeof(Element)}, job.packed_strides[last], row});
            for (std::size_t dim = last; dim-- > 0;) {
                at[dim]++;
                if (at[dim] != job.shape[dim]) break;
                at[dim] = 0;
            }
        }
    }
    const bool fits = collector.finish();
    changed += collector.changed();
    return fits;
}

bool compare_any(const CopyJob& job, const std::byte* from, EntryList& list,
                 std::uint64_t& changed) {
    switch (job.element_bytes) {
        case 1:
            return compare_job<std::uint8_t>(job, from, list, changed);
        case 2:
            return compare_job<std::uint16_t>(job, from, list, changed);
        case 4:
            return compare_job<std::uint32_t>(job, from, list, changed);
        default:
            return compare_job<std::uint64_t>(job, from, list, changed);
    }
}

template <class Element>
void exchange_places(const Record& record, const std::byte* places, std::byte* values) {
    for (std::uint32_t i = 0; i < record.elements; i++) {
        std::uint16_t place = 0;
        Element incoming;
        Element old;
        std::memcpy(&place, places + std::size_t{i} * sizeof place, sizeof place);
        std::byte* const at = record.address + std::size_t{place} * sizeof(Element);
        std::byte* const value = values + std::size_t{i} * sizeof(Element);
        std::memcpy(&incoming, value, sizeof incoming);
        std::memcpy(&old, at, sizeof old);
        std::memcpy(at, &incoming, sizeof incoming);
        std::memcpy(value, &old, sizeof old);
    }
}

std::uint64_t exchange(std::byte* at) {
    Record record;
    std::memcpy(&record, at, sizeof record);
    std::byte* const places = at + sizeof record;
    if (record.has_places == 0) {
        const std::uint64_t bytes = std::uint64_t{record.elements} * record.element_bytes;
        std::swap_ranges(places, places + bytes, record.address);
        return record_bytes(record);
    }
    std::byte* const values = places + places_bytes(record.elements);
    switch (record.element_bytes) {
        case 1:
            exchange_places<std::uint8_t>(record, places, values);
            break;
        case 2:
            exchange_places<std::uint16_t>(record, places, values);
            break;
        case 4:
            exchange_places<std::uint32_t>(record, places, values);
            break;
        default:
            exchange_places<std::uint64_t>(record, places, values);
    }
    return record_bytes(record);
}

class HostDifference : public Difference {
  public:
    explicit HostDifference(std::vector<std::vector<CopyJob>> parts)
        : parts_(std::move(parts)), ranges_(parts_.size()) {}

    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) override {
        list_.clear(bytes_max, bytes_kept);
        std::ranges::fill(ranges_, Range{});
        size_ = {};
    }

    Result<Fit> compare(std::size_t first, std::span<const std::byte* const> slots, Stream,
                        Deadline) override {
        const EntryList::Point begin = list_.end();
        for (std::size_t i = 0; i < slots.size(); i++) {
            if (compare_part(first + i, slots[i])) continue;
            list_.cut(begin);
            for (std::size_t back = 0; back < i; back++) ranges_[first + back] = {};
            return list_.lacks_memory() ? Fit::no_memory : Fit::full;
        }
        return Fit::fits;
    }

    Result<void> swap(std::size_t parts, Stream) override {
        for (std::size_t part = 0; part < parts; part++) {
            list_.visit(ranges_[part].begin, ranges_[part].end, exchange);
            FAULT_POINT("weights.swapped");
        }
        return {};
    }

    Result<void> end_exchange(Deadline) override { return {}; }

    [[nodiscard]] Size size() const override {
        return {size_.elements, size_.changed, list_.used()};
    }

  private:
    struct Range {
        EntryList::Point begin;
        EntryList::Point end;
    };
    // False: the list had no room.
    bool compare_part(std::size_t part, const std::byte* slot) {
        const EntryList::Point begin = list_.end();
        for (const CopyJob& job : parts_[part]) {
            size_.elements += job.elements;
            if (!compare_any(job, slot + job.slot_offset, list_, size_.changed)) return false;
        }
        ranges_[part] = {begin, list_.end()};
        return true;
    }

    std::vector<std::vector<CopyJob>> parts_;
    EntryList list_;
    std::vector<Range> ranges_;  // by part
    Size size_;
};

}  // namespace

std::unique_ptr<Difference> make_host_difference(std::vector<std::vector<CopyJob>> parts) {
    return std::make_unique<HostDifference>(std::move(parts));
}

}  // namespace rollring::device
