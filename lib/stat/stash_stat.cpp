#include "rollring/stat.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "account_page.hpp"
#include "ring_map.hpp"
#include "rollring/ring.hpp"

namespace rollring {
namespace {

constexpr std::uint32_t rows_per_read = 512;
constexpr int tries_max = 100;

// Copies data that is written under `sequence`, which is odd meanwhile. By system calls, which keep
// their order and allocate no page of the sparse board. False if the data never held still.
template <class T>
bool read_whole(const Segment& segment, std::uint64_t offset, T& to) {
    const std::uint64_t at = offset + offsetof(T, sequence);
    for (int i = 0; i < tries_max; i++) {
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        if (!segment.read(at, &before, sizeof to.sequence)) return false;
        if (!segment.read(offset, &to, sizeof to)) return false;
        if (!segment.read(at, &after, sizeof to.sequence)) return false;
        if (before == after && before % 2 == 0) return true;
        std::this_thread::yield();
    }
    return false;
}

GroupState state_of(std::uint32_t row_state) {
    switch (static_cast<RowState>(row_state)) {
        case RowState::open:
            return GroupState::open;
        case RowState::ready:
            return GroupState::ready;
        case RowState::leased:
            return GroupState::leased;
        case RowState::free:
            break;
    }
    return GroupState::unknown;
}

// The row holds the first bytes: a character that is cut is left out.
std::string instance_of(const GroupRow& row) {
    std::string id = row.instance.load();
    if (id.size() < sizeof row.instance) return printable(id);
    std::size_t start = id.size();
    while (start > 0 && (static_cast<unsigned char>(id[start - 1]) & 0xc0U) == 0x80) start--;
    const auto lead = start > 0 ? static_cast<unsigned char>(id[start - 1]) : 0U;
    const std::size_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (start > 0 && id.size() - (start - 1) < wanted) id.resize(start - 1);
    return printable(id);
}

GroupStat group_of(const RingMap& map, const GroupRow& row, std::int64_t now_ns) {
    GroupStat group{};
    group.key = {peek(row.key_low), peek(row.key_high)};
    group.instance_id = instance_of(row);
    group.state = state_of(peek(row.state));
    group.age_ns = age_ns(now_ns, peek(row.opened_ns));
    group.unchanged_ns = age_ns(now_ns, peek(row.changed_ns));
    group.size = peek(row.size);
    group.complete = peek(row.complete);
    group.failed = peek(row.failed);
    group.records = peek(row.records);
    group.tokens = peek(row.tokens);
    for (std::uint32_t bit = 0; bit < 64; bit++) {
        if ((peek(row.missing) >> bit & 1U) != 0) group.missing.push_back(bit);
    }
    for (std::uint32_t lane = 0; lane < map.geometry().lane_count; lane++) {
        if ((peek(row.lanes) >> lane % 64 & 1U) == 0 || observe(map.owner(lane).epoch) == 0) {
            continue;
        }
        group.producers.push_back(load_sender(map, lane, observe(map.owner(lane).epoch)));
        group.lanes.push_back(lane);
    }
    return group;
}

// Reads until it has found as many groups as are open: rows are used from the first one on.
void read_rows(const RingMap& map, StashStat& stat) {
    const Geometry& geometry = map.geometry();
    const std::int64_t now_ns = monotonic_ns();
    auto chunk = std::make_unique<std::array<GroupRow, rows_per_read>>();
    std::uint64_t found = 0;
    for (std::uint64_t first = 0; first < geometry.group_rows && found < stat.open_groups;
         first += rows_per_read) {
        const std::uint64_t count =
            std::min<std::uint64_t>(rows_per_read, geometry.group_rows - first);
        const std::uint64_t offset = geometry.board_offset() + first * sizeof(GroupRow);
        if (!map.segment().read(offset, chunk->data(), count * sizeof(GroupRow))) return;
        for (std::uint64_t i = 0; i < count; i++) {
            GroupRow& row = (*chunk)[i];
            if (peek(row.state) == 0) continue;
            if (!read_whole(map.segment(), offset + i * sizeof(GroupRow), row)) {
                stat.rows_unread++;
                continue;
            }
            if (peek(row.state) == 0) continue;
            stat.groups.push_back(group_of(map, row, now_ns));
            found++;
        }
    }
    std::ranges::sort(stat.groups, std::ranges::greater(), &GroupStat::age_ns);
}

}  // namespace

Result<StashStat> stat_stash(std::string_view ring) {
    auto map = RingMap::attach(ring, Deadline::now(), Access::read_only);
    if (!map) return std::unexpected(map.error());
    StashStat stat{};
    stat.ring = ring;
    StashPage page{};
    stat.account_whole = read_whole(map->segment(), map->geometry().stash_offset(), page);
    stat.used = peek(page.sequence) != 0;
    if (!stat.used) return stat;
    const ReaderControl& control = map->control();
    stat.max_open_groups = control.max_open_groups.load();
    stat.open = stat.max_open_groups != 0 && map->consumer_alive();
    stat.max_open_bytes = control.max_open_bytes.load();
    stat.open_groups = control.open_groups.load();
    stat.held_bytes = control.held_bytes.load();
    stat.copied_bytes = peek(control.copied_bytes);
    stat.evacuated_records = peek(control.evacuated_records);
    stat.account = load_account(page);
    stat.latest_batch = load_latest_batch(page);
    read_rows(*map, stat);
    return stat;
}

}  // namespace rollring
