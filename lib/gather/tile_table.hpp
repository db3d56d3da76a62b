#pragma once
// From runs of rows to the table of a GPU.

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "column_plan.hpp"
#include "gather_device.hpp"

namespace rollring::gathering {

// The GPU's conversion between these types; empty: it has none.
std::optional<device::GatherKind> kind_of(DType from, DType to);

// Some nanoseconds per sequence, so it makes no Result on the way.
class TileWriter {
  public:
    explicit TileWriter(device::TileTable& table) : table_(&table) {}

    // The targets of the next tables, at most gather_targets_max, all of one placement. A part
    // reads at most `part_bytes`. The plans must outlive this object. Errors: unsupported,
    // invalid_argument (a target is too large for a table).
    Result<void> begin(std::span<const ColumnPlan> plans, std::uint64_t part_bytes);
    // Starts a table with these targets and nothing else.
    void clear();

    struct Outcome {
        enum class What { added, not_found, out_of_range, not_located };
        What what = What::added;
        std::size_t plan = 0;  // the failed plan, at this sequence
        std::size_t sequence = 0;
    };
    // Adds the layout's sequences [begin, end); with alike targets the table must have room for
    // them. `locate.lies(i, from)` is the device address of bytes of sequence i, 0 if there is
    // none; `locate(i, from, bytes)` makes one, 0: it failed. `locate.add(bytes)` counts them.
    template <class Locate>
    Outcome add(std::size_t begin, std::size_t end, Locate& locate);

  private:
    // The most rows of a part, and of a tile or a sequence. All of these have equally many parts in
    // a table, so a longer one is divided: none has more than four times the average number.
    struct RowLimits {
        std::uint32_t of_part;
        std::uint32_t of_all;
    };
    struct Known {
        double value;
        std::uint64_t number;
    };
    struct Target {
        const ColumnPlan* plan;
        Finder find;
        std::size_t number;  // of its plan
        std::uint32_t row_from_bytes;
        std::uint32_t rows;  // the upper part of GatherTile::rows
        RowLimits copied;
        RowLimits filled;
        std::vector<Known> known;  // its last few values
    };
    Result<void> add_target(const ColumnPlan& plan, std::size_t number, std::uint64_t part_bytes);
    static RowLimits limits_of(const ColumnPlan& plan, std::uint64_t of_part);
    void limit_alike();
    // The bits of the target's padding, if most sequences can share one entry for it and other
    // targets.
    static std::optional<std::uint64_t> alike_pad(const ColumnPlan& plan);
    // Adds the sequences up to the first that needs tiles of its own.
    template <class Locate>
    std::size_t add_alike(std::size_t begin, std::size_t end, Locate& locate);
    template <class Locate>
    Outcome add_runs(Target& target, std::size_t i, Locate& locate);
    // Memory for this many more tiles.
    device::GatherTile* room_for(std::size_t tiles) {
        if (table_->tiles.size() - table_->tile_count < tiles) [[unlikely]]
            table_->tiles.resize(2 * (table_->tile_count + tiles));
        return table_->tiles.data() + table_->tile_count;
    }
    // `from`: of the run's first row, with those after it `step` apart.
    void cut(std::uint64_t from, std::uint64_t step, const Run& run, RowLimits limits,
             std::uint32_t target_rows);
    static std::uint32_t parts_of(std::uint64_t rows, RowLimits limits) {
        return static_cast<std::uint32_t>((rows + limits.of_part - 1) / limits.of_part);
    }
    // The number of a value in the table; empty: it is out of range.
    std::optional<std::uint64_t> value_number(Target& target, double value);

    device::TileTable* table_;
    std::vector<Target> targets_;  // the alike ones first
    // Of the alike ones together, and of the one with the widest rows:
    RowLimits copied_{};
    RowLimits filled_{};
    std::uint64_t row_from_bytes_ = 0;
    std::uint64_t row_from_bytes_most_ = 0;  // of one of them
};

inline void TileWriter::cut(std::uint64_t from, std::uint64_t step, const Run& run,
                            RowLimits limits, std::uint32_t target_rows) {
    const std::uint32_t most = limits.of_all;
    device::GatherTile* tile = room_for(run.count / most + 1);
    auto at = static_cast<std::uint32_t>(run.first);
    auto left = static_cast<std::uint32_t>(run.count);
    for (; left > most; left -= most) {
        *tile++ = {from, at, target_rows | most};
        from += most * step;
        at += most;
    }
    *tile++ = {from, at, target_rows | left};
    table_->tile_count = static_cast<std::size_t>(tile - table_->tiles.data());
    table_->tile_parts =
        std::max(table_->tile_parts, parts_of(std::min<std::uint64_t>(run.count, most), limits));
}

template <class Locate>
TileWriter::Outcome TileWriter::add(std::size_t begin, std::size_t end, Locate& locate) {
    const std::span<Target> targets(targets_);
    const auto add_each = [&](std::span<Target> some, std::size_t i) {
        Outcome done;
        for (Target& target : some) {
            if (target.plan->row_bytes() == 0) continue;
            done = add_runs(target, i, locate);
            if (done.what != Outcome::What::added) break;
        }
        return done;
    };
    const std::size_t alike = table_->alike;
    for (std::size_t i = begin; alike != 0 && i < end; i++) {
        i = add_alike(i, end, locate);
        if (i == end) break;
        const Outcome done = add_each(targets.first(alike), i);
        if (done.what != Outcome::What::added) return done;
    }
    for (std::size_t i = begin; alike != targets.size() && i < end; i++) {
        const Outcome done = add_each(targets.subspan(alike), i);
        if (done.what != Outcome::What::added) return done;
    }
    return {};
}

template <class Locate>
std::size_t TileWriter::add_alike(std::size_t begin, std::size_t end, Locate& locate) {
    device::TileTable& table = *table_;
    const std::size_t others = table.alike - 1;
    // Copies for a loop of some nanoseconds per sequence: none of its stores can change them.
    device::GatherSequence* to = table.sequences() + table.sequence_count;
    std::int32_t* aheads = table.aheads() + table.sequence_count * others;
    const Target* targets = targets_.data();
    const Placed* placed = targets->plan->placement().sequences.data();
    const std::uint64_t length = table.length;
    const std::uint64_t copied = copied_.of_all;
    const std::uint64_t filled = filled_.of_all;
    std::uint64_t rows = 0;
    std::uint64_t most = 0;
    std::uint64_t most_padding = 0;
    std::size_t i = begin;
    for (; i < end; i++) {
        const Placed& one = placed[i];
        std::int64_t from = 0;
        const auto lies = [&](const Target& target) {
            Found its;
            const bool found = target.find(i, its);
            from = reinterpret_cast<std::int64_t>(its.data) +
                   std::int64_t{one.begin} * target.row_from_bytes;
            return found && one.begin + one.tokens <= its.rows;
        };
        bool plain = lies(targets[0]);
        const std::int64_t first = from;
        for (std::size_t other = 0; other < others; other++) {
            plain &= lies(targets[other + 1]);
            const auto ahead = static_cast<std::int32_t>(from - first);
            plain &= first + ahead == from;
            aheads[other] = ahead;
        }
        const std::uint64_t at = locate.lies(i, static_cast<std::uint64_t>(first));
        const std::uint64_t padding = length == 0 ? 0 : length - one.tokens;
        if (!plain || at == 0 || one.tokens > copied || padding > filled) [[unlikely]]
            break;
        *to++ = {at, static_cast<std::uint32_t>(one.first_row), one.tokens};
        aheads += others;
        rows += one.tokens;
        most = std::max<std::uint64_t>(most, one.tokens);
        most_padding = std::max(most_padding, padding);
    }
    table.sequence_count = static_cast<std::size_t>(to - table.sequences());
    table.parts = std::max({table.parts, parts_of(most, copied_), parts_of(most_padding, filled_)});
    table.most_bytes = std::max(
        table.most_bytes, std::min<std::uint64_t>(most, copied_.of_part) * row_from_bytes_most_);
    locate.add(rows * row_from_bytes_);
    return i;
}

template <class Locate>
TileWriter::Outcome TileWriter::add_runs(Target& target, std::size_t i, Locate& locate) {
    Outcome added{.plan = target.number, .sequence = i};
    Found found;
    if (!target.find(i, found)) {
        added.what = Outcome::What::not_found;
        return added;
    }
    target.plan->runs_of(i, found, [&](const Run& run) {
        if (run.kind == Run::Kind::copied) {
            const std::uint64_t at = locate(i, run.from, run.count * target.row_from_bytes);
            if (at == 0) added.what = Outcome::What::not_located;
            locate.add(run.count * target.row_from_bytes);
            table_->most_bytes = std::max(
                table_->most_bytes,
                std::min<std::uint64_t>(run.count, target.copied.of_part) * target.row_from_bytes);
            cut(at, target.row_from_bytes, run, target.copied, target.rows);
        } else if (run.kind == Run::Kind::value) {
            const auto value = value_number(target, run.value);
            if (!value) added.what = Outcome::What::out_of_range;
            cut(device::tile_value | value.value_or(0), 0, run, target.filled, target.rows);
        } else {
            cut(device::tile_counted | static_cast<std::uint64_t>(run.value), 1, run, target.filled,
                target.rows);
        }
    });
    return added;
}

}  // namespace rollring::gathering
