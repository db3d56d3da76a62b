#pragma once
// The tables of a comparison, as the host builds them: jobs, layouts and tiles.

#include <array>
#include <cstdint>
#include <vector>

#include "backend.hpp"
#include "delta_args.hpp"
#include "kernel_args.hpp"

namespace rollring::cuda {

// Tiles of one kind in the tables.
struct Run {
    std::uint64_t kind;
    std::uint64_t first;
    std::uint64_t tiles;
};

// The same tiles, in runs of at most `tiles_most`.
std::vector<Run> cut(const std::vector<Run>& runs, std::uint64_t tiles_most);

// The tables of all parts. Tiles of one kind lie together, in the order of the parts.
struct DeltaTables {
    std::vector<DeltaJob> jobs;
    std::vector<Layout> layouts;
    std::vector<Tile> tiles;
    std::vector<std::uint64_t> elements;                       // of each part
    std::vector<std::uint64_t> bytes;                          // likewise
    std::vector<std::array<std::uint64_t, delta_kinds>> ends;  // in `tiles`, of each part
    std::uint64_t list_bytes_most = 0;

    explicit DeltaTables(const std::vector<std::vector<device::CopyJob>>& parts);

  private:
    std::uint32_t add_job(const device::CopyJob& job);
};

}  // namespace rollring::cuda
