#pragma once
// From runs of rows to the table that a GPU works through.

#include <algorithm>
#include <optional>
#include <vector>

#include "column_plan.hpp"
#include "gather_device.hpp"

namespace rollring::gathering {

// How a GPU makes the one of the other; nothing: it does not.
std::optional<device::GatherKind> kind_of(DType from, DType to);

// Some nanoseconds a sequence: no Result is made on the way.
class TileWriter {
  public:
    explicit TileWriter(device::TileTable& table) : table_(&table) {}

    // The targets of tables to come, gather_targets_max at most. The plans outlive this. Errors:
    // unsupported, invalid_argument (a target is larger than a table can say).
    Result<void> begin(std::span<const ColumnPlan> plans, std::uint64_t tile_bytes);
    // A table that has these targets, and nothing else yet.
    void clear();
    enum class Added { all, out_of_range, not_located };
    // Tiles of the target's sequences [begin, end) of the layout; `found`: of each, the first one
    // in front. `locate(i, from, bytes)` is where the device reads of sequence i; 0: nowhere, and
    // `begin` is the one that failed. `locate.add(bytes)` counts them.
    template <class Locate>
    Added add(std::size_t target, std::size_t& begin, std::size_t end, const Found* found,
              Locate& locate);

  private:
    struct Known {
        double value;
        std::uint64_t number;
    };
    struct Target {
        const ColumnPlan* plan;
        std::uint32_t row_from_bytes;
        std::uint32_t rows;         // the upper part of GatherTile::rows
        std::uint32_t rows_copied;  // of a tile
        std::uint32_t rows_filled;
        std::vector<Known> known;  // the last few of its values
    };
    Result<void> add_target(const ColumnPlan& plan, std::uint64_t tile_bytes);
    template <class Locate>
    Added add_runs(Target& target, std::size_t i, const Found& found, Locate& locate);
    // Where the next so many tiles go.
    device::GatherTile* room_for(std::size_t tiles) {
        if (table_->tiles.size() - table_->tile_count < tiles) [[unlikely]]
            table_->tiles.resize(2 * (table_->tile_count + tiles));
        return table_->tiles.data() + table_->tile_count;
    }
    void cut(std::uint64_t from, std::uint64_t step, std::uint64_t first, std::uint64_t count,
             std::uint32_t rows_a_tile, std::uint32_t target_rows);
    // The number of a value in the table; nothing: it is out of range.
    std::optional<std::uint64_t> value_number(Target& target, double value);

    device::TileTable* table_;
    std::vector<Target> targets_;
};

inline void TileWriter::cut(std::uint64_t from, std::uint64_t step, std::uint64_t first,
                            std::uint64_t count, std::uint32_t rows_a_tile,
                            std::uint32_t target_rows) {
    device::GatherTile* tile = room_for(count / rows_a_tile + 1);
    auto at = static_cast<std::uint32_t>(first);
    auto left = static_cast<std::uint32_t>(count);
    for (; left > rows_a_tile; left -= rows_a_tile) {
        *tile++ = {from, at, target_rows | rows_a_tile};
        from += rows_a_tile * step;
        at += rows_a_tile;
    }
    *tile++ = {from, at, target_rows | left};
    table_->tile_count = static_cast<std::size_t>(tile - table_->tiles.data());
}

template <class Locate>
TileWriter::Added TileWriter::add(std::size_t number, std::size_t& begin, std::size_t end,
                                  const Found* found, Locate& locate) {
    Target& target = targets_[number];
    const ColumnPlan& plan = *target.plan;
    if (plan.row_bytes() == 0) return Added::all;
    const auto padding = value_number(target, plan.pad());
    // What a loop of some nanoseconds a sequence needs, where nothing that it writes can change it.
    const PlainRows rows = plan.plain_rows();
    const std::uint64_t pad = device::tile_value | padding.value_or(0);
    const std::uint32_t row_bytes = target.row_from_bytes;
    const std::uint32_t target_rows = target.rows;
    const std::uint32_t copied = target.rows_copied;
    const std::uint32_t filled = target.rows_filled;
    const bool any = padding && rows.any();
    std::uint64_t read = 0;
    device::GatherTile* tile = room_for(2 * (end - begin));
    for (; begin < end; begin++, found++) {
        Plain plain;
        if (!any || !rows(begin, *found, plain) || plain.count > copied || plain.pad_count > filled)
            [[unlikely]] {
            table_->tile_count = static_cast<std::size_t>(tile - table_->tiles.data());
            const Added added = add_runs(target, begin, *found, locate);
            if (added != Added::all) return added;
            tile = room_for(2 * (end - begin));
            continue;
        }
        if (plain.pad_count != 0) *tile++ = {pad, plain.pad_first, target_rows | plain.pad_count};
        if (plain.count == 0) continue;
        const std::uint64_t bytes = std::uint64_t{plain.count} * row_bytes;
        const std::uint64_t at = locate(begin, plain.from, bytes);
        if (at == 0) [[unlikely]]
            return Added::not_located;
        read += bytes;
        *tile++ = {at, plain.first, target_rows | plain.count};
    }
    table_->tile_count = static_cast<std::size_t>(tile - table_->tiles.data());
    locate.add(read);
    return Added::all;
}

template <class Locate>
TileWriter::Added TileWriter::add_runs(Target& target, std::size_t i, const Found& found,
                                       Locate& locate) {
    Added added = Added::all;
    target.plan->runs_of(i, found, [&](const Run& run) {
        if (run.kind == Run::Kind::copied) {
            const std::uint64_t at = locate(i, run.from, run.count * target.row_from_bytes);
            if (at == 0) added = Added::not_located;
            locate.add(run.count * target.row_from_bytes);
            cut(at, target.row_from_bytes, run.first, run.count, target.rows_copied, target.rows);
        } else if (run.kind == Run::Kind::value) {
            const auto value = value_number(target, run.value);
            if (!value) added = Added::out_of_range;
            cut(device::tile_value | value.value_or(0), 0, run.first, run.count, target.rows_filled,
                target.rows);
        } else {
            cut(device::tile_counted | static_cast<std::uint64_t>(run.value), 1, run.first,
                run.count, target.rows_filled, target.rows);
        }
    });
    return added;
}

}  // namespace rollring::gathering
