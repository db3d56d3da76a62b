
// A block a tile: its threads compare vectors, and gather what differs in shared memory.
extern "C" __global__ void __launch_bounds__(block_threads)
    rollring_delta_compare(const __grid_constant__ DeltaArgs args) {
    __shared__ DeltaShared shared;
    for (u64 at = blockIdx.x; at < args.tables.tile_count; at += gridDim.x) {
        const DeltaTile tile = delta_tile(args.tables, args.tables.tiles[at]);
        with_unit(tile.view.shift, [&](auto unit) {
            compare_tile<decltype(unit)>(args, tile, at, shared);
        });
    }
}

// A warp a tile.
extern "C" __global__ void __launch_bounds__(block_threads)
    rollring_delta_exchange(const __grid_constant__ DeltaArgs args) {
    const u32 lane = threadIdx.x % warp_lanes;
    const u64 warps = u64{gridDim.x} * (block_threads / warp_lanes);
    u64 at = u64{blockIdx.x} * (block_threads / warp_lanes) + threadIdx.x / warp_lanes;
    for (; at < args.tables.tile_count; at += warps) {
        const DeltaHead head = args.heads[at];
        if (head.count == 0) continue;
        const DeltaTile tile = delta_tile(args.tables, args.tables.tiles[at]);
        with_unit(tile.view.shift, [&](auto unit) {
            exchange_tile<decltype(unit)>(tile, head, lane);
        });
    }
}
