#pragma once
// The tables of a plan as the host builds them, before they go to the device.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend.hpp"
#include "kernel_args.hpp"

namespace rollring::cuda {

inline constexpr std::uint64_t elements_max = std::uint64_t{1} << 40;  // of a job
inline constexpr std::uint64_t tile_bytes_min = 2048;  // a job's tiles are counted in 32 bits
static_assert(elements_max * 8 / tile_bytes_min <= std::uint64_t{1} << 32);

// The kernels that a job needs; a plan needs those of its most demanding job.
enum class Features : std::uint8_t { plain, casts, anything };

// The host's data on a job, for pack_one.
struct HostJob {
    std::uint64_t first_tile;
    std::uint64_t first_byte;  // of the piece from the tensor's address; strided jobs: 0
    Features features;
};

struct Tables {
    std::vector<DeviceJob> jobs;
    std::vector<HostJob> host_jobs;
    std::vector<Layout> layouts;
    std::vector<Tile> tiles;
    std::vector<Tile> view_tiles;  // of jobs that have a view_units or view_rows
    std::uint64_t bytes = 0;       // of the jobs that `tiles` are of
    Features features = Features::plain;
    bool casts = false;
    bool views = false;                          // jobs that can only be unpacked
    std::optional<std::size_t> without_address;  // a job that only pack_one can run

    void add(const device::CopyJob& job, std::uint64_t tile_bytes);
};

// Empty if the job can be run.
std::string fault_of(const device::CopyJob& job);

}  // namespace rollring::cuda
