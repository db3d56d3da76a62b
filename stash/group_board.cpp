#include "group_board.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace rollring {

static_assert(static_cast<int>(GroupState::leased) == static_cast<int>(RowState::leased) &&
              static_cast<int>(GroupState::ready) == static_cast<int>(RowState::ready) &&
              static_cast<int>(GroupState::open) == static_cast<int>(RowState::open));

GroupBoard::GroupBoard(Mapping memory, const Geometry& geometry, ReaderControl& control)
    : memory_(std::move(memory)),
      row_count_(geometry.group_rows),
      keys_(
          &memory_.at<std::atomic<std::uint64_t>>(geometry.keys_offset() - geometry.board_offset()),
          geometry.key_count()),
      graves_(&memory_.at<Grave>(geometry.graves_offset() - geometry.board_offset())),
      grave_count_(geometry.grave_count()),
      key_count_(geometry.key_count()),
      control_(&control) {}

Result<GroupBoard> GroupBoard::open(const RingMap& map, ReaderControl& control) {
    const Geometry& geometry = map.geometry();
    const std::uint64_t bytes = geometry.segment_bytes() - geometry.board_offset();
    if (auto held = map.segment().reserve(geometry.board_offset(), bytes, "the board of groups",
                                          "create the ring with fewer --group-rows");
        !held) {
        return std::unexpected(held.error());
    }
    auto memory = map.segment().map(geometry.board_offset(), bytes, true);
    if (!memory) {
        map.segment().give_back_unused(geometry.board_offset(), bytes);
        return std::unexpected(memory.error());
    }
    std::memset(memory->data(), 0, geometry.graves_offset() - geometry.board_offset());
    return GroupBoard(std::move(*memory), geometry, control);
}

void GroupBoard::dig_grave(const GroupKey& key, std::int64_t now_ns) {
    const std::uint64_t number = peek(control_->graves);
    write_grave(number, key, now_ns);
    publish(control_->graves, number + 1);
}

void GroupBoard::close(std::uint32_t slot, std::int64_t now_ns, bool buried) {
    Shown& shown = shown_[slot];
    if (shown.in_table) {
        keys_.erase(shown.key);
        keys_held_--;
    }
    shown.in_table = shown.open = shown.nameless = false;
    if (!buried) dig_grave(shown.key, now_ns);
    if (slot >= row_count_) return;
    GroupRow& to = row(slot);
    const std::uint32_t sequence = peek(to.sequence);
    publish(to.sequence, sequence + 1);
    poke(to.state, static_cast<std::uint32_t>(RowState::free));
    publish(to.sequence, sequence + 2);
}

void GroupBoard::open(std::uint32_t slot, const Group& group) {
    Shown& shown = shown_[slot];
    // Producers ask for groups beyond the rows, too. A quarter of the table stays empty, so that a
    // look-up ends.
    shown.in_table = keys_held_ < key_count_ / 4 * 3;
    if (shown.in_table) {
        keys_.insert(group.key);
        keys_held_++;
    }
    shown.key = group.key;
    shown.open = true;
    shown.nameless = slot < row_count_;
    if (slot >= row_count_) return;
    GroupRow& to = row(slot);
    const std::uint32_t sequence = peek(to.sequence);
    publish(to.sequence, sequence + 1);
    poke(to.key_low, group.key.low);
    poke(to.key_high, group.key.high);
    poke(to.size, group.size);
    for (auto& word : to.instance) poke(word, std::uint64_t{0});
    publish(to.sequence, sequence + 2);
}

void GroupBoard::show(std::uint32_t slot, const Group& group, std::int64_t now_ns, bool buried) {
    if (slot >= shown_.size()) shown_.resize(slot + 1);
    // A slot may be taken by another group before the end of the last one was shown.
    if (shown_[slot].open && shown_[slot].key != group.key) close(slot, now_ns, false);
    if (group.state == GroupState::free) {
        if (shown_[slot].open) {
            close(slot, now_ns, buried);
        } else if (!buried) {
            dig_grave(group.key, now_ns);  // opened and over within one call
        }
        return;
    }
    if (!shown_[slot].open) open(slot, group);
    if (slot >= row_count_) return;
    GroupRow& to = row(slot);
    const std::uint32_t sequence = peek(to.sequence);
    publish(to.sequence, sequence + 1);
    std::uint64_t missing =
        group.size < 64 ? (std::uint64_t{1} << group.size) - 1 : ~std::uint64_t{0};
    missing &= ~group.settled;
    // Once it is ready nothing is waited for.
    poke(to.missing, group.state == GroupState::open ? missing : 0);
    poke(to.lanes, group.lanes);
    poke(to.opened_ns, group.opened_ns);
    poke(to.changed_ns, now_ns);
    poke(to.tokens, group.total.tokens);
    poke(to.records, static_cast<std::uint32_t>(group.total.records));
    poke(to.live, group.live);
    poke(to.failed, group.failed);
    poke(to.state, static_cast<std::uint32_t>(group.state));
    publish(to.sequence, sequence + 2);
}

void GroupBoard::name(std::uint32_t slot, std::string_view instance_id) {
    shown_[slot].nameless = false;
    GroupRow& to = row(slot);
    std::array<char, sizeof to.instance> text{};
    std::memcpy(text.data(), instance_id.data(), std::min(instance_id.size(), text.size()));
    for (std::size_t i = 0; i < std::size(to.instance); i++) {
        std::uint64_t word;
        std::memcpy(&word, text.data() + i * sizeof word, sizeof word);
        poke(to.instance[i], word);
    }
}

// Killed in between, we leave a grave without a number, which is none.
void GroupBoard::write_grave(std::uint64_t number, const GroupKey& key, std::int64_t now_ns) {
    Grave& grave = graves_[number % grave_count_];
    poke(grave.number, std::uint64_t{0});
    publish(grave.key_low, key.low);
    publish(grave.key_high, key.high);
    publish(grave.buried_ns, now_ns);
    publish(grave.number, number + 1);
}

void GroupBoard::dig(std::span<const GroupKey> keys, std::int64_t now_ns) {
    std::uint64_t number = peek(control_->graves);
    for (const GroupKey& key : keys) write_grave(number++, key, now_ns);
    publish(control_->journal_graves, number);
}

std::vector<KnownGrave> GroupBoard::graves(std::int64_t now_ns) const {
    const std::uint64_t end = peek(control_->graves);
    std::vector<KnownGrave> found;
    for (std::uint64_t i = end - std::min(end, grave_count_); i < end; i++) {
        const Grave& grave = graves_[i % grave_count_];
        if (peek(grave.number) != i + 1) continue;  // dug for a group that was not over yet
        // Not in the future, nor so long ago that no clock says it.
        const std::int64_t buried_ns = std::clamp<std::int64_t>(peek(grave.buried_ns), 0, now_ns);
        found.push_back({{peek(grave.key_low), peek(grave.key_high)}, buried_ns});
    }
    return found;
}

}  // namespace rollring
