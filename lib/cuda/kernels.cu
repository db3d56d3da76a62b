// Packing, unpacking and checksums of many tensors in one launch: blocks take tiles from a table,
// each at a stride of the number of blocks, or one each.
//
// Plain plans (contiguous, no casts), plans with casts and plans with anything have kernels of
// their own, with sums and without: an unused feature costs neither registers nor branches. The
// tiles of views that are not contiguous have a kernel, and a launch, to themselves; there each
// warp takes a tile. Differences have tables and kernels of their own.

#include "copy_run.cuh"
#include "copy_view.hpp"
#include "delta_tiles.cuh"
#include "gather_copy.hpp"

namespace rollring::cuda {
namespace {

enum Features : u32 { plain, casts, anything };

struct Work {
    DeviceJob job;
    u64 begin;     // first element of the tile in its job
    u64 left;      // elements of the job from there
    u32 elements;  // of the tile
    u8* packed;    // the tile in the slot
    u64 word;      // index of its first packed word in the job
};

__device__ __forceinline__ Work work_of(const KernelArgs& args, Tile tile) {
    Work work;
    const uint4* parts = reinterpret_cast<const uint4*>(args.jobs + tile.job);
    uint4* into = reinterpret_cast<uint4*>(&work.job);
#pragma unroll
    for (u32 i = 0; i < sizeof(DeviceJob) / 16; i++) into[i] = __ldg(parts + i);
    const u32 shift = work.job.element_shift;
    work.begin = tile.index * (args.tile_bytes >> shift);
    work.left = work.job.elements - work.begin;
    const u64 most = args.tile_bytes >> shift;
    work.elements = static_cast<u32>(work.left < most ? work.left : most);
    const u32 packed_shift = work.job.cast == cast_none ? shift : 1;
    const u64 offset = work.begin << packed_shift;
    work.packed = reinterpret_cast<u8*>(args.slot + work.job.slot_offset + offset);
    work.word = offset / 4;
    if (args.tensor != 0) work.job.tensor = args.tensor;
    return work;
}

// Called by the whole block.
__device__ __forceinline__ void add_sum(const KernelArgs& args, u32 job, u64 sum) {
    __shared__ u64 of_warps[copy_threads / warp_lanes];
#pragma unroll
    for (u32 step = warp_lanes / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(all_lanes, sum, step);
    }
    if (threadIdx.x % warp_lanes == 0) of_warps[threadIdx.x / warp_lanes] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < copy_threads / warp_lanes; warp++) sum += of_warps[warp];
        atomicAdd(reinterpret_cast<unsigned long long*>(args.sums) + job,
                  static_cast<unsigned long long>(sum));
    }
    __syncthreads();  // the next tile has sums, too
}

// This thread's part of the sum of packed bytes as they lie in the slot.
__device__ __forceinline__ u64 sum_of(const u8* packed, u32 bytes, u64 word) {
    using device::mix_word;
    const uint4* vectors = reinterpret_cast<const uint4*>(packed);
    u64 sum = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < bytes / 16; i += copy_threads) {
        const uint4 value = __ldcg(vectors + i);
        const u64 at = word + u64{i} * 4;
        sum += mix_word(value.x, at) + mix_word(value.y, at + 1) + mix_word(value.z, at + 2) +
               mix_word(value.w, at + 3);
    }
    const u32 tail = bytes / 16 * 16 + threadIdx.x * 4;
    if (tail < bytes) {
        u32 value = 0;
        for (u32 i = 0; i < min(4u, bytes - tail); i++) {
            value |= static_cast<u32>(__ldcg(packed + tail + i)) << (8 * i);
        }
        sum += mix_word(value, word + tail / 4);
    }
    return sum;
}

// The address of an element by its number in row-major order.
__device__ __forceinline__ u8* place(const Layout& layout, u64 tensor, u64 element) {
    u64 address = tensor;
    for (u32 d = static_cast<u32>(layout.dims); d-- > 0;) {
        const u64 extent = layout.shape[d];
        u64 above = 0;
        if (((element | extent) >> 32) == 0) {
            above = static_cast<u32>(element) / static_cast<u32>(extent);
        } else {
            above = element / extent;
        }
        address += static_cast<u64>(static_cast<std::int64_t>(element - above * extent) *
                                    layout.strides[d]);
        element = above;
    }
    return reinterpret_cast<u8*>(address);
}

__device__ __forceinline__ u64 load_element(const u8* from, u32 shift) {
    if ((reinterpret_cast<u64>(from) & ((1u << shift) - 1)) == 0) {
        if (shift == 0) return *from;
        if (shift == 1) return *reinterpret_cast<const u16*>(from);
        if (shift == 2) return *reinterpret_cast<const u32*>(from);
        return *reinterpret_cast<const u64*>(from);
    }
    u64 value = 0;
    for (u32 i = 0; i < 1u << shift; i++) value |= static_cast<u64>(from[i]) << (8 * i);
    return value;
}

__device__ __forceinline__ void store_element(u8* to, u64 value, u32 shift) {
    if ((reinterpret_cast<u64>(to) & ((1u << shift) - 1)) == 0) {
        if (shift == 0) *to = static_cast<u8>(value);
        if (shift == 1) *reinterpret_cast<u16*>(to) = static_cast<u16>(value);
        if (shift == 2) *reinterpret_cast<u32*>(to) = static_cast<u32>(value);
        if (shift == 3) *reinterpret_cast<u64*>(to) = value;
        return;
    }
    for (u32 i = 0; i < 1u << shift; i++) to[i] = static_cast<u8>(value >> (8 * i));
}

// One element per thread: any strides, any cast.
template <bool pack>
__device__ void copy_elements(const Work& work, const Layout& layout) {
    const u32 shift = work.job.element_shift;
    const u64 first = work.job.first_element + work.begin;
    for (u32 i = threadIdx.x; i < work.elements; i += copy_threads) {
        u8* element = place(layout, work.job.tensor, first + i);
        if constexpr (!pack) {
            store_element(element, load_element(work.packed + (u64{i} << shift), shift), shift);
        } else if (work.job.cast == cast_none) {
            store_element(work.packed + (u64{i} << shift), load_element(element, shift), shift);
        } else {
            const u32 value = static_cast<u32>(load_element(element, shift));
            const u32 half = work.job.cast == cast_bf16 ? rounded<cast_bf16>(value, 0)
                                                        : rounded<cast_f16>(value, 0);
            store_element(work.packed + u64{i} * 2, half, 1);
        }
    }
}

// Long contiguous rows: a warp copies one, or the tile's part of it.
template <bool pack>
__device__ void copy_rows(const Work& work, const Layout& layout) {
    constexpr u32 warps = copy_threads / warp_lanes;
    const u32 lane = threadIdx.x % warp_lanes;
    const u32 shift = work.job.element_shift;
    const u64 extent = layout.shape[layout.dims - 1];
    const u64 first = work.job.first_element + work.begin;
    const u64 end = first + work.elements;
    for (u64 row = first / extent + threadIdx.x / warp_lanes; row * extent < end; row += warps) {
        const u64 begin = max(first, row * extent);
        const u32 bytes = static_cast<u32>((min(end, (row + 1) * extent) - begin) << shift);
        u8* in_tensor = place(layout, work.job.tensor, begin);
        u8* packed = work.packed + ((begin - first) << shift);
        u8* to = pack ? packed : in_tensor;
        copy_run<cast_none, false, true, WarpOfBlock>(to, pack ? in_tensor : packed, bytes, bytes,
                                                      0, lane);
    }
}

template <bool pack>
__device__ void copy_strided(const KernelArgs& args, const Work& work) {
    constexpr u64 long_row = 256;  // bytes: half a warp's worth of one load
    const Layout& layout = args.layouts[work.job.layout - 1];
    const u32 shift = work.job.element_shift;
    const u64 inner = layout.dims - 1;
    if (work.job.cast == cast_none && layout.strides[inner] == std::int64_t{1} << shift &&
        layout.shape[inner] << shift >= long_row) {
        copy_rows<pack>(work, layout);
    } else {
        copy_elements<pack>(work, layout);
    }
}

template <u32 cast, bool with_sums>
__device__ __forceinline__ u64 pack_run(const Work& work) {
    const u32 shift = work.job.element_shift;
    const u8* from = reinterpret_cast<const u8*>(work.job.tensor + (work.begin << shift));
    return copy_run<cast, with_sums, false, Block>(work.packed, from, work.elements << shift,
                                                   work.left << shift, work.word, threadIdx.x);
}

template <u32 features, bool with_sums>
__device__ __forceinline__ void pack_tile(const KernelArgs& args, Tile tile) {
    const Work work = work_of(args, tile);
    u64 sum = 0;
    if (features == anything && work.job.layout != 0) {
        copy_strided<true>(args, work);
        if constexpr (with_sums) {
            __syncthreads();  // the other threads' stores can be read now
            const u32 packed_shift = work.job.cast == cast_none ? work.job.element_shift : 1;
            sum = sum_of(work.packed, work.elements << packed_shift, work.word);
        }
    } else if (features == plain || work.job.cast == cast_none) {
        sum = pack_run<cast_none, with_sums>(work);
    } else if (work.job.cast == cast_bf16) {
        sum = pack_run<cast_bf16, with_sums>(work);
    } else {
        sum = pack_run<cast_f16, with_sums>(work);
    }
    if constexpr (with_sums) add_sum(args, tile.job, sum);
}

template <u32 features, class Team>
__device__ __forceinline__ void unpack_tile(const KernelArgs& args, Tile tile) {
    const Work work = work_of(args, tile);
    if (features == anything && work.job.layout != 0) {
        copy_strided<false>(args, work);
        return;
    }
    const u32 shift = work.job.element_shift;
    u8* to = reinterpret_cast<u8*>(work.job.tensor + (work.begin << shift));
    copy_run<cast_none, false, true, Team>(to, work.packed, work.elements << shift,
                                           work.left << shift, 0, threadIdx.x);
}

__device__ __forceinline__ void checksum_tile(const KernelArgs& args, Tile tile) {
    const Work work = work_of(args, tile);
    const u32 packed_shift = work.job.cast == cast_none ? work.job.element_shift : 1;
    add_sum(args, tile.job, sum_of(work.packed, work.elements << packed_shift, work.word));
}

__device__ __forceinline__ void unpack_view_tile(const KernelArgs& args, Tile tile, u32 lane) {
    const DeviceJob& job = args.jobs[tile.job];
    const Layout& layout = args.layouts[job.layout - 1];
    if (job.view == view_units) {
        copy_view_units(view_tile(args, tile), layout, lane);
        return;
    }
    copy_view_rows(view_tile(args, tile), layout, [lane](u64 to, u64 from, u32 bytes) {
        copy_run<cast_none, false, true, Warp>(
            reinterpret_cast<u8*>(to), reinterpret_cast<const u8*>(from), bytes, bytes, 0, lane);
    });
}

__device__ __forceinline__ Tile tile_at(const KernelArgs& args, u64 at) {
    const uint2 tile = __ldg(reinterpret_cast<const uint2*>(args.tiles) + at);
    return {tile.x, tile.y};
}

}  // namespace

#define ROLLRING_KERNEL(name, call)                                        \
    extern "C" __global__ void __launch_bounds__(copy_threads)             \
        name(const __grid_constant__ KernelArgs args) {                    \
        for (u64 at = blockIdx.x; at < args.tile_count; at += gridDim.x) { \
            call(args, tile_at(args, at));                                 \
        }                                                                  \
    }

ROLLRING_KERNEL(rollring_pack_plain, (pack_tile<plain, false>))
ROLLRING_KERNEL(rollring_pack_plain_sums, (pack_tile<plain, true>))
ROLLRING_KERNEL(rollring_pack_casts, (pack_tile<casts, false>))
ROLLRING_KERNEL(rollring_pack_casts_sums, (pack_tile<casts, true>))
ROLLRING_KERNEL(rollring_pack_anything, (pack_tile<anything, false>))
ROLLRING_KERNEL(rollring_pack_anything_sums, (pack_tile<anything, true>))
ROLLRING_KERNEL(rollring_unpack_plain, (unpack_tile<plain, Block>))
ROLLRING_KERNEL(rollring_unpack_over_link, (unpack_tile<plain, BlockOverLink>))
ROLLRING_KERNEL(rollring_unpack_anything, (unpack_tile<anything, Block>))
ROLLRING_KERNEL(rollring_checksum, checksum_tile)

// Warp by warp; the next tile is loaded meanwhile.
extern "C" __global__ void __launch_bounds__(block_threads)
    rollring_unpack_views(const __grid_constant__ KernelArgs args) {
    const u64 warps = u64{gridDim.x} * (block_threads / warp_lanes);
    u64 at = u64{blockIdx.x} * (block_threads / warp_lanes) + threadIdx.x / warp_lanes;
    Tile tile{};
    if (at < args.tile_count) tile = tile_at(args, at);
    while (at < args.tile_count) {
        at += warps;
        Tile next{};
        if (at < args.tile_count) next = tile_at(args, at);
        unpack_view_tile(args, tile, threadIdx.x % warp_lanes);
        tile = next;
    }
}

// A kernel that is launched early has its blocks resident, and reads, while the previous one runs:
// see wait_for_earlier().
__device__ __forceinline__ void begin_next_early() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

ROLLRING_DEVICE void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class Word>
__device__ __forceinline__ Word of_lane(Word word, u32 lane) {
    return __shfl_sync(all_lanes, word, static_cast<int>(lane));
}

// Gathers the columns of a batch from the host's memory: each lane has the table's word on a piece
// of the run, and loads the next run's meanwhile.
extern "C" __global__ void __launch_bounds__(block_threads)
    rollring_gather(const __grid_constant__ device::GatherArgs args) {
    const u32 lane = threadIdx.x % warp_lanes;
    const u32 warps = gridDim.x * (block_threads / warp_lanes);
    const auto load_run = [&](u32 begin) {
        const u32 at = begin + lane;
        return lane < args.run && at < args.work ? load_work(args, at) : GatherWork{};
    };
    u32 begin = (blockIdx.x * (block_threads / warp_lanes) + threadIdx.x / warp_lanes) * args.run;
    GatherWork run = load_run(begin);
    begin_next_early();
    while (begin < args.work) {
        const u32 next_begin = begin + warps * args.run;
        const GatherWork next = load_run(next_begin);
#pragma unroll 1
        for (u32 i = 0; i < args.run && begin + i < args.work; i++) {
            const GatherWork work = {of_lane(run.from, i),   of_lane(run.target, i),
                                     of_lane(run.what, i),   of_lane(run.first, i),
                                     of_lane(run.rows, i),   of_lane(run.padding_first, i),
                                     of_lane(run.padding, i)};
            gather_work(args, work, lane);
        }
        begin = next_begin;
        run = next;
    }
    wait_for_earlier();  // even if nothing was written: later work waits for this kernel only
}

// A block a tile: its threads compare vectors, and collect differences in shared memory.
extern "C" __global__ void __launch_bounds__(block_threads, 6)
    rollring_delta_compare(const __grid_constant__ DeltaArgs args) {
    __shared__ DeltaShared shared;
    with_kind(args.kind, [&](auto element, auto strided) {
        compare_tiles<decltype(element), decltype(strided)::value>(args, shared);
    });
}

// A warp a tile.
extern "C" __global__ void __launch_bounds__(block_threads)
    rollring_delta_exchange(const __grid_constant__ DeltaArgs args) {
    with_kind(args.kind, [&](auto element, auto strided) {
        exchange_tiles<decltype(element), decltype(strided)::value>(args);
    });
}

}  // namespace rollring::cuda
