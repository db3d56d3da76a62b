#include "tile_table.hpp"

#include <fmt/core.h>

#include <bit>
#include <limits>

#include "rollring/schema.hpp"

namespace rollring::gathering {
namespace {

constexpr std::uint64_t rows_max = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t row_bytes_max = std::uint64_t{1} << 30;

}  // namespace

std::optional<device::GatherKind> kind_of(DType from, DType to) {
    using enum device::GatherKind;
    if (from == to) return from.bytes() == 1 ? copy1 : from.bytes() == 2 ? copy2 : copy4;
    struct Conversion {
        DType from;
        DType to;
        device::GatherKind kind;
    };
    constexpr Conversion all[] = {{dtype_u8, dtype_bool, u8_bool},  {dtype_u8, dtype_i32, u8_i32},
                                  {dtype_u8, dtype_i64, u8_i64},    {dtype_u8, dtype_f32, u8_f32},
                                  {dtype_u8, dtype_bf16, u8_bf16},  {dtype_u16, dtype_i32, u16_i32},
                                  {dtype_u16, dtype_i64, u16_i64},  {dtype_i32, dtype_i64, i32_i64},
                                  {dtype_f32, dtype_bf16, f32_bf16}};
    for (const Conversion& one : all) {
        if (one.from == from && one.to == to) return one.kind;
    }
    return std::nullopt;
}

Result<void> TileWriter::begin(std::span<const ColumnPlan> plans, std::uint64_t part_bytes) {
    targets_.clear();
    table_->targets.clear();
    for (const bool alike : {true, false}) {
        for (std::size_t i = 0; i < plans.size(); i++) {
            if (alike_pad(plans[i]).has_value() != alike) continue;
            if (auto added = add_target(plans[i], i, part_bytes); !added) return added;
        }
        if (alike) table_->alike = targets_.size();
    }
    limit_alike();
    table_->length = 0;
    if (table_->alike != 0) {
        const Placement& placement = targets_[0].plan->placement();
        table_->length = static_cast<std::uint32_t>(placement.length);  // 0: it is not padded
        table_->left = placement.left;
    }
    clear();
    return {};
}

void TileWriter::limit_alike() {
    const auto by_part = [](const RowLimits& a, const RowLimits& b) {
        return a.of_part < b.of_part;
    };
    copied_ = filled_ = {device::tile_rows_max, device::tile_rows_max};
    row_from_bytes_ = row_from_bytes_most_ = 0;
    for (const Target& target : std::span(targets_).first(table_->alike)) {
        copied_ = std::min(copied_, target.copied, by_part);
        filled_ = std::min(filled_, target.filled, by_part);
        row_from_bytes_ += target.row_from_bytes;
        row_from_bytes_most_ = std::max<std::uint64_t>(row_from_bytes_most_, target.row_from_bytes);
    }
}

TileWriter::RowLimits TileWriter::limits_of(const ColumnPlan& plan, std::uint64_t of_part) {
    constexpr std::uint64_t times = 4;
    const std::uint64_t sequences = plan.placement().sequences.size();
    const std::uint64_t average = plan.rows() / std::max<std::uint64_t>(1, sequences);
    const std::uint64_t parts = std::max<std::uint64_t>(1, times * average / of_part);
    return {static_cast<std::uint32_t>(of_part), static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                                     parts * of_part, device::tile_rows_max))};
}

std::optional<std::uint64_t> TileWriter::alike_pad(const ColumnPlan& plan) {
    const bool fits = plan.rows() <= rows_max && plan.placement().length <= rows_max;
    std::uint64_t pad = 0;
    if (!plan.is_plain() || plan.row_bytes() == 0 || !fits ||
        !fill(plan.to_type(), plan.pad(), reinterpret_cast<std::byte*>(&pad), 1)) {
        return std::nullopt;
    }
    return pad;
}

void TileWriter::clear() {
    table_->room = 0;
    table_->sequence_count = 0;
    table_->tile_count = 0;
    table_->values.clear();
    table_->parts = table_->tile_parts = 1;
    table_->most_bytes = 0;
    for (Target& target : targets_) target.known.clear();
}

Result<void> TileWriter::add_target(const ColumnPlan& plan, std::size_t number,
                                    std::uint64_t part_bytes) {
    std::optional<device::GatherKind> kind = kind_of(plan.from_type(), plan.to_type());
    if (plan.is_filled()) kind = device::GatherKind::copy1;  // nothing is copied
    if (plan.is_counted() && plan.to_type() != dtype_i32 && plan.to_type() != dtype_i64) {
        kind = std::nullopt;
    }
    if (!kind) {
        return refused(
            Errc::unsupported,
            fmt::format("column '{}' is {}, which the GPU gather cannot convert to {}: keep the "
                        "dtype, and convert the result",
                        plan.name(), plan.from_type().to_string(), plan.to_type().to_string()));
    }
    const std::uint64_t row_from = plan.row_elements() * plan.from_type().bytes();
    const std::uint64_t row_to = plan.row_bytes();
    const std::uint64_t rows = plan.rows();
    if (std::max(row_from, row_to) > row_bytes_max || rows > rows_max) {
        return refused(
            Errc::invalid_argument,
            fmt::format("column '{}' has {} rows of {} B: gather fewer sequences at a time",
                        plan.name(), rows, row_to));
    }
    constexpr std::uint64_t fill_bytes = std::uint64_t{64} << 10;
    const auto limits = [&](std::uint64_t bytes, std::uint64_t row) {
        return limits_of(plan, std::clamp<std::uint64_t>(bytes / std::max<std::uint64_t>(1, row), 1,
                                                         device::tile_rows_max));
    };
    const RowLimits copied = limits(part_bytes, row_from);
    const RowLimits filled = limits(fill_bytes, row_to);
    targets_.push_back({&plan,
                        plan.finder(),
                        number,
                        static_cast<std::uint32_t>(row_from),
                        static_cast<std::uint32_t>(targets_.size()) << device::tile_target_shift,
                        copied,
                        filled,
                        {}});
    table_->targets.push_back({std::bit_cast<std::uint64_t>(plan.target().data()),
                               static_cast<std::uint32_t>(row_from),
                               static_cast<std::uint32_t>(row_to), *kind, plan.to_type().bytes(),
                               alike_pad(plan).value_or(0), copied.of_part, filled.of_part});
    return {};
}

std::optional<std::uint64_t> TileWriter::value_number(Target& target, double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (const Known& known : target.known) {
        if (std::bit_cast<std::uint64_t>(known.value) == bits) return known.number;
    }
    std::uint64_t held = 0;
    if (!fill(target.plan->to_type(), value, reinterpret_cast<std::byte*>(&held), 1)) {
        return std::nullopt;
    }
    constexpr std::size_t few = 4;
    if (target.known.size() == few) {
        target.known.erase(target.known.begin() + 1);  // the first is usually that of the padding
    }
    target.known.push_back({value, table_->values.size()});
    table_->values.push_back(held);
    return target.known.back().number;
}

}  // namespace rollring::gathering
