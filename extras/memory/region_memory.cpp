#include "region_memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "round_up.hpp"

namespace rollring::domain {

namespace {

std::string mib(std::uint64_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

Result<Region> RegionMemory::make(std::uint64_t bytes) {
    auto region = reserve(bytes);
    if (!region) return region;
    std::vector<Before> undo;
    for (Chunk& chunk : region->chunks) {
        const auto brought = bring(chunk, undo);
        if (brought) continue;
        const std::uint64_t need_bytes = region->reserved_bytes;
        discard(std::move(*region));
        const bool full = brought.error().code == Errc::out_of_device_memory;
        return std::unexpected(full ? out_of_memory(need_bytes) : brought.error());
    }
    return region;
}

Result<Region> RegionMemory::reserve(std::uint64_t bytes) const {
    const std::uint64_t unit = memory_->granularity_bytes();
    Region region{.reserved_bytes = round_up(bytes, unit), .used_bytes = bytes};
    const auto address = memory_->reserve(region.reserved_bytes);
    if (!address) return std::unexpected(address.error());
    region.address = *address;
    for (std::uint64_t at = 0; at < region.reserved_bytes; at += chunk_bytes_) {
        region.chunks.push_back({
            .address = region.address + at,
            .bytes = std::min(chunk_bytes_, region.reserved_bytes - at),
            .used_bytes = std::min(chunk_bytes_, bytes - at),
        });
    }
    return region;
}

Result<void> RegionMemory::check_free(std::uint64_t need_bytes) {
    const auto free_bytes = memory_->free_bytes();
    if (!free_bytes) return std::unexpected(free_bytes.error());
    if (*free_bytes < need_bytes) return std::unexpected(out_of_memory(need_bytes));
    return {};
}

Error RegionMemory::out_of_memory(std::uint64_t need_bytes) {
    const auto free_bytes = memory_->free_bytes();
    return {Errc::out_of_device_memory, 0,
            fmt::format("{} of device memory are needed, but {} are free: release memory "
                        "elsewhere, then try again",
                        mib(need_bytes), free_bytes ? mib(*free_bytes) : "an unknown number")};
}

void RegionMemory::discard(Region region) {
    if (!take_down(region)) leftover_.push_back(std::move(region));
}

// Whether it was freed completely.
bool RegionMemory::take_down(Region& region) {
    bool gone = true;
    if (!region.chunks.empty() && region.is_adopted()) {
        region.chunks.clear();
        region.address = nullptr;
    }
    for (Chunk& chunk : region.chunks) {
        if (chunk.state == ChunkState::mapped && memory_->unmap(chunk.address, chunk.bytes)) {
            chunk.state = ChunkState::held;
        }
        if (chunk.state == ChunkState::held && memory_->destroy(chunk.handle)) {
            chunk.state = ChunkState::absent;
        }
        gone = gone && chunk.state == ChunkState::absent;
    }
    if (region.slab != nullptr && memory_->unpin(region.slab)) region.slab = nullptr;
    if (gone && region.address != nullptr &&
        memory_->unreserve(region.address, region.reserved_bytes)) {
        region.address = nullptr;
    }
    return region.slab == nullptr && region.address == nullptr;
}

void RegionMemory::discard_again() {
    std::erase_if(leftover_, [this](Region& region) { return take_down(region); });
}

Result<void> RegionMemory::bring(Chunk& chunk, std::vector<Before>& undo) {
    if (chunk.state == ChunkState::mapped) return {};
    undo.push_back({&chunk, chunk.state});
    if (chunk.state == ChunkState::absent) {
        const auto handle = memory_->create(chunk.bytes);
        if (!handle) return std::unexpected(handle.error());
        chunk.set_handle(*handle);
        chunk.state = ChunkState::held;
    }
    if (const auto mapped = memory_->map(chunk.address, chunk.bytes, chunk.handle); !mapped) {
        return mapped;
    }
    chunk.state = ChunkState::mapped;
    return {};
}

// Undoes every step that can be undone; returns the first error.
Result<void> RegionMemory::put_back(std::span<const Before> undo) {
    Result<void> all;
    for (std::size_t i = undo.size(); i-- > 0;) {
        Chunk& chunk = *undo[i].chunk;
        Result<void> step;
        if (undo[i].state == ChunkState::mapped && chunk.state == ChunkState::held) {
            step = memory_->map(chunk.address, chunk.bytes, chunk.handle);
            if (step) chunk.state = ChunkState::mapped;
        } else if (undo[i].state != ChunkState::mapped && chunk.state == ChunkState::mapped) {
            step = memory_->unmap(chunk.address, chunk.bytes);
            if (step) chunk.state = ChunkState::held;
        }
        if (step && undo[i].state == ChunkState::absent && chunk.state == ChunkState::held) {
            step = memory_->destroy(chunk.handle);
            if (step) {
                chunk.state = ChunkState::absent;
                chunk.set_handle({});
            }
        }
        if (!step && all) all = step;
    }
    return all;
}

Result<void> RegionMemory::unmap_all(std::span<Region* const> regions) {
    std::vector<Before> undo;
    for (Region* region : regions) {
        for (Chunk& chunk : region->chunks) {
            if (chunk.state != ChunkState::mapped) continue;
            Result<void> unmapped = memory_->unmap(chunk.address, chunk.bytes);
            if (unmapped) {
                undo.push_back({&chunk, ChunkState::mapped});
                chunk.state = ChunkState::held;
                continue;
            }
            if (const auto back = put_back(undo); !back) {
                unmapped.error().message += fmt::format(
                    "; memory that had been unmapped could not be mapped back ({}) and must not be "
                    "used",
                    back.error().message);
            }
            return unmapped;
        }
    }
    return {};
}

// After an error copies may still be under way: their memory must stay until they are done.
Result<void> RegionMemory::end_copies() {
    if (!copying_) return {};
    Result<void> waited = memory_->wait_copies();
    copying_ = !waited;
    return waited;
}

void RegionMemory::give_slabs_back(std::span<Region* const> regions) {
    for (Region* region : regions) {
        if (memory_->unpin(region->slab)) region->slab = nullptr;
    }
}

Result<void> RegionMemory::copy_out(std::span<Region* const> regions,
                                    std::vector<Region*>& pinned) {
    Result<void> step;
    for (Region* region : regions) {
        if (region->slab != nullptr) continue;
        const auto slab = memory_->pin(region->used_bytes);
        if (!slab) {
            give_slabs_back(pinned);
            return std::unexpected(slab.error());
        }
        region->slab = *slab;
        pinned.push_back(region);
        for (Chunk& chunk : region->chunks) {
            chunk.slab_part = region->slab + (chunk.address - region->address);
        }
    }
    for (Region* region : regions) {
        for (const Chunk& chunk : region->chunks) {
            copying_ = true;
            if (step) step = memory_->copy_out(chunk.slab_part, chunk.address, chunk.used_bytes);
        }
    }
    const auto waited = end_copies();
    if (step && waited) return {};
    if (end_copies()) give_slabs_back(pinned);
    return step ? waited : step;
}

// Maps all chunks and copies their contents back, overlapping each copy with the next mappings.
Result<std::uint64_t> RegionMemory::copy_in(std::span<Region* const> regions,
                                            std::vector<Before>& undo) {
    std::uint64_t copied_bytes = 0;
    for (Region* region : regions) {
        for (Chunk& chunk : region->chunks) {
            Result<void> step = bring(chunk, undo);
            if (step && chunk.on_host) {
                copying_ = true;
                step = memory_->copy_in(chunk.address, chunk.slab_part, chunk.used_bytes);
                copied_bytes += chunk.used_bytes;
            }
            if (!step) return std::unexpected(step.error());
        }
    }
    if (const auto waited = end_copies(); !waited) {
        return std::unexpected(waited.error());
    }
    return copied_bytes;
}

Result<std::uint64_t> RegionMemory::bring_back(std::span<Region* const> regions,
                                               std::uint64_t need_bytes) {
    std::vector<Before> undo;
    auto copied = copy_in(regions, undo);
    if (copied) return copied;
    Error error = copied.error();
    auto back = end_copies();
    if (back) back = put_back(undo);
    if (error.code == Errc::out_of_device_memory) error = out_of_memory(need_bytes);
    if (!back) {
        error.message += fmt::format(
            "; some of its memory could not be released again ({}) and waits for the next resume",
            back.error().message);
    }
    return std::unexpected(std::move(error));
}

std::uint64_t RegionMemory::destroy_handles(Region& region) {
    std::uint64_t taken_bytes = 0;
    for (Chunk& chunk : region.chunks) {
        if (chunk.state != ChunkState::held || !memory_->destroy(chunk.handle)) continue;
        chunk.state = ChunkState::absent;
        chunk.set_handle({});
        taken_bytes += chunk.bytes;
    }
    return taken_bytes;
}

}  // namespace rollring::domain
