// Memory domains over a fake GPU: the effect of every call, and its errors.

#include <doctest/doctest.h>

#include "domain_world.hpp"

namespace rollring::test {
namespace {

TEST_CASE("contents come back to the same addresses; the memory is free in between") {
    World world;
    const std::uint64_t before = world.gpu.used_bytes();
    CHECK(before == 2 * chunk + 2 * unit + unit + chunk);
    const auto released = world.domain->release(weights, Contents::keep, {});
    REQUIRE(released);
    CHECK(released->device_bytes == 2 * chunk + 3 * unit);
    CHECK(released->copied_bytes == 2 * chunk + unit + 3 + 5);
    CHECK(world.gpu.used_bytes() == chunk);
    CHECK(world.is_intact(world.parts[2]));
    const auto resumed = world.domain->resume(weights);
    REQUIRE(resumed);
    CHECK(resumed->device_bytes == released->device_bytes);
    CHECK(resumed->copied_bytes == released->copied_bytes);
    CHECK(world.gpu.used_bytes() == before);
    for (const auto& part : world.parts) CHECK(world.is_intact(part));
    world.end();
}

TEST_CASE("dropped contents cost no copy and no host memory") {
    World world;
    const auto released = world.domain->release(both, Contents::drop, {});
    REQUIRE(released);
    CHECK(released->copied_bytes == 0);
    CHECK(world.gpu.used_bytes() == 0);
    CHECK(world.gpu.slabs.empty());
    const auto resumed = world.domain->resume(both);
    REQUIRE(resumed);
    CHECK(resumed->copied_bytes == 0);
    for (const auto& part : world.parts) CHECK(world.is_mapped(part));
    world.end();
}

TEST_CASE("what is kept after a drop is the new contents") {
    World world;
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    REQUIRE(world.domain->resume(weights));
    REQUIRE(world.domain->release(weights, Contents::drop, {}));
    REQUIRE(world.domain->resume(weights));
    for (auto& part : world.parts) world.fill({part.address, part.bytes, part.seed += 10});
    REQUIRE(world.domain->release(both, Contents::keep, {}));
    REQUIRE(world.domain->resume(both));
    for (const auto& part : world.parts) CHECK(world.is_intact(part));
    world.end();
}

TEST_CASE("tags of one release may differ in what becomes of their contents") {
    World world;
    constexpr std::array<TagRelease, 2> mixed = {TagRelease{"kv_cache", Contents::drop},
                                                 TagRelease{"weights", Contents::keep}};
    const auto released = world.domain->release(mixed, {});
    REQUIRE(released);
    CHECK(released->device_bytes == 3 * chunk + 3 * unit);
    CHECK(released->copied_bytes == 2 * chunk + unit + 3 + 5);
    CHECK(world.gpu.slabs.size() == 2);
    REQUIRE(world.domain->resume(both));
    CHECK(world.is_intact(world.parts[0]));
    CHECK(world.is_intact(world.parts[1]));
    CHECK(world.is_mapped(world.parts[2]));

    constexpr std::array<TagRelease, 2> differing = {TagRelease{"weights", Contents::drop},
                                                     TagRelease{"weights", Contents::keep}};
    const std::string before = seen(world);
    const auto refused = world.domain->release(differing, {});
    REQUIRE(!refused);
    CHECK(refused.error().code == Errc::invalid_argument);
    CHECK(seen(world) == before);
    world.end();
}

TEST_CASE("what is kept can be read while it is released, and at no other time") {
    World world;
    const World::Part& part = world.parts[0];
    CHECK(world.domain->kept(part.address, 1) == nullptr);
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    for (const std::uint64_t at : {std::uint64_t{0}, chunk + 1, part.bytes - 1}) {
        const std::byte* const byte = world.domain->kept(part.address + at, part.bytes - at);
        REQUIRE(byte != nullptr);
        CHECK(*byte == World::expected(part, at));
    }
    CHECK(world.domain->kept(part.address + 1, part.bytes) == nullptr);  // reaches out of it
    CHECK(world.domain->kept(part.address + part.bytes, 1) == nullptr);
    CHECK(world.domain->kept(world.parts[2].address, 1) == nullptr);
    REQUIRE(world.domain->resume(weights));
    CHECK(world.domain->kept(part.address, 1) == nullptr);  // the slab is there, and stale
    REQUIRE(world.domain->release(weights, Contents::drop, {}));
    CHECK(world.domain->kept(part.address, 1) == nullptr);
    world.end();
}

TEST_CASE("misuse has its own errors and changes nothing") {
    World world;
    const auto code = [](const auto& result) {
        return result ? Errc::system : result.error().code;
    };
    constexpr std::array<std::string_view, 2> one_unknown = {"weights", "wieghts"};
    constexpr std::array<std::string_view, 3> twice = {"weights", "kv_cache", "weights"};
    const std::string before = seen(world);
    CHECK(code(world.domain->release({}, Contents::keep, {})) == Errc::invalid_argument);
    CHECK(code(world.domain->resume({})) == Errc::invalid_argument);
    CHECK(code(world.domain->release(one_unknown, Contents::keep, {})) == Errc::not_found);
    CHECK(code(world.domain->resume(weights)) == Errc::not_released);
    CHECK(code(world.domain->allocate("", 1)) == Errc::invalid_argument);
    CHECK(code(world.domain->allocate(std::string(64, 'x'), 1)) == Errc::invalid_argument);
    CHECK(code(world.domain->allocate("weights", 0)) == Errc::invalid_argument);
    CHECK(code(world.domain->allocate("weights", ~std::uint64_t{0})) == Errc::out_of_device_memory);
    CHECK(code(world.domain->free(world.parts[0].address + unit)) == Errc::invalid_argument);
    CHECK(code(world.domain->free(nullptr)) == Errc::invalid_argument);
    CHECK(seen(world) == before);

    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    const std::string after = seen(world);
    CHECK(code(world.domain->release(weights, Contents::keep, {})) == Errc::already_released);
    CHECK(code(world.domain->release(both, Contents::drop, {})) == Errc::already_released);
    CHECK(code(world.domain->resume(both)) == Errc::not_released);
    CHECK(code(world.domain->allocate("weights", 1)) == Errc::already_released);
    CHECK(seen(world) == after);
    REQUIRE(world.domain->resume(weights));
    const auto report = world.domain->release(twice, Contents::keep, {});
    REQUIRE(report);
    CHECK(report->copied_bytes == 3 * chunk + unit + 3 + 5);
    REQUIRE(world.domain->resume(twice));
    for (const auto& part : world.parts) CHECK(world.is_intact(part));
    world.end();
}

TEST_CASE("a full device fails the resume before it costs anything, and not for good") {
    World world;
    REQUIRE(world.domain->release(both, Contents::keep, {}));
    world.gpu.others_bytes = world.gpu.capacity_bytes - 2 * chunk;
    std::vector<std::string> calls;
    world.gpu.fails = [&](std::string_view call) {
        calls.emplace_back(call);
        return false;
    };
    const std::string before = seen(world);
    const auto resumed = world.domain->resume(both);
    REQUIRE(!resumed);
    CHECK(resumed.error().code == Errc::out_of_device_memory);
    CAPTURE(resumed.error().message);
    CHECK(resumed.error().message.contains("needed"));
    CHECK(std::ranges::find(calls, "create") == calls.end());
    CHECK(seen(world) == before);
    REQUIRE(world.domain->resume(cache));  // for this one there is room
    world.gpu.others_bytes = 0;
    REQUIRE(world.domain->resume(weights));
    for (const auto& part : world.parts) CHECK(world.is_intact(part));
    world.end();
}

TEST_CASE("a device that fills up while memory is mapped is out of memory too") {
    World world;
    REQUIRE(world.domain->release(both, Contents::keep, {}));
    int created = 0;
    world.gpu.fails = [&](std::string_view call) {
        if (call == "create" && ++created == 3) world.gpu.others_bytes = world.gpu.capacity_bytes;
        return false;
    };
    const std::string before = seen(world);
    const auto resumed = world.domain->resume(both);
    REQUIRE(!resumed);
    CHECK(resumed.error().code == Errc::out_of_device_memory);
    CHECK(resumed.error().message.contains("needed"));
    CHECK(seen(world) == before);
    world.gpu.others_bytes = 0;
    REQUIRE(world.domain->resume(both));
    for (const auto& part : world.parts) CHECK(world.is_intact(part));
    world.end();
}

TEST_CASE("release waits for the streams it is given, and for the device without any") {
    int one = 0;
    World world;
    world.gpu.busy = {&one};
    const Stream stream{&one};
    REQUIRE(world.domain->release(weights, Contents::keep, {&stream, 1}));
    world.gpu.busy = {&one};
    REQUIRE(world.domain->release(cache, Contents::drop, {}));
    CHECK(world.gpu.busy.empty());
    REQUIRE(world.domain->resume(both));
    world.gpu.busy = {&one};
    REQUIRE(world.domain->free(world.parts[2].address));
    world.gpu.busy = {&one};
    world.end();
}

TEST_CASE("slabs are kept for the next release until they are trimmed") {
    World world;
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    CHECK(world.gpu.slabs.size() == 2);
    CHECK(world.domain->trim_host() == 0);  // they hold the weights
    REQUIRE(world.domain->resume(weights));
    CHECK(world.gpu.slabs.size() == 2);
    CHECK(world.domain->tags()[0].host_bytes == 2 * chunk + unit + 3 + 5);
    world.gpu.fails = [](std::string_view call) { return call == "pin"; };
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    REQUIRE(world.domain->resume(weights));
    CHECK(world.is_intact(world.parts[0]));
    CHECK(world.domain->trim_host() == 2 * chunk + unit + 3 + 5);
    CHECK(world.gpu.slabs.empty());
    CHECK(world.domain->tags()[0].host_bytes == 0);
    world.end();
}

TEST_CASE("too little host memory changes nothing, and dropping needs none") {
    World world;
    world.gpu.host_limit_bytes = 2 * chunk + unit + 3 + 5 + chunk - 1;  // the last slab fails
    const std::string before = seen(world);
    const auto released = world.domain->release(both, Contents::keep, {});
    REQUIRE(!released);
    CHECK(released.error().code == Errc::host_memory);
    CHECK(seen(world) == before);
    REQUIRE(world.domain->release(cache, Contents::drop, {}));
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    world.end();
}

TEST_CASE("regions of released tags can be freed, and a tag ends with its last one") {
    World world;
    REQUIRE(world.domain->release(weights, Contents::keep, {}));
    REQUIRE(world.domain->free(world.parts[0].address));
    REQUIRE(world.domain->resume(weights));
    CHECK(world.is_intact(world.parts[1]));
    REQUIRE(world.domain->free(world.parts[1].address));
    REQUIRE(world.domain->tags().size() == 1);
    CHECK(world.domain->tags()[0].tag == "kv_cache");
    CHECK(world.gpu.used_bytes() == chunk);
    CHECK(world.gpu.slabs.empty());
    world.end();
}

TEST_CASE("a domain without CUDA or with odd chunks does not open") {
    const auto odd = MemoryDomain::open(Device::cuda(0), {.chunk_bytes = (2 << 20) + 1});
    REQUIRE(!odd);
    CHECK(odd.error().code == Errc::invalid_argument);
    CHECK(MemoryDomain::open(Device::cuda(0), {.chunk_bytes = 0}).error().code ==
          Errc::invalid_argument);
    if (why_no_gpu().empty()) return;
    const auto none = MemoryDomain::open(Device::cuda(0));
    REQUIRE(!none);
    CHECK(none.error().code == Errc::no_gpu);
}

}  // namespace
}  // namespace rollring::test
