#pragma once
// A GPU that gathers, as the layout engine sees it: memory of others that it may read, memory to
// stage in, and tables that it works through.

#include <algorithm>
#include <bit>
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

// What GatherArgs are made of. Of three vectors only the first so many count.
struct TileTable {
    std::vector<GatherSequence> sequences;
    std::vector<std::int32_t> aheads;
    std::size_t sequence_count = 0;
    std::vector<GatherTile> tiles;
    std::size_t tile_count = 0;
    std::vector<GatherTarget> targets;  // gather_targets_max at most
    std::size_t alike = 0;              // of the targets
    std::uint32_t length = 0;
    bool left = false;
    std::vector<std::uint64_t> values;
    std::uint64_t most_bytes = 0;  // that a piece of work reads

    [[nodiscard]] std::size_t entries() const { return sequence_count + tile_count; }
    [[nodiscard]] std::size_t ahead_count() const {
        return alike == 0 ? 0 : sequence_count * (alike - 1);
    }
    // As long as there are runs for all warps, and none takes much longer than others.
    [[nodiscard]] std::uint32_t run() const {
        constexpr std::uint64_t runs = 2048;
        constexpr std::uint64_t run_bytes = std::uint64_t{32} << 10;
        const std::uint64_t work = sequence_count * alike + tile_count;
        const std::uint64_t fair =
            std::min(work / runs, run_bytes / std::max<std::uint64_t>(1, most_bytes));
        return static_cast<std::uint32_t>(
            std::clamp<std::uint64_t>(std::bit_floor(fair), 1, run_max));
    }
    // All of the arguments but where the arrays lie.
    [[nodiscard]] GatherArgs args() const {
        GatherArgs made{};
        made.of_sequences = static_cast<std::uint32_t>(sequence_count * alike);
        made.work = made.of_sequences + static_cast<std::uint32_t>(tile_count);
        made.run = run();
        made.tile_count = (made.work + made.run - 1) / made.run;
        made.alike = static_cast<std::uint32_t>(alike);
        made.length = length;
        made.left = left ? 1 : 0;
        std::ranges::copy(targets, made.targets);
        return made;
    }
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
    // Whether it has worked through all tables.
    [[nodiscard]] virtual bool idle() = 0;

    // See Gatherer.
    virtual Result<std::uint64_t> mark(Stream stream) = 0;
    virtual Result<bool> reached(std::uint64_t mark) = 0;
    virtual Result<void> wait(std::uint64_t mark, Deadline deadline) = 0;
};

}  // namespace rollring::device
