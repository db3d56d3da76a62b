#include "store_rings.hpp"

#include <fmt/core.h>

#include <utility>

#include "human.hpp"
#include "rollring/ring.hpp"

namespace rollring {
namespace {

constexpr std::uint32_t lanes_most = 4095;   // a lane's number plus 1 must fit 12 bits
constexpr std::uint32_t clears_lanes = 256;  // for processes that have cleared values recently
constexpr std::uint64_t clears_lane_bytes = std::uint64_t{256} << 10;

Result<void> make(std::string_view name, const RingOptions& options) {
    auto made = create_ring(name, options);
    if (!made && made.error().code != Errc::already_exists) return made;
    return {};
}

Result<void> make_clears(std::string_view name) {
    return make(StoreRings::clears_name(name), {.lanes = clears_lanes,
                                                .lane_bytes = clears_lane_bytes,
                                                .journal_records = 1,
                                                .spill_bytes = 0,
                                                .requests = 0,
                                                .purpose = Purpose::values});
}

Result<void> make_both(std::string_view name, const StoreOptions& options) {
    if (options.lanes < 2 || options.lanes > lanes_most) {
        return refused(Errc::invalid_argument,
                       fmt::format("lanes is {}, must be 2 to {}", options.lanes, lanes_most));
    }
    if (options.capacity_bytes < options.lanes) {
        return refused(Errc::invalid_argument,
                       fmt::format("capacity is {}, too little for {} lanes",
                                   human_bytes(options.capacity_bytes), options.lanes));
    }
    auto schema = Schema::standard_with(
        {{.name = "value", .dtype = dtype_u8, .per = Per::record, .accepts = Accepts::any}});
    if (!schema) return std::unexpected(schema.error());
    // The ring of clears first: a process that finds the ring of values can then rely on both.
    if (auto made = make_clears(name); !made) return made;
    RingOptions ring{.lanes = options.lanes,
                     .lane_bytes = options.capacity_bytes / options.lanes,
                     .journal_records = 1,
                     .spill_bytes = 0,
                     .requests = 0};
    // Values stay in any order: a lane that turned back early would have dead memory behind it.
    ring.soft_bytes = lane_bytes_max;
    ring.schema = std::move(*schema);
    ring.purpose = Purpose::values;
    return make(name, ring);
}

}  // namespace

std::string StoreRings::clears_name(std::string_view name) {
    return fmt::format("{}.clears", name);
}

Result<StoreRings> StoreRings::open(std::string_view name, const StoreOptions& options,
                                    Deadline deadline) {
    if (options.make) {
        // A ring that is not a store gets no second ring beside it.
        const auto there = RingMap::attach_for(Purpose::values, name, Deadline::now());
        if (!there && there.error().code == Errc::invalid_argument) {
            return std::unexpected(there.error());
        }
        if (auto made = make_both(name, options); !made) return std::unexpected(made.error());
    }
    auto values = RingMap::attach_for(Purpose::values, name, deadline);
    if (!values) return std::unexpected(values.error());
    const auto columns = values->schema().columns();
    if (columns.size() != value_column + 1 || columns[value_column].name != "value") {
        return refused(
            Errc::invalid_argument,
            fmt::format("ring {} is not a store: its schema differs", values->segment().ring()));
    }
    // The ring of clears of an unused store is empty, and may have been removed as a leftover.
    if (auto made = make_clears(name); !made) return std::unexpected(made.error());
    auto clears = RingMap::attach_for(Purpose::values, clears_name(name), deadline);
    if (!clears) return std::unexpected(clears.error());
    return StoreRings{std::move(*values), std::move(*clears)};
}

}  // namespace rollring
