#include "keeper.hpp"

#include <cstring>
#include <utility>

#include "fault_point.hpp"

namespace rollring {

Keeper::Keeper(const StoreRings& rings, Consumer values, Consumer clears)
    : rings_(&rings), values_(std::move(values)), clears_(std::move(clears)) {}

Result<Keeper> Keeper::open(const StoreRings& rings, std::string_view name) {
    constexpr ConsumerOptions at_once{.attach_timeout = {}, .spin = {}, .purpose = Purpose::values};
    auto values = Consumer::open(name, at_once);
    if (!values) return std::unexpected(values.error());
    auto clears = Consumer::open(StoreRings::clears_name(name), at_once);
    if (!clears) return std::unexpected(clears.error());
    return Keeper(rings, std::move(*values), std::move(*clears));
}

bool Keeper::serve(Deadline deadline, const Interruption& stop) {
    Bell& bell = rings_->values.consumer_bell();
    NativeBell core = bell_of(bell);
    while (!deadline.passed() && !stop.raised()) {
        if (turn()) continue;
        const std::uint32_t seen = core.prepare();
        const bool more = turn();
        if (!more && !stop.raised()) futex_sleep(bell.sequence, seen, deadline);
        core.cancel();
        if (!more && !rings_->values.segment().linked()) return false;
    }
    return true;
}

// False if nothing arrived.
bool Keeper::turn() {
    bool any = take_values();
    for (Record record; clears_.poll(record) == Poll::record; any = true) {
        // The values that it names were put before.
        take_values();
        clear(record);
        FAULT_POINT("store.cleared");
        clears_.release(record.ref);
    }
    for (Event event; values_.next_event(event) || clears_.next_event(event);) {
    }
    return any;
}

bool Keeper::take_values() {
    bool any = false;
    for (Record record; values_.poll(record) == Poll::record; any = true) take(record);
    return any;
}

// The time of the put decides which value is newer, because lanes come in any order.
void Keeper::take(const Record& record) {
    const Meta& meta = record.view.meta();
    const std::uint64_t location = location_of(record.ref.lane, record.ref.position).number;
    const Held held{record.ref, GroupKey::of(record.view.instance_id(), 0), record.view.group_key(),
                    meta.created_ns, meta.repetition_id.value_or(0) != 0};
    if (held.keyed) {
        const auto before = newest_.find(held.cell);
        if (before != newest_.end()) {
            if (held_.at(before->second).put_ns > held.put_ns) {
                values_.release(record.ref);
                return;
            }
            drop(before->second);
        }
        FAULT_POINT("store.replaced");
        newest_[held.cell] = location;
        rows_[held.row].push_back(location);
    }
    held_.emplace(location, held);
}

void Keeper::clear(const Record& record) {
    const ColumnView* const named = record.view.find(static_cast<std::uint16_t>(Std::user));
    if (named == nullptr) return;
    const std::span<const std::byte> bytes = named->data;
    if (record.view.meta().origin == static_cast<std::uint16_t>(ClearBy::location)) {
        for (std::size_t i = 0; i + sizeof(std::uint64_t) <= bytes.size(); i += 8) {
            std::uint64_t location;
            std::memcpy(&location, bytes.data() + i, sizeof location);
            drop(location);
        }
        return;
    }
    for (std::size_t i = 0; i + sizeof(GroupKey) <= bytes.size(); i += sizeof(GroupKey)) {
        GroupKey key;
        std::memcpy(&key, bytes.data() + i, sizeof key);
        const auto row = rows_.find(key);
        if (row == rows_.end()) continue;
        const std::vector<std::uint64_t> cells = row->second;
        for (const std::uint64_t location : cells) {
            if (held_.at(location).put_ns < record.view.meta().created_ns) drop(location);
        }
    }
}

void Keeper::drop(std::uint64_t location) {
    const auto found = held_.find(location);
    if (found == held_.end()) return;
    const Held held = found->second;
    held_.erase(found);
    if (held.keyed) {
        newest_.erase(held.cell);
        std::erase(rows_.at(held.row), location);
        if (rows_.at(held.row).empty()) rows_.erase(held.row);
    }
    values_.release(held.ref);
}

}  // namespace rollring
