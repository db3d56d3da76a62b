// A long random walk over a memory domain beside the simplest model of one, with driver calls that
// fail now and then.

#include <doctest/doctest.h>

#include <random>

#include "domain_world.hpp"
#include "round_up.hpp"

namespace rollring::test {
namespace {

struct ModelRegion {
    std::string tag;
    std::vector<std::byte> contents;
    bool known = true;  // the contents; not after a drop, until they are written again
};

struct Walk {
    explicit Walk(std::uint64_t seed) : random(seed) {
        gpu.capacity_bytes = 60 * unit;
        gpu.host_limit_bytes = 50 * unit;
        domain.emplace(std::make_unique<FakePhysical>(gpu), chunk);
    }

    std::uint64_t below(std::uint64_t n) { return random() % n; }
    std::string some_tag() { return std::string(1, static_cast<char>('a' + below(4))); }

    // No fault, one, some of the calls, or all from one on.
    void choose_faults() {
        const std::uint64_t kind = below(8);
        const auto from = static_cast<int>(1 + below(20));
        calls = 0;
        faults = 0;
        gpu.fails = [this, kind, from](std::string_view) {
            calls++;
            const bool fail = (kind == 5 && calls == from) || (kind == 6 && below(10) == 0) ||
                              (kind == 7 && calls >= from);
            faults += fail ? 1 : 0;
            return fail;
        };
    }

    void write(std::byte* address, ModelRegion& region) {
        for (std::size_t i = 0; i < region.contents.size(); i++) {
            region.contents[i] = static_cast<std::byte>(random());
            std::byte* const byte = gpu.at(address + i);
            if (byte == nullptr) FAIL("resident memory is not mapped");
            *byte = region.contents[i];
        }
        region.known = true;
    }

    void allocate() {
        const std::string tag = some_tag();
        const std::uint64_t bytes = 1 + below(3 * chunk);
        const std::uint64_t reserved = round_up(bytes, unit);
        const auto address = domain->allocate(tag, bytes);
        if (released.contains(tag)) {
            REQUIRE(!address);
            CHECK(address.error().code == Errc::already_released);
        } else if (address) {
            auto& region = regions[static_cast<std::byte*>(*address)];
            region = {tag, std::vector<std::byte>(bytes)};
            write(static_cast<std::byte*>(*address), region);
        } else if (faults == 0) {
            CHECK(address.error().code == Errc::out_of_device_memory);
            CHECK(gpu.free_bytes() < reserved);
        }
    }

    // Memory of another allocator, which makes it and takes it down without faults.
    void adopt() {
        const auto real = std::exchange(gpu.fails, [](std::string_view) { return false; });
        const std::uint64_t bytes = (1 + below(8)) * unit;
        const auto made = owner.create(bytes);
        if (!made) return;
        std::byte* const address = *owner.reserve(bytes);
        REQUIRE(owner.map(address, bytes, *made));
        auto& handle = owned[address] = std::make_unique<std::uint64_t>(std::to_underlying(*made));
        gpu.fails = real;
        const std::string tag = some_tag();
        const auto adopted = domain->adopt(tag, address, bytes, handle.get());
        CHECK(bool(adopted) == !released.contains(tag));
        if (!adopted) return disown(address, bytes);
        auto& region = regions[address];
        region = {tag, std::vector<std::byte>(bytes)};
        write(address, region);
    }

    void disown(std::byte* address, std::uint64_t bytes) {
        const auto real = std::exchange(gpu.fails, [](std::string_view) { return false; });
        if (gpu.mappings.contains(address)) REQUIRE(owner.unmap(address, bytes));
        const std::uint64_t handle = *owned.at(address);
        if (handle != 0) REQUIRE(owner.destroy(device::MemoryHandle{handle}));
        REQUIRE(owner.unreserve(address, bytes));
        owned.erase(address);
        gpu.fails = real;
    }

    void free() {
        if (regions.empty()) return;
        const auto region = std::next(regions.begin(), std::ptrdiff_t(below(regions.size())));
        const auto freed = domain->free(region->first);
        if (faults == 0) REQUIRE(freed);
        if (!freed) return;
        const std::string tag = region->second.tag;
        if (owned.contains(region->first)) disown(region->first, region->second.contents.size());
        regions.erase(region);
        if (!exists(tag)) released.erase(tag);
    }

    [[nodiscard]] bool exists(const std::string& tag) const {
        return std::ranges::any_of(regions, [&](const auto& one) { return one.second.tag == tag; });
    }

    // Up to three tags, maybe the same one twice.
    std::vector<std::string> some_tags() {
        std::vector<std::string> tags(1 + below(3));
        for (std::string& tag : tags) tag = some_tag();
        return tags;
    }

    // The error of a call on these tags if no driver call fails.
    std::optional<Errc> misuse(const std::vector<std::string>& tags, bool releasing) {
        const auto known = [&](const std::string& tag) { return exists(tag); };
        const auto fits = [&](const std::string& tag) {
            return released.contains(tag) != releasing;
        };
        if (!std::ranges::all_of(tags, known)) return Errc::not_found;
        if (std::ranges::all_of(tags, fits)) return std::nullopt;
        return releasing ? Errc::already_released : Errc::not_released;
    }

    void release() {
        const auto tags = some_tags();
        const std::vector<std::string_view> names(tags.begin(), tags.end());
        const auto contents = below(3) == 0 ? Contents::drop : Contents::keep;
        const std::uint64_t pinned = gpu.pinned_bytes();
        const auto report = domain->release(names, contents, {});
        const auto wrong = misuse(tags, true);
        if (wrong) {
            REQUIRE(!report);
            CHECK(report.error().code == *wrong);
            return;
        }
        if (!report) {
            if (faults == 0) CHECK(report.error().code == Errc::host_memory);
            if (faults == 0) CHECK(gpu.pinned_bytes() == pinned);
            // Only a way back that failed may leave a tag released, and then with its contents.
            for (const TagStat& tag : domain->tags()) {
                if (faults > 1 && !tag.resident) released.insert(tag.tag);
            }
            return;
        }
        for (const std::string& tag : tags) released.insert(tag);
        for (auto& [address, region] : regions) {
            const bool mine = std::ranges::find(tags, region.tag) != tags.end();
            if (mine && contents == Contents::drop) region.known = false;
        }
    }

    void resume() {
        const auto tags = some_tags();
        const std::vector<std::string_view> names(tags.begin(), tags.end());
        const auto report = domain->resume(names);
        const auto wrong = misuse(tags, false);
        if (wrong) {
            REQUIRE(!report);
            CHECK(report.error().code == *wrong);
            return;
        }
        if (report) {
            for (const std::string& tag : tags) released.erase(tag);
        } else if (faults == 0) {
            CHECK(report.error().code == Errc::out_of_device_memory);
        }
    }

    void rewrite() {
        for (auto& [address, region] : regions) {
            if (!released.contains(region.tag) && below(4) == 0) write(address, region);
        }
    }

    void step() {
        choose_faults();
        if (below(10) == 0) gpu.others_bytes = below(40) * unit;
        switch (below(8)) {
            case 0:
                return allocate();
            case 7:
                return adopt();
            case 1:
                return below(2) == 0 ? free() : rewrite();
            case 2:
            case 3:
                return release();
            case 4:
            case 5:
                return resume();
            default:
                domain->trim_host();
        }
    }

    void compare() {
        std::set<std::string> tags;
        for (const TagStat& tag : domain->tags()) {
            tags.insert(tag.tag);
            CHECK(tag.resident == !released.contains(tag.tag));
        }
        for (const auto& [address, region] : regions) {
            REQUIRE(tags.contains(region.tag));
            if (released.contains(region.tag) || !region.known) continue;
            bool intact = true;
            for (std::size_t i = 0; i < region.contents.size(); i++) {
                const std::byte* const byte = gpu.at(address + i);
                intact = intact && byte != nullptr && *byte == region.contents[i];
            }
            REQUIRE(intact);
        }
        for (const auto& [address, handle] : owned) {
            const auto mapping = gpu.mappings.find(address);
            const bool is_held = gpu.physical.contains(device::MemoryHandle{*handle});
            if (mapping == gpu.mappings.end()) {
                CHECK((*handle == 0 || is_held));
            } else {
                CHECK(std::to_underlying(mapping->second.handle) == *handle);
            }
        }
        for (const std::string& tag : tags) CHECK(exists(tag));
        for (const std::string& broken : gpu.broken) FAIL(broken);
    }

    std::mt19937_64 random;
    FakeGpu gpu;
    FakePhysical owner{gpu};
    std::optional<domain::Domain> domain;
    std::map<std::byte*, ModelRegion> regions;
    std::map<std::byte*, std::unique_ptr<std::uint64_t>> owned;  // adopted ones: their handles
    std::set<std::string> released;
    int calls = 0;
    int faults = 0;
};

TEST_CASE("a random walk stays with its model") {
    for (std::uint64_t seed = 1; seed <= 20; seed++) {
        Walk walk(seed);
        std::size_t resumed = 0;
        for (int i = 0; i < 1000; i++) {
            CAPTURE(seed);
            CAPTURE(i);
            const std::size_t before = walk.released.size();
            walk.step();
            resumed += walk.released.size() < before ? 1 : 0;
            walk.compare();
        }
        CHECK(resumed > 20);  // it did get somewhere
        walk.gpu.fails = [](std::string_view) { return false; };
        walk.domain.reset();
        for (const auto& [address, region] : walk.regions) {
            if (walk.owned.contains(address)) walk.disown(address, region.contents.size());
        }
        CHECK(walk.gpu.is_empty());
        CHECK(walk.gpu.broken.empty());
    }
}

}  // namespace
}  // namespace rollring::test
