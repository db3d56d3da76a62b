// Memory of another allocator in a domain, over a fake GPU: the owner's handle is always that of
// the chunk that its addresses have, and the owner's memory stays when the domain is gone.

#include <doctest/doctest.h>

#include "domain_world.hpp"

namespace rollring::test {
namespace {

// An allocator as vLLM's: a range, a chunk and a word with its handle for each piece of memory.
struct Owner {
    World& world;
    FakePhysical physical{world.gpu};
    std::byte* address = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t handle = 0;

    Owner(World& in, std::uint64_t size) : world(in), bytes(size) {
        address = *physical.reserve(bytes);
        const auto made = *physical.create(bytes);
        handle = std::to_underlying(made);
        REQUIRE(physical.map(address, bytes, made));
        world.parts.push_back({address, bytes, unsigned(world.parts.size()) + 1});
        World::Part& part = world.parts.back();
        world.fill(part);
    }
    [[nodiscard]] const World::Part& part() const {
        for (const auto& one : world.parts) {
            if (one.address == address) return one;
        }
        FAIL("it has a part");
        return world.parts.front();
    }
    Result<void> lend(std::string_view tag) {
        return world.domain->adopt(tag, address, bytes, &handle);
    }
    [[nodiscard]] bool names_what_is_mapped() const {
        const auto found = world.gpu.mappings.find(address);
        if (found == world.gpu.mappings.end()) return handle == 0;
        return std::to_underlying(found->second.handle) == handle;
    }
    // As vLLM does: unmaps the memory of the handle in the word.
    void unmap_and_release() {
        REQUIRE(physical.unmap(address, bytes));
        REQUIRE(physical.destroy(device::MemoryHandle{handle}));
        REQUIRE(physical.unreserve(address, bytes));
    }
};

TEST_CASE("adopted memory goes and comes back in one chunk, and its owner's handle follows") {
    World world;
    Owner owner(world, 6 * unit);  // more than chunk_bytes
    REQUIRE(owner.lend("weights"));
    const std::uint64_t first = owner.handle;
    const std::uint64_t used = world.gpu.used_bytes();
    for (int turn = 0; turn < 3; turn++) {
        const auto released = world.domain->release(weights, Contents::keep, {});
        REQUIRE(released);
        CHECK(released->device_bytes == 2 * chunk + 3 * unit + 6 * unit);
        CHECK(owner.handle == 0);
        REQUIRE(world.domain->resume(weights));
        CHECK(owner.names_what_is_mapped());
        CHECK(owner.handle != first);
        CHECK(world.is_intact(owner.part()));
    }
    CHECK(world.gpu.used_bytes() == used);
    REQUIRE(world.domain->free(owner.address));
    owner.unmap_and_release();
    world.end();
}

TEST_CASE("what is adopted outlives the domain, mapped or not") {
    World world;
    Owner stays(world, 2 * unit);
    Owner goes(world, 3 * unit);
    REQUIRE(stays.lend("weights"));
    REQUIRE(goes.lend("kv_cache"));
    REQUIRE(world.domain->release(cache, Contents::keep, {}));
    world.domain.reset();
    CHECK(world.gpu.slabs.empty());
    CHECK(world.is_intact(stays.part()));
    CHECK(goes.handle == 0);
    stays.unmap_and_release();
    REQUIRE(goes.physical.unreserve(goes.address, goes.bytes));
    world.end();
}

TEST_CASE("freeing adopted memory leaves it to its owner") {
    World world;
    Owner owner(world, 2 * unit);
    REQUIRE(owner.lend("weights"));
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    REQUIRE(world.domain->resume(weights));
    const std::size_t slabs = world.gpu.slabs.size();
    REQUIRE(world.domain->free(owner.address));
    CHECK(world.gpu.slabs.size() == slabs - 1);
    CHECK(world.is_intact(owner.part()));
    CHECK(owner.names_what_is_mapped());
    REQUIRE(owner.lend("kv_cache"));  // and may be lent again
    REQUIRE(world.domain->free(owner.address));
    owner.unmap_and_release();
    world.end();
}

TEST_CASE("what cannot be adopted is refused") {
    World world;
    Owner owner(world, 4 * unit);
    const auto code = [](const auto& result) {
        return result ? Errc::system : result.error().code;
    };
    domain::Domain& domain = *world.domain;
    std::uint64_t none = 0;
    CHECK(code(domain.adopt("a", owner.address, owner.bytes, &none)) == Errc::invalid_argument);
    CHECK(code(domain.adopt("a", owner.address, owner.bytes, nullptr)) == Errc::invalid_argument);
    CHECK(code(domain.adopt("a", owner.address + 1, unit, &owner.handle)) ==
          Errc::invalid_argument);
    CHECK(code(domain.adopt("a", owner.address, unit + 1, &owner.handle)) ==
          Errc::invalid_argument);
    CHECK(code(domain.adopt("", owner.address, unit, &owner.handle)) == Errc::invalid_argument);
    REQUIRE(owner.lend("a"));
    CHECK(code(owner.lend("b")) == Errc::invalid_argument);
    CHECK(code(domain.adopt("b", owner.address + 2 * unit, unit, &owner.handle)) ==
          Errc::invalid_argument);
    CHECK(code(domain.adopt("b", world.parts[0].address, unit, &owner.handle)) ==
          Errc::invalid_argument);
    REQUIRE(domain.release(weights, Contents::drop, {}));
    Owner late(world, unit);
    CHECK(code(late.lend("weights")) == Errc::already_released);
    REQUIRE(domain.free(owner.address));
    owner.unmap_and_release();
    late.unmap_and_release();
    world.end();
}

// A release and a resume in which one driver call fails, for each call.
TEST_CASE("after every failure the owner's handle names what is mapped, and a retry succeeds") {
    for (int failing = 1;; failing++) {
        World world;
        Owner owner(world, 2 * unit);
        REQUIRE(owner.lend("weights"));
        int calls = 0;
        world.gpu.fails = [&](std::string_view) { return ++calls == failing; };
        const auto released = world.domain->release(weights, Contents::keep, {});
        const auto resumed =
            released ? world.domain->resume(weights) : Result<DomainReport>(DomainReport{});
        world.gpu.fails = [](std::string_view) { return false; };
        if (!resumed) {
            CHECK((owner.handle == 0 || !world.is_mapped(owner.part())));
            REQUIRE(world.domain->resume(weights));
        }
        CHECK(owner.names_what_is_mapped());
        for (const auto& part : world.parts) CHECK(world.is_intact(part));
        REQUIRE(world.domain->free(owner.address));
        owner.unmap_and_release();
        world.end();
        if (calls < failing) break;
    }
}

}  // namespace
}  // namespace rollring::test
