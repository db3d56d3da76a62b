#pragma once
// A GPU that gathers, as the layout engine sees it: memory of others that it may read, memory to
// stage in, and tables that it works through.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gather_tiles.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring::device {

struct TileTable {
    std::vector<GatherTile> tiles;  // as many as there is room for
    std::size_t tile_count = 0;
    std::vector<GatherTarget> targets;  // gather_targets_max at most
    std::vector<std::uint64_t> values;
};

// Memory of the host that the device reads.
struct Staging {
    std::byte* data;
    std::uint64_t address;  // the device's
};

class GatherDevice {
  public:
    virtual ~GatherDevice() = default;
    // So many bytes for a warp at a time, of so many that a table reads in all.
    [[nodiscard]] virtual std::uint64_t tile_bytes(std::uint64_t all_bytes) const = 0;

    // Registers memory that is mapped read-only; returns the device's address of it. These two may
    // be called by any thread. Errors: unsupported, host_memory, device_error.
    virtual Result<std::uint64_t> pin(const std::byte* data, std::uint64_t bytes) = 0;
    virtual void unpin(const std::byte* data) = 0;

    // Free again when the next table that is run has been worked through.
    virtual Result<Staging> stage(std::uint64_t bytes) = 0;
    virtual Result<void> run(const TileTable& table, Stream stream) = 0;

    // See Gatherer.
    virtual Result<std::uint64_t> mark(Stream stream) = 0;
    virtual Result<bool> reached(std::uint64_t mark) = 0;
    virtual Result<void> wait(std::uint64_t mark, Deadline deadline) = 0;
};

}  // namespace rollring::device
