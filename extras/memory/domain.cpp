#include "domain.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "rollring/time.hpp"

namespace rollring::domain {
namespace {

std::unexpected<Error> failed(std::string_view doing, const Error& error) {
    return failed(error.code, error.system_errno, fmt::format("{}: {}", doing, error.message));
}

std::string called(std::string_view call, std::span<const std::string_view> names) {
    std::string text(call);
    for (std::size_t i = 0; i < names.size(); i++) {
        text += i == 0 ? " " : ", ";
        text += names[i];
    }
    return text;
}

bool is_among(std::span<const std::string_view> names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
}

}  // namespace

Domain::Domain(std::unique_ptr<PhysicalMemory> memory, std::uint64_t chunk_bytes)
    : memory_(std::move(memory), chunk_bytes) {}

Domain::~Domain() {
    // When the process ends, the driver may be gone already and refuse all this: then the system
    // frees everything.
    if (tags_.empty() && !memory_.has_leftovers()) return;
    if (!memory_.end_copies()) memory_.forget_copies();
    [[maybe_unused]] const auto waited = memory_.wait({});
    for (Tag& tag : tags_) {
        for (Region& region : tag.regions) memory_.discard(std::move(region));
    }
    memory_.discard_again();
}

// --- regions -------------------------------------------------------------------------------------

Result<void*> Domain::allocate(std::string_view tag, std::uint64_t bytes) {
    memory_.discard_again();
    const std::string doing = fmt::format("allocate {} bytes for tag '{}'", bytes, tag);
    if (bytes == 0) return refused(Errc::invalid_argument, doing + ": the size is 0");
    const auto found = growing(tag, doing);
    if (!found) return std::unexpected(found.error());
    if (const auto enough = memory_.check_free(bytes); !enough) {
        return failed(doing, enough.error());
    }
    auto region = memory_.make(bytes);
    if (!region) return failed(doing, region.error());
    void* const address = region->address;
    add(*found, tag, std::move(*region));
    return address;
}

Result<void> Domain::adopt(std::string_view tag, void* address, std::uint64_t bytes,
                           std::uint64_t* handle) {
    const std::string doing = fmt::format("adopt {} bytes at {} for tag '{}'", bytes, address, tag);
    const auto found = growing(tag, doing);
    if (!found) return std::unexpected(found.error());
    const std::uint64_t unit = memory_.granularity_bytes();
    const auto is_odd = [&](std::uint64_t number) { return number == 0 || number % unit != 0; };
    if (is_odd(bytes) || is_odd(reinterpret_cast<std::uintptr_t>(address))) {
        return refused(Errc::invalid_argument,
                       fmt::format("{}: address and size must be multiples of {}", doing, unit));
    }
    if (handle == nullptr || *handle == 0) {
        return refused(Errc::invalid_argument,
                       doing + ": no handle of its physical memory was given");
    }
    auto* const begin = static_cast<std::byte*>(address);
    for (const Tag& one : tags_) {
        for (const Region& region : one.regions) {
            const std::less<> before;  // a total order also of unrelated pointers
            if (!before(begin, region.address + region.reserved_bytes)) continue;
            if (!before(region.address, begin + bytes)) continue;
            return refused(Errc::invalid_argument,
                           fmt::format("{}: memory of tag '{}' is already there", doing, one.name));
        }
    }
    Region region{.address = begin, .reserved_bytes = bytes, .used_bytes = bytes};
    region.chunks.push_back({.address = begin,
                             .bytes = bytes,
                             .used_bytes = bytes,
                             .state = ChunkState::mapped,
                             .handle = MemoryHandle{*handle},
                             .owner_handle = handle});
    add(*found, tag, std::move(region));
    return {};
}

Result<Domain::Tag*> Domain::growing(std::string_view name, std::string_view doing) {
    if (name.empty() || name.size() > 63) {
        return refused(Errc::invalid_argument,
                       fmt::format("a tag has 1 to 63 bytes, not {}: '{}'", name.size(), name));
    }
    const auto found = std::ranges::find(tags_, name, &Tag::name);
    if (found == tags_.end()) return nullptr;
    if (found->resident) return &*found;
    return refused(Errc::already_released,
                   fmt::format("{}: the tag is released, resume it first", doing));
}

void Domain::add(Tag* tag, std::string_view name, Region region) {
    if (tag == nullptr) tag = &tags_.emplace_back(Tag{.name = std::string(name)});
    tag->regions.push_back(std::move(region));
}

Result<void> Domain::free(void* address) {
    memory_.discard_again();
    for (auto tag = tags_.begin(); tag != tags_.end(); ++tag) {
        const auto region = std::ranges::find(tag->regions, address, &Region::address);
        if (region == tag->regions.end()) continue;
        const std::string doing = fmt::format("free {} of tag '{}'", address, tag->name);
        const auto is_mapped = [](const Chunk& chunk) { return chunk.state == ChunkState::mapped; };
        if (region->is_adopted()) {
            if (auto ended = memory_.end_copies(); !ended) return failed(doing, ended.error());
        } else if (std::ranges::any_of(region->chunks, is_mapped)) {
            Result<void> step = memory_.wait({});  // work in flight may still use it
            Region* const one[] = {&*region};
            if (step) step = memory_.unmap_all(one);
            const bool as_before = !tag->resident || std::ranges::all_of(region->chunks, is_mapped);
            if (!step && as_before) return failed(doing, step.error());
        }
        // This cannot be undone: parts that the driver refuses are retried later.
        memory_.discard(std::move(*region));
        tag->regions.erase(region);
        if (tag->regions.empty()) tags_.erase(tag);
        return {};
    }
    return refused(Errc::invalid_argument,
                   fmt::format("free {}: no region of this domain begins there", address));
}

// --- tags ----------------------------------------------------------------------------------------

Result<std::vector<Domain::Tag*>> Domain::select(std::span<const std::string_view> names,
                                                 bool resident) {
    if (names.empty()) return refused(Errc::invalid_argument, "no tags were given");
    std::vector<Tag*> chosen;
    for (const std::string_view name : names) {
        const auto tag = std::ranges::find(tags_, name, &Tag::name);
        if (tag == tags_.end()) {
            return refused(Errc::not_found, fmt::format("no memory has the tag '{}'", name));
        }
        if (std::ranges::find(chosen, &*tag) == chosen.end()) chosen.push_back(&*tag);
    }
    for (const Tag* tag : chosen) {
        if (tag->resident == resident) continue;
        return refused(
            resident ? Errc::already_released : Errc::not_released,
            fmt::format("the tag '{}' is {} released", tag->name, resident ? "already" : "not"));
    }
    return chosen;
}

std::vector<Region*> Domain::regions_of(std::span<Tag* const> chosen) {
    std::vector<Region*> regions;
    for (Tag* tag : chosen) {
        for (Region& region : tag->regions) regions.push_back(&region);
    }
    return regions;
}

Result<DomainReport> Domain::release(std::span<const std::string_view> names, Contents contents,
                                     std::span<const Stream> streams) {
    std::vector<TagRelease> wanted;
    for (const std::string_view name : names) wanted.push_back({name, contents});
    return release(wanted, streams);
}

Result<DomainReport> Domain::release(std::span<const TagRelease> wanted,
                                     std::span<const Stream> streams) {
    const std::int64_t start_ns = monotonic_ns();
    std::vector<std::string_view> names;
    std::vector<std::string_view> kept_names;
    for (const TagRelease& one : wanted) {
        names.push_back(one.tag);
        if (one.contents == Contents::keep) kept_names.push_back(one.tag);
    }
    const std::string doing = called("release", names);
    for (const TagRelease& one : wanted) {
        if (one.contents == Contents::keep || !is_among(kept_names, one.tag)) continue;
        return refused(
            Errc::invalid_argument,
            fmt::format("{}: the contents of '{}' cannot be kept and dropped", doing, one.tag));
    }
    const auto chosen = select(names, true);
    if (!chosen) return failed(doing, chosen.error());
    std::vector<Tag*> kept;
    std::ranges::copy_if(*chosen, std::back_inserter(kept),
                         [&](const Tag* tag) { return is_among(kept_names, tag->name); });
    if (const auto done = memory_.wait(streams); !done) return failed(doing, done.error());
    const std::vector<Region*> regions = regions_of(*chosen);
    std::vector<Region*> pinned;
    if (const auto copied = memory_.copy_out(regions_of(kept), pinned); !copied) {
        return failed(doing, copied.error());
    }
    const auto unmapped = memory_.unmap_all(regions);
    if (!unmapped) {
        memory_.give_slabs_back(pinned);
        for (Tag* tag : *chosen) {
            // A chunk that cannot be used counts as released: resume maps it again, with its bytes.
            for (const Region& region : tag->regions) {
                for (const Chunk& chunk : region.chunks) {
                    if (chunk.state != ChunkState::mapped) tag->resident = false;
                }
            }
        }
        return failed(doing, unmapped.error());
    }
    DomainReport report;
    for (Region* region : regions) report.device_bytes += memory_.destroy_handles(*region);
    for (Region* region : regions_of(kept)) {
        report.copied_bytes += region->used_bytes;
        for (Chunk& chunk : region->chunks) chunk.on_host = true;
    }
    for (Tag* tag : *chosen) tag->resident = false;
    report.wall_ns = monotonic_ns() - start_ns;
    return report;
}

Result<DomainReport> Domain::resume(std::span<const std::string_view> names) {
    const std::int64_t start_ns = monotonic_ns();
    memory_.discard_again();
    const std::string doing = called("resume", names);
    const auto chosen = select(names, false);
    if (!chosen) return failed(doing, chosen.error());
    const std::vector<Region*> regions = regions_of(*chosen);
    DomainReport report;
    for (const Region* region : regions) {
        for (const Chunk& chunk : region->chunks) {
            if (chunk.state == ChunkState::absent) report.device_bytes += chunk.bytes;
        }
    }
    // Checked first, so that a full device costs nothing; it can still fill up during the mapping.
    if (const auto enough = memory_.check_free(report.device_bytes); !enough) {
        return failed(doing, enough.error());
    }
    const auto copied = memory_.bring_back(regions, report.device_bytes);
    if (!copied) return failed(doing, copied.error());
    for (Tag* tag : *chosen) {
        tag->resident = true;
        for (Region& region : tag->regions) {
            for (Chunk& chunk : region.chunks) chunk.on_host = false;
        }
    }
    report.copied_bytes = *copied;
    report.wall_ns = monotonic_ns() - start_ns;
    return report;
}

const std::byte* Domain::kept(const void* device_address, std::uint64_t bytes) const {
    const auto* const address = static_cast<const std::byte*>(device_address);
    for (const Tag& tag : tags_) {
        for (const Region& region : tag.regions) {
            const std::less_equal<> before;  // a total order also of unrelated pointers
            if (!before(region.address, address) ||
                !before(address, region.address + region.used_bytes)) {
                continue;
            }
            const auto offset = static_cast<std::uint64_t>(address - region.address);
            const bool whole = bytes <= region.used_bytes - offset;
            const bool there = std::ranges::all_of(region.chunks, &Chunk::on_host);
            return whole && there && !tag.resident ? region.slab + offset : nullptr;
        }
    }
    return nullptr;
}

std::uint64_t Domain::trim_host() {
    if (!memory_.end_copies()) return 0;
    std::uint64_t trimmed_bytes = 0;
    for (Tag& tag : tags_) {
        for (Region& region : tag.regions) {
            const bool needed = std::ranges::any_of(region.chunks, &Chunk::on_host);
            if (region.slab == nullptr || needed) continue;
            Region* const one[] = {&region};
            memory_.give_slabs_back(one);
            if (region.slab == nullptr) trimmed_bytes += region.used_bytes;
        }
    }
    return trimmed_bytes;
}

std::vector<TagStat> Domain::tags() const {
    std::vector<TagStat> stats;
    for (const Tag& tag : tags_) {
        TagStat stat{.tag = tag.name, .resident = tag.resident};
        for (const Region& region : tag.regions) {
            stat.bytes += region.reserved_bytes;
            if (region.slab != nullptr) stat.host_bytes += region.used_bytes;
        }
        stats.push_back(std::move(stat));
    }
    return stats;
}

}  // namespace rollring::domain
