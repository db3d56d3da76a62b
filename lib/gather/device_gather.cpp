#include "device_gather.hpp"

#include <cstring>
#include <utility>

#include "tile_table.hpp"

namespace rollring::gathering {
namespace {

constexpr std::uint64_t to_stage = 1;                           // no shift: lanes begin with a page
constexpr std::uint64_t staged_max = std::uint64_t{256} << 20;  // before a table is run

std::uint64_t bytes_read(const std::vector<ColumnPlan>& plans) {
    std::uint64_t bytes = 0;
    for (const ColumnPlan& plan : plans) {
        if (!plan.is_filled()) {
            bytes += plan.rows() * plan.row_elements() * plan.from_type().bytes();
        }
    }
    return bytes;
}

}  // namespace

void DeviceGather::find_shifts(const Sequences& batch, const std::vector<ColumnPlan>& plans,
                               std::size_t sequences) {
    pins_.look(batch.lease().lanes());
    shifts_.assign(sequences, 0);
    for (std::size_t i = 0; i < sequences; i++) {
        const std::byte* at = nullptr;
        for (const ColumnPlan& plan : plans) {
            if (at == nullptr) at = plan.record_of(i);
        }
        if (at == nullptr) continue;
        const auto shift = pins_.shift_of(at);
        shifts_[i] = shift.value_or(to_stage);
        if (!shift) why_staged_ = pins_.why_not(at);
    }
}

Result<void> DeviceGather::fill_table(const std::vector<ColumnPlan>& plans,
                                      const Placement& placement, Stream stream) {
    table_.clear();
    TileWriter writer(table_, device_->tile_bytes(bytes_read(plans)));
    std::uint64_t staged = 0;  // since a table was run last
    for (const ColumnPlan& plan : plans) {
        if (auto begun = writer.begin(plan); !begun) return begun;
        for (std::size_t i = 0; i < placement.sequences.size(); i++) {
            const std::uint64_t shift = shifts_[i];
            const auto locate = [&](const std::byte* from,
                                    std::uint64_t bytes) -> Result<std::uint64_t> {
                const auto address = reinterpret_cast<std::uint64_t>(from);
                if (shift != to_stage) {
                    read_bytes_ += bytes;
                    return address + shift;
                }
                const auto staging = device_->stage(bytes);
                if (!staging) return std::unexpected(staging.error());
                std::memcpy(staging->data, from, bytes);
                staged += bytes;
                staged_bytes_ += bytes;
                return staging->address;
            };
            if (auto added = writer.add(plan, i, locate); !added) return added;
            if (staged < staged_max) continue;
            if (auto run = device_->run(table_, stream); !run) return run;
            staged = 0;
            table_.clear();
            if (auto begun = writer.begin(plan); !begun) return begun;
        }
    }
    return device_->run(table_, stream);
}

Result<void> DeviceGather::gather(const Sequences& batch, const Schema& schema,
                                  std::span<const GatherColumn> columns, const Layout& layout,
                                  Stream stream) {
    const auto placement = Placement::of(batch, layout);
    if (!placement) return std::unexpected(placement.error());
    const auto plans = plan_columns(batch, schema, columns, layout, *placement);
    if (!plans) return std::unexpected(plans.error());
    find_shifts(batch, *plans, placement->sequences.size());
    return fill_table(*plans, *placement, stream);
}

Result<void> DeviceGather::prepare(const Sequences& batch) {
    if (auto leased = check_leased(batch); !leased) return leased;
    pins_.look(batch.lease().lanes());
    return pins_.register_used();
}

GatherStat DeviceGather::stat() const {
    return {pins_.registered_bytes(), read_bytes_, staged_bytes_, why_staged_};
}

}  // namespace rollring::gathering
