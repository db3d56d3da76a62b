#include "delta_tables.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "view_layout.hpp"

namespace rollring::cuda {

using device::CopyJob;

namespace {

// Of the entries of a tile: all values, or places and values of a fourth of them.
constexpr std::uint64_t entries_most(std::uint64_t tile_bytes) {
    return (tile_bytes + 15) / 16 * 16 + 16;
}

}  // namespace

std::vector<Run> cut(const std::vector<Run>& runs, std::uint64_t tiles_most) {
    std::vector<Run> pieces;
    for (Run left : runs) {
        while (left.tiles > 0) {
            const std::uint64_t tiles = std::min(left.tiles, tiles_most);
            pieces.push_back({left.kind, left.first, tiles});
            left.first += tiles;
            left.tiles -= tiles;
        }
    }
    return pieces;
}

// The kind of its tiles.
std::uint32_t DeltaTables::add_job(const CopyJob& job) {
    DeltaJob row{};
    row.tensor = reinterpret_cast<std::uint64_t>(job.tensor);
    row.slot_offset = job.slot_offset;
    row.bytes = job.elements * job.element_bytes;
    row.element_shift = static_cast<std::uint32_t>(std::countr_zero(job.element_bytes));
    std::uint32_t kind = row.element_shift;
    if (job.shape.empty()) {
        row.unit_shift =
            static_cast<std::uint32_t>(std::countr_zero(16 | row.slot_offset | row.tensor));
    } else {
        DeviceJob view{};
        layouts.push_back(lay_out_view(job, view));
        row.layout = static_cast<std::uint32_t>(layouts.size());
        row.unit_shift = view.element_shift;
        kind += delta_strided;
    }
    jobs.push_back(row);
    return kind;
}

DeltaTables::DeltaTables(const std::vector<std::vector<CopyJob>>& parts)
    : elements(parts.size()), bytes(parts.size()), ends(parts.size()) {
    std::array<std::vector<std::pair<std::size_t, std::uint32_t>>, delta_kinds> of_kind;
    for (std::size_t part = 0; part < parts.size(); part++) {
        for (const CopyJob& job : parts[part]) {
            elements[part] += job.elements;
            bytes[part] += job.elements * job.element_bytes;
            const std::uint32_t kind = add_job(job);
            of_kind.at(kind).emplace_back(part, static_cast<std::uint32_t>(jobs.size() - 1));
        }
    }
    for (std::uint32_t kind = 0; kind < delta_kinds; kind++) {
        auto next = of_kind.at(kind).begin();
        for (std::size_t part = 0; part < parts.size(); part++) {
            for (; next != of_kind.at(kind).end() && next->first == part; next++) {
                const std::uint32_t job = next->second;
                for (std::uint64_t at = 0; at * delta_tile_bytes < jobs[job].bytes; at++) {
                    tiles.push_back({job, static_cast<std::uint32_t>(at)});
                    const std::uint64_t left = jobs[job].bytes - at * delta_tile_bytes;
                    list_bytes_most +=
                        entries_most(std::min<std::uint64_t>(left, delta_tile_bytes));
                }
            }
            ends[part].at(kind) = tiles.size();
        }
    }
}

}  // namespace rollring::cuda
