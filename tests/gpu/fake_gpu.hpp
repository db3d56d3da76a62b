#pragma once
// A GPU in host memory for the tests of memory domains: it knows what is reserved, created, mapped
// and pinned, fails where it is told to, and notes every use that a real one would punish.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "physical_memory.hpp"

namespace rollring::test {

struct FakeGpu {
    static constexpr std::uint64_t unit_bytes = 64;

    struct Mapping {
        std::uint64_t bytes;
        device::MemoryHandle handle;
    };
    struct Copy {
        std::byte* slab;
        std::byte* address;
        std::uint64_t bytes;
        bool out;
    };

    std::uint64_t capacity_bytes = std::uint64_t{1} << 20;
    std::uint64_t others_bytes = 0;  // taken by other processes
    std::uint64_t host_limit_bytes = ~std::uint64_t{0};
    std::set<void*> busy;  // streams with work in flight, which may use any memory
    // Asked before every call, by the name of its function. A call that fails does nothing.
    std::function<bool(std::string_view)> fails = [](std::string_view) { return false; };

    std::map<std::byte*, std::uint64_t> ranges;
    std::map<device::MemoryHandle, std::vector<std::byte>> physical;
    std::map<std::byte*, Mapping> mappings;
    std::map<std::byte*, std::unique_ptr<std::byte[]>> slabs;
    std::map<std::byte*, std::uint64_t> slab_bytes;
    std::deque<Copy> copies;          // run by wait_copies
    std::vector<std::string> broken;  // rules
    std::uint64_t next = 1;

    [[nodiscard]] std::uint64_t used_bytes() const {
        std::uint64_t used = 0;
        for (const auto& [handle, bytes] : physical) used += bytes.size();
        return used;
    }
    [[nodiscard]] std::uint64_t pinned_bytes() const {
        std::uint64_t pinned = 0;
        for (const auto& [slab, bytes] : slab_bytes) pinned += bytes;
        return pinned;
    }
    [[nodiscard]] std::uint64_t free_bytes() const {
        const std::uint64_t used = used_bytes() + others_bytes;
        return used < capacity_bytes ? capacity_bytes - used : 0;
    }
    [[nodiscard]] bool is_empty() const {
        return ranges.empty() && physical.empty() && mappings.empty() && slabs.empty() &&
               copies.empty();
    }
    void rule(bool kept, std::string_view what) {
        if (!kept) broken.emplace_back(what);
    }
    // The byte behind a device address; null if nothing is mapped there.
    std::byte* at(const std::byte* address) {
        auto after = mappings.upper_bound(const_cast<std::byte*>(address));
        if (after == mappings.begin()) return nullptr;
        const auto& [begin, mapping] = *std::prev(after);
        const auto offset = static_cast<std::uint64_t>(address - begin);
        return offset < mapping.bytes ? &physical.at(mapping.handle)[offset] : nullptr;
    }
    void run_copies() {
        for (const Copy& copy : copies) {
            for (std::uint64_t i = 0; i < copy.bytes; i++) {
                std::byte* const device = at(copy.address + i);
                rule(device != nullptr, "a copy reached memory that is not mapped");
                if (device == nullptr) break;
                (copy.out ? copy.slab[i] : *device) = copy.out ? *device : copy.slab[i];
            }
        }
        copies.clear();
    }
    [[nodiscard]] bool is_copied(const std::byte* address, std::uint64_t bytes) const {
        return std::ranges::any_of(copies, [&](const Copy& copy) {
            return copy.address < address + bytes && address < copy.address + copy.bytes;
        });
    }
};

class FakePhysical final : public device::PhysicalMemory {
  public:
    explicit FakePhysical(FakeGpu& gpu) : gpu_(gpu) {}

    [[nodiscard]] std::uint64_t granularity_bytes() const override { return FakeGpu::unit_bytes; }

    Result<std::uint64_t> free_bytes() override {
        if (gpu_.fails("free_bytes")) return no();
        return gpu_.free_bytes();
    }

    Result<std::byte*> reserve(std::uint64_t bytes) override {
        if (gpu_.fails("reserve")) return no();
        rule_aligned(bytes);
        const std::uint64_t top = 0x7000'0000'0000 + (gpu_.next++ << 24);  // apart, never reused
        auto* const address = reinterpret_cast<std::byte*>(top);
        gpu_.ranges[address] = bytes;
        return address;
    }

    Result<void> unreserve(std::byte* address, std::uint64_t bytes) override {
        if (gpu_.fails("unreserve")) return no();
        const auto range = gpu_.ranges.find(address);
        gpu_.rule(range != gpu_.ranges.end() && range->second == bytes, "unreserve what is not");
        const auto first = gpu_.mappings.lower_bound(address);
        gpu_.rule(first == gpu_.mappings.end() || first->first >= address + bytes,
                  "unreserve under a mapping");
        gpu_.ranges.erase(address);
        return {};
    }

    Result<device::MemoryHandle> create(std::uint64_t bytes) override {
        if (gpu_.fails("create")) return no();
        rule_aligned(bytes);
        if (gpu_.free_bytes() < bytes) return no(Errc::out_of_device_memory);
        const auto handle = device::MemoryHandle{gpu_.next++};
        gpu_.physical[handle].assign(bytes, static_cast<std::byte>(0xc0 | (gpu_.next & 15)));
        return handle;
    }

    Result<void> destroy(device::MemoryHandle handle) override {
        if (gpu_.fails("destroy")) return no();
        gpu_.rule(std::ranges::none_of(
                      gpu_.mappings, [&](const auto& one) { return one.second.handle == handle; }),
                  "destroy what is mapped");
        gpu_.rule(gpu_.physical.erase(handle) == 1, "destroy what is not");
        return {};
    }

    Result<void> map(std::byte* address, std::uint64_t bytes,
                     device::MemoryHandle handle) override {
        if (gpu_.fails("map")) return no();
        const auto range = gpu_.ranges.upper_bound(address);
        gpu_.rule(range != gpu_.ranges.begin() &&
                      address + bytes <= std::prev(range)->first + std::prev(range)->second,
                  "map outside of a reserved range");
        const auto physical = gpu_.physical.find(handle);
        gpu_.rule(physical != gpu_.physical.end() && physical->second.size() == bytes,
                  "map another size than was created");
        gpu_.rule(gpu_.mappings.emplace(address, FakeGpu::Mapping{bytes, handle}).second,
                  "map twice");
        return {};
    }

    Result<void> unmap(std::byte* address, std::uint64_t bytes) override {
        if (gpu_.fails("unmap")) return no();
        const auto mapping = gpu_.mappings.find(address);
        gpu_.rule(mapping != gpu_.mappings.end() && mapping->second.bytes == bytes,
                  "unmap what is not mapped");
        gpu_.rule(!gpu_.is_copied(address, bytes), "unmap under a copy");
        gpu_.rule(gpu_.busy.empty(), "unmap while streams are busy");
        gpu_.mappings.erase(address);
        return {};
    }

    Result<std::byte*> pin(std::uint64_t bytes) override {
        if (gpu_.fails("pin")) return no(Errc::host_memory);
        if (gpu_.pinned_bytes() + bytes > gpu_.host_limit_bytes) return no(Errc::host_memory);
        auto slab = std::make_unique<std::byte[]>(bytes);
        std::byte* const address = slab.get();
        gpu_.slabs[address] = std::move(slab);
        gpu_.slab_bytes[address] = bytes;
        return address;
    }

    Result<void> unpin(std::byte* slab) override {
        if (gpu_.fails("unpin")) return no();
        const auto bytes = gpu_.slab_bytes.find(slab);
        gpu_.rule(bytes != gpu_.slab_bytes.end(), "unpin what is not pinned");
        if (bytes == gpu_.slab_bytes.end()) return {};
        gpu_.rule(std::ranges::none_of(gpu_.copies,
                                       [&](const FakeGpu::Copy& copy) {
                                           return copy.slab >= slab &&
                                                  copy.slab < slab + bytes->second;
                                       }),
                  "unpin under a copy");
        gpu_.slab_bytes.erase(bytes);
        gpu_.slabs.erase(slab);
        return {};
    }

    Result<void> copy_out(std::byte* slab, const std::byte* address, std::uint64_t bytes) override {
        if (gpu_.fails("copy_out")) return no();
        gpu_.copies.push_back({slab, const_cast<std::byte*>(address), bytes, true});
        return {};
    }

    Result<void> copy_in(std::byte* address, const std::byte* slab, std::uint64_t bytes) override {
        if (gpu_.fails("copy_in")) return no();
        gpu_.copies.push_back({const_cast<std::byte*>(slab), address, bytes, false});
        return {};
    }

    Result<void> wait_copies() override {
        if (gpu_.fails("wait_copies")) return no();
        gpu_.run_copies();
        return {};
    }

    Result<void> wait(std::span<const Stream> streams) override {
        if (gpu_.fails("wait")) return no();
        if (streams.empty()) {
            gpu_.busy.clear();
            gpu_.run_copies();
        }
        for (const Stream stream : streams) gpu_.busy.erase(stream.handle);
        return {};
    }

  private:
    static std::unexpected<Error> no(Errc code = Errc::device_error) {
        return refused(code, "the fake GPU was told to fail");
    }
    void rule_aligned(std::uint64_t bytes) {
        gpu_.rule(bytes > 0 && bytes % FakeGpu::unit_bytes == 0, "a size that is not aligned");
    }

    FakeGpu& gpu_;
};

}  // namespace rollring::test
