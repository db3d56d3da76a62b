#pragma once
// A GPU that gathers, as the layout engine sees it: memory of others that it may read, staging
// memory, and tables that it works through.

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

// Host memory that the device reads.
struct Staging {
    std::byte* data;
    std::uint64_t address;  // the device's
};

// The inputs of GatherArgs. Only the first tile_count of the tiles count.
struct TileTable {
    // Sequences are the most numerous, so they are written where the device reads them: to staged
    // memory, with room for `room` of them, and behind them for the `aheads` of each.
    Staging memory{};
    std::size_t room = 0;
    std::size_t sequence_count = 0;
    std::vector<GatherTile> tiles;
    std::size_t tile_count = 0;
    std::vector<GatherTarget> targets;  // gather_targets_max at most
    std::size_t alike = 0;              // of the targets
    std::uint32_t length = 0;
    bool left = false;
    std::vector<std::uint64_t> values;
    std::uint32_t parts = 1;  // see GatherArgs
    std::uint32_t tile_parts = 1;
    std::uint64_t most_bytes = 0;  // the most that a part reads

    [[nodiscard]] std::size_t entries() const { return sequence_count + tile_count; }
    [[nodiscard]] std::uint64_t of_sequences() const { return sequence_count * alike * parts; }
    [[nodiscard]] std::uint64_t work() const { return of_sequences() + tile_count * tile_parts; }
    // The bytes of the memory for this many sequences.
    [[nodiscard]] std::uint64_t bytes_for(std::size_t sequences) const {
        return sequences * (sizeof(GatherSequence) +
                            (std::max<std::size_t>(1, alike) - 1) * sizeof(std::int32_t));
    }
    [[nodiscard]] std::uint64_t aheads_at() const { return room * sizeof(GatherSequence); }
    [[nodiscard]] GatherSequence* sequences() const {
        return reinterpret_cast<GatherSequence*>(memory.data);
    }
    [[nodiscard]] std::int32_t* aheads() const {
        return reinterpret_cast<std::int32_t*>(memory.data + aheads_at());
    }
    // As long as possible, while there are runs for all warps, and none takes much longer than
    // others.
    [[nodiscard]] std::uint32_t run() const {
        constexpr std::uint64_t runs = 2048;
        constexpr std::uint64_t run_bytes = std::uint64_t{32} << 10;
        const std::uint64_t fair =
            std::min(work() / runs, run_bytes / std::max<std::uint64_t>(1, most_bytes));
        return static_cast<std::uint32_t>(
            std::clamp<std::uint64_t>(std::bit_floor(fair), 1, run_max));
    }
    // All arguments except the addresses of tiles and values.
    [[nodiscard]] GatherArgs args() const {
        GatherArgs made{};
        made.sequences = std::bit_cast<const GatherSequence*>(memory.address);
        made.aheads = std::bit_cast<const std::int32_t*>(memory.address + aheads_at());
        made.of_sequences = static_cast<std::uint32_t>(of_sequences());
        made.work = static_cast<std::uint32_t>(work());
        made.run = run();
        made.tile_count = (made.work + made.run - 1) / made.run;
        made.alike = static_cast<std::uint32_t>(alike);
        made.parts = parts;
        made.tile_parts = tile_parts;
        made.length = length;
        made.left = left ? 1 : 0;
        std::ranges::copy(targets, made.targets);
        return made;
    }
};

class GatherDevice {
  public:
    virtual ~GatherDevice() = default;
    // The bytes for one warp at a time, if a table reads `all_bytes`.
    [[nodiscard]] virtual std::uint64_t part_bytes(std::uint64_t all_bytes) const = 0;

    // Registers memory that is mapped read-only; returns its device address. Any thread may call
    // these two. Errors: unsupported, host_memory, device_error.
    virtual Result<std::uint64_t> pin(const std::byte* data, std::uint64_t bytes) = 0;
    virtual void unpin(const std::byte* data) = 0;

    // Aligned for any table. Free again when the next table to run has been worked through, but not
    // before end().
    virtual Result<Staging> stage(std::uint64_t bytes) = 0;
    virtual Result<void> run(const TileTable& table, Stream stream) = 0;
    // Called after the last table of a gather.
    virtual Result<void> end(Stream stream) = 0;
    // Whether it has worked through the tables of the last gather.
    [[nodiscard]] virtual bool idle() = 0;

    // See Gatherer.
    virtual Result<std::uint64_t> mark(Stream stream) = 0;
    virtual Result<bool> reached(std::uint64_t mark) = 0;
    virtual Result<void> wait(std::uint64_t mark, Deadline deadline) = 0;
};

}  // namespace rollring::device
