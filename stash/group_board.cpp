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
      tombstones_(&memory_.at<Tombstone>(geometry.tombstones_offset() - geometry.board_offset())),
      tombstone_count_(geometry.tombstone_count()),
      key_count_(geometry.key_count()),
      control_(&control) {}

Result<GroupBoard> GroupBoard::open(const RingMap& map, ReaderControl& control) {
    const Geometry& geometry = map.geometry();
    const std::uint64_t bytes = geometry.share_seats_offset() - geometry.board_offset();
    if (auto reserved = map.segment().reserve(geometry.board_offset(), bytes, "the board of groups",
                                              "create the ring with fewer --group-rows");
        !reserved) {
        return std::unexpected(reserved.error());
    }
    auto memory = map.segment().map(geometry.board_offset(), bytes, true);
    if (!memory) {
        map.segment().give_back_unused(geometry.board_offset(), bytes);
        return std::unexpected(memory.error());
    }
    std::memset(memory->data(), 0, geometry.tombstones_offset() - geometry.board_offset());
    return GroupBoard(std::move(*memory), geometry, control);
}

void GroupBoard::add_tombstone(const GroupKey& key, std::int64_t now_ns) {
    const std::uint64_t number = peek(control_->tombstones);
    write_tombstone(number, key, now_ns);
    store_release(control_->tombstones, number + 1);
}

void GroupBoard::close(std::uint32_t index, std::int64_t now_ns, bool has_tombstone) {
    Shown& shown = shown_[index];
    if (shown.in_table) {
        keys_.erase(shown.key);
        keys_held_--;
    }
    shown.in_table = shown.open = shown.nameless = false;
    if (!has_tombstone) add_tombstone(shown.key, now_ns);
    if (index >= row_count_) return;
    GroupRow& to = row(index);
    const std::uint32_t sequence = peek(to.sequence);
    store_release(to.sequence, sequence + 1);
    poke(to.state, static_cast<std::uint32_t>(RowState::free));
    store_release(to.sequence, sequence + 2);
}

void GroupBoard::open(std::uint32_t index, const Group& group) {
    Shown& shown = shown_[index];
    // The table also has keys of groups without a row. A quarter of it stays empty, so that every
    // search ends.
    shown.in_table = keys_held_ < key_count_ / 4 * 3;
    if (shown.in_table) {
        keys_.insert(group.key);
        keys_held_++;
    }
    shown.key = group.key;
    shown.open = true;
    shown.nameless = index < row_count_;
    if (index >= row_count_) return;
    GroupRow& to = row(index);
    const std::uint32_t sequence = peek(to.sequence);
    store_release(to.sequence, sequence + 1);
    poke(to.key_low, group.key.low);
    poke(to.key_high, group.key.high);
    poke(to.size, group.size);
    to.instance.store({});
    store_release(to.sequence, sequence + 2);
}

void GroupBoard::show(std::uint32_t index, const Group& group, std::int64_t now_ns,
                      bool has_tombstone) {
    if (index >= shown_.size()) shown_.resize(index + 1);
    // Another group may take an index before the end of the previous one was shown.
    if (shown_[index].open && shown_[index].key != group.key) close(index, now_ns, false);
    if (group.state == GroupState::free) {
        if (shown_[index].open) {
            close(index, now_ns, has_tombstone);
        } else if (!has_tombstone) {
            add_tombstone(group.key, now_ns);  // opened and finished within one call
        }
        return;
    }
    if (!shown_[index].open) open(index, group);
    if (index >= row_count_) return;
    GroupRow& to = row(index);
    const std::uint32_t sequence = peek(to.sequence);
    store_release(to.sequence, sequence + 1);
    std::uint64_t missing =
        group.size < 64 ? (std::uint64_t{1} << group.size) - 1 : ~std::uint64_t{0};
    missing &= ~group.final_members;
    // A ready group waits for no member.
    poke(to.missing, group.state == GroupState::open ? missing : 0);
    poke(to.lanes, group.lanes);
    poke(to.opened_ns, group.opened_ns);
    poke(to.changed_ns, now_ns);
    poke(to.tokens, group.total.tokens);
    poke(to.records, static_cast<std::uint32_t>(group.total.records));
    poke(to.complete, group.complete);
    poke(to.failed, group.failed);
    poke(to.state, static_cast<std::uint32_t>(group.state));
    store_release(to.sequence, sequence + 2);
}

void GroupBoard::name(std::uint32_t index, std::string_view instance_id) {
    shown_[index].nameless = false;
    row(index).instance.store(instance_id);
}

// If the process is killed in between, the number is 0, and readers ignore the tombstone.
void GroupBoard::write_tombstone(std::uint64_t number, const GroupKey& key, std::int64_t now_ns) {
    Tombstone& tombstone = tombstones_[number % tombstone_count_];
    poke(tombstone.number, std::uint64_t{0});
    store_release(tombstone.key_low, key.low);
    store_release(tombstone.key_high, key.high);
    store_release(tombstone.over_ns, now_ns);
    store_release(tombstone.number, number + 1);
}

void GroupBoard::prepare_tombstones(std::span<const GroupKey> keys, std::int64_t now_ns) {
    std::uint64_t number = peek(control_->tombstones);
    for (const GroupKey& key : keys) write_tombstone(number++, key, now_ns);
    store_release(control_->journal_tombstones, number);
}

std::vector<KnownTombstone> GroupBoard::tombstones(std::int64_t now_ns) const {
    const std::uint64_t end = peek(control_->tombstones);
    std::vector<KnownTombstone> found;
    for (std::uint64_t i = end - std::min(end, tombstone_count_); i < end; i++) {
        const Tombstone& tombstone = tombstones_[i % tombstone_count_];
        if (peek(tombstone.number) != i + 1) continue;  // its group was not finished
        // Others may have overwritten the time: it must lie between 0 and now.
        const std::int64_t over_ns = std::clamp<std::int64_t>(peek(tombstone.over_ns), 0, now_ns);
        found.push_back({{peek(tombstone.key_low), peek(tombstone.key_high)}, over_ns});
    }
    return found;
}

}  // namespace rollring
