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

// Errors: unsupported, invalid_argument (a sequence lacks the column, a value is out of the
// target's range, a target is larger than a table can say).
class TileWriter {
  public:
    TileWriter(device::TileTable& table, std::uint64_t tile_bytes)
        : table_(&table), tile_bytes_(tile_bytes) {}

    // Begins the tiles of a column; again, where a table was run in the middle of one.
    Result<void> begin(const ColumnPlan& plan);
    // Those of its layout's sequence i. `locate(from, bytes)` is where the device reads them.
    template <class Locate>
    Result<void> add(const ColumnPlan& plan, std::size_t i, Locate locate);

  private:
    void cut(std::uint64_t from, std::uint64_t step, std::uint64_t first, std::uint64_t count,
             std::uint64_t rows_a_tile);
    // The number of a value in the table; nothing: it is out of range.
    std::optional<std::uint64_t> value_number(DType type, double value);

    device::TileTable* table_;
    std::uint64_t tile_bytes_;
    struct Known {
        double value;
        std::uint64_t number;
    };
    std::vector<Known> known_;  // the last few values of this column
};

inline void TileWriter::cut(std::uint64_t from, std::uint64_t step, std::uint64_t first,
                            std::uint64_t count, std::uint64_t rows_a_tile) {
    for (std::uint64_t done = 0; done < count; done += rows_a_tile) {
        table_->tiles.push_back({from + done * step, static_cast<std::uint32_t>(first + done),
                                 static_cast<std::uint32_t>(std::min(rows_a_tile, count - done))});
    }
}

template <class Locate>
Result<void> TileWriter::add(const ColumnPlan& plan, std::size_t i, Locate locate) {
    if (plan.lacks(i)) return plan.lacking(i);
    const device::GatherTarget& target = table_->targets.back();
    const std::uint64_t rows_copied =
        std::max<std::uint64_t>(1, tile_bytes_ / std::max(1U, target.row_from_bytes));
    constexpr std::uint64_t fill_bytes = std::uint64_t{64} << 10;
    const std::uint64_t rows_filled =
        std::max<std::uint64_t>(1, fill_bytes / std::max(1U, target.row_to_bytes));
    Result<void> done;
    plan.runs_of(i, [&](const Run& run) {
        if (!done || target.row_to_bytes == 0) return;
        switch (run.kind) {
            case Run::Kind::copied: {
                const auto at = locate(run.from, run.count * target.row_from_bytes);
                if (!at) {
                    done = std::unexpected(at.error());
                    return;
                }
                cut(*at, target.row_from_bytes, run.first, run.count, rows_copied);
                return;
            }
            case Run::Kind::value: {
                const auto number = value_number(plan.to_type(), run.value);
                if (!number) {
                    done = plan.out_of_range(i);
                    return;
                }
                cut(device::tile_value | *number, 0, run.first, run.count, rows_filled);
                return;
            }
            case Run::Kind::counted:
                cut(device::tile_counted | static_cast<std::uint64_t>(run.value), 1, run.first,
                    run.count, rows_filled);
                return;
        }
    });
    return done;
}

}  // namespace rollring::gathering
