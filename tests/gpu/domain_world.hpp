#pragma once
// A domain over a fake GPU with some memory in it.

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain.hpp"
#include "fake_gpu.hpp"

namespace rollring::test {

inline constexpr std::uint64_t unit = FakeGpu::unit_bytes;
inline constexpr std::uint64_t chunk = 4 * unit;
inline constexpr std::array<std::string_view, 1> weights = {"weights"};
inline constexpr std::array<std::string_view, 1> cache = {"kv_cache"};
inline constexpr std::array<std::string_view, 2> both = {"weights", "kv_cache"};

// Two regions of weights (one of two chunks and a trimmed one, one of part of a unit) and a cache.
struct World {
    FakeGpu gpu;
    std::optional<domain::Domain> domain;
    struct Part {
        std::byte* address;
        std::uint64_t bytes;
        unsigned seed;
    };
    std::vector<Part> parts;

    World() {
        domain.emplace(std::make_unique<FakePhysical>(gpu), chunk);
        add("weights", 2 * chunk + unit + 3);
        add("weights", 5);
        add("kv_cache", chunk);
    }
    std::byte* add(std::string_view tag, std::uint64_t bytes) {
        const auto address = domain->allocate(tag, bytes);
        REQUIRE(address);
        parts.push_back({static_cast<std::byte*>(*address), bytes, unsigned(parts.size()) + 1});
        fill(parts.back());
        return parts.back().address;
    }
    static std::byte expected(const Part& part, std::uint64_t i) {
        return static_cast<std::byte>((i * 7 + i / 64 + part.seed * std::uint64_t{31}) & 127);
    }
    void fill(const Part& part) {
        for (std::uint64_t i = 0; i < part.bytes; i++) {
            REQUIRE(gpu.at(part.address + i) != nullptr);
            *gpu.at(part.address + i) = expected(part, i);
        }
    }
    [[nodiscard]] bool is_mapped(const Part& part) { return gpu.at(part.address) != nullptr; }
    [[nodiscard]] bool is_intact(const Part& part) {
        for (std::uint64_t i = 0; i < part.bytes; i++) {
            const std::byte* const byte = gpu.at(part.address + i);
            if (byte == nullptr || *byte != expected(part, i)) return false;
        }
        return true;
    }
    void end() {
        domain.reset();
        CHECK(gpu.is_empty());
        for (const std::string& broken : gpu.broken) FAIL_CHECK(broken);
    }
};

// All that a caller could see, and the GPU's memory.
inline std::string seen(const World& world) {
    std::string text =
        fmt::format("used {} mappings {} slabs {} ranges {};", world.gpu.used_bytes(),
                    world.gpu.mappings.size(), world.gpu.slabs.size(), world.gpu.ranges.size());
    for (const TagStat& tag : world.domain->tags()) {
        text += fmt::format(" {} {} {} {}", tag.tag, tag.bytes, tag.resident, tag.host_bytes);
    }
    return text;
}

}  // namespace rollring::test
