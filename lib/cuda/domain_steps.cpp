// The steps of a domain's calls: each can be taken back, up to destroying handles.

#include <fmt/format.h>

#include <algorithm>

#include "domain.hpp"

namespace rollring::cuda {

// Whether nothing is left of it. No work on the device may use it any more.
bool Domain::bury(Region& region) {
    bool gone = true;
    for (Chunk& chunk : region.chunks) {
        if (chunk.state == State::mapped && memory_->unmap(chunk.address, chunk.bytes)) {
            chunk.state = State::held;
        }
        if (chunk.state == State::held && memory_->destroy(chunk.handle)) {
            chunk.state = State::absent;
        }
        gone = gone && chunk.state == State::absent;
    }
    if (region.slab != nullptr && memory_->unpin(region.slab)) region.slab = nullptr;
    if (gone && region.address != nullptr &&
        memory_->unreserve(region.address, region.reserved_bytes)) {
        region.address = nullptr;
    }
    return region.slab == nullptr && region.address == nullptr;
}

void Domain::bury_again() {
    std::erase_if(leftover_, [this](Region& region) { return bury(region); });
}

Result<void> Domain::bring(Chunk& chunk, std::vector<Before>& undo) {
    if (chunk.state == State::mapped) return {};
    undo.push_back({&chunk, chunk.state});
    if (chunk.state == State::absent) {
        const auto handle = memory_->create(chunk.bytes);
        if (!handle) return std::unexpected(handle.error());
        chunk.handle = *handle;
        chunk.state = State::held;
    }
    if (const auto mapped = memory_->map(chunk.address, chunk.bytes, chunk.handle); !mapped) {
        return mapped;
    }
    chunk.state = State::mapped;
    return {};
}

// All that can be put back is; the first error of what cannot.
Result<void> Domain::put_back(std::span<const Before> undo) {
    Result<void> all;
    for (std::size_t i = undo.size(); i-- > 0;) {
        Chunk& chunk = *undo[i].chunk;
        Result<void> step;
        if (undo[i].state == State::mapped && chunk.state == State::held) {
            step = memory_->map(chunk.address, chunk.bytes, chunk.handle);
            if (step) chunk.state = State::mapped;
        } else if (undo[i].state != State::mapped && chunk.state == State::mapped) {
            step = memory_->unmap(chunk.address, chunk.bytes);
            if (step) chunk.state = State::held;
        }
        if (step && undo[i].state == State::absent && chunk.state == State::held) {
            step = memory_->destroy(chunk.handle);
            if (step) chunk.state = State::absent;
        }
        if (!step && all) all = step;
    }
    return all;
}

// On an error all is mapped as it was, with its bytes; if not, the error says so.
Result<void> Domain::unmap_all(std::span<Region* const> regions) {
    std::vector<Before> undo;
    for (Region* region : regions) {
        for (Chunk& chunk : region->chunks) {
            if (chunk.state != State::mapped) continue;
            Result<void> unmapped = memory_->unmap(chunk.address, chunk.bytes);
            if (unmapped) {
                undo.push_back({&chunk, State::mapped});
                chunk.state = State::held;
                continue;
            }
            if (const auto back = put_back(undo); !back) {
                unmapped.error().message += fmt::format(
                    "; what was unmapped before could not be mapped back ({}) and must not be used",
                    back.error().message);
            }
            return unmapped;
        }
    }
    return {};
}

// After an error copies can still be under way: what they touch must stay until they are done.
Result<void> Domain::end_copies() {
    if (!copying_) return {};
    Result<void> waited = memory_->wait_copies();
    copying_ = !waited;
    return waited;
}

void Domain::give_slabs_back(std::span<Region* const> regions) {
    for (Region* region : regions) {
        if (memory_->unpin(region->slab)) region->slab = nullptr;
    }
}

// `pinned`: the regions that got their slab here. On an error they have none again.
Result<void> Domain::copy_out(std::span<Region* const> regions, std::vector<Region*>& pinned) {
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

// Brings everything that is not mapped and copies back what the slabs hold, one chunk's copy
// beside the mapping of the next ones.
Result<std::uint64_t> Domain::copy_in(std::span<Region* const> regions, std::vector<Before>& undo) {
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

// The bytes that the driver took. What it refuses stays held, and is not free for others.
std::uint64_t Domain::destroy_handles(Region& region) {
    std::uint64_t taken_bytes = 0;
    for (Chunk& chunk : region.chunks) {
        if (chunk.state != State::held || !memory_->destroy(chunk.handle)) continue;
        chunk.state = State::absent;
        taken_bytes += chunk.bytes;
    }
    return taken_bytes;
}

}  // namespace rollring::cuda
