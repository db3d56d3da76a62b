// Every call of a memory domain with every driver call in it failing, alone, together with any
// later one, and with all that follow: typed errors, nothing changed where the way back did not
// fail too, no contents lost in any case, the call works when tried again, and nothing is left
// behind at the end.

#include <doctest/doctest.h>

#include <functional>

#include "domain_world.hpp"

namespace rollring::test {
namespace {

struct Action {
    const char* name;
    std::function<void(World&)> prepare;
    std::function<Result<void>(World&)> act;
    std::function<void(World&)> check;  // after it worked
};

struct Fault {
    static constexpr int never = 0;
    static constexpr int all_later = -1;
    int first;
    int second;

    [[nodiscard]] bool hits(int call) const {
        return call == first || call == second || (second == all_later && call > first);
    }
};

Result<void> release(World& world, std::span<const std::string_view> tags, Contents contents) {
    const std::uint64_t before = world.gpu.used_bytes();
    const auto report = world.domain->release(tags, contents, {});
    if (!report) return std::unexpected(report.error());
    CHECK(report->device_bytes == before - world.gpu.used_bytes());
    return {};
}

Result<void> resume(World& world, std::span<const std::string_view> tags) {
    const auto report = world.domain->resume(tags);
    if (!report) return std::unexpected(report.error());
    return {};
}

void nothing(World&) {}

void bring_back(World& world) {
    for (const TagStat& tag : world.domain->tags()) {
        const std::array<std::string_view, 1> name = {tag.tag};
        if (!tag.resident) REQUIRE(world.domain->resume(name));
    }
}

void all_intact(World& world) {
    bring_back(world);
    for (const auto& part : world.parts) CHECK(world.is_intact(part));
}

void all_mapped(World& world) {
    for (const auto& part : world.parts) CHECK(world.is_mapped(part));
    CHECK(world.gpu.used_bytes() == 3 * chunk + 3 * unit);
    CHECK(world.is_intact(world.parts[2]));
}

void cache_freed(World& world) {
    REQUIRE(world.domain->allocate("other", 1));  // discards the memory that the driver refused
    bring_back(world);
    CHECK(world.gpu.used_bytes() == 2 * chunk + 4 * unit);
    CHECK(world.gpu.ranges.size() == 3);
    CHECK(world.domain->tags().size() == 2);
    CHECK(world.is_intact(world.parts[0]));
}

const std::vector<Action>& actions() {
    static const std::vector<Action> all = {
        {"allocate", nothing,
         [](World& world) -> Result<void> {
             const auto address = world.domain->allocate("weights", 2 * chunk + 1);
             if (!address) return std::unexpected(address.error());
             world.parts.push_back({static_cast<std::byte*>(*address), 2 * chunk + 1, 9});
             world.fill(world.parts.back());
             return {};
         },
         all_intact},
        {"free", nothing, [](World& world) { return world.domain->free(world.parts[2].address); },
         cache_freed},
        {"free what is released",
         [](World& world) { REQUIRE(release(world, both, Contents::keep)); },
         [](World& world) { return world.domain->free(world.parts[2].address); }, cache_freed},
        {"release and pin", nothing,
         [](World& world) { return release(world, both, Contents::keep); }, all_intact},
        {"release into slabs",
         [](World& world) {
             REQUIRE(release(world, weights, Contents::keep));
             REQUIRE(resume(world, weights));
         },
         [](World& world) { return release(world, both, Contents::keep); }, all_intact},
        {"drop", nothing, [](World& world) { return release(world, weights, Contents::drop); },
         [](World& world) {
             bring_back(world);
             all_mapped(world);
         }},
        {"resume", [](World& world) { REQUIRE(release(world, both, Contents::keep)); },
         [](World& world) { return resume(world, both); }, all_intact},
        {"resume what was dropped",
         [](World& world) { REQUIRE(release(world, weights, Contents::drop)); },
         [](World& world) { return resume(world, weights); }, all_mapped},
        {"trim",
         [](World& world) {
             REQUIRE(release(world, both, Contents::keep));
             REQUIRE(resume(world, both));
         },
         [](World& world) -> Result<void> {
             const std::uint64_t before = world.gpu.pinned_bytes();
             const std::uint64_t trimmed = world.domain->trim_host();
             CHECK(trimmed == before - world.gpu.pinned_bytes());
             return {};
         },
         all_intact},
    };
    return all;
}

// Whether the second fault was reached.
struct Reached {
    bool first = false;
    bool second = false;
};

Reached run(const Action& action, Fault fault) {
    World world;
    action.prepare(world);
    const std::string before = seen(world);
    const std::size_t mappings = world.gpu.mappings.size();
    const bool dropping = std::string_view(action.name) == "resume what was dropped";
    int calls = 0;
    std::string failed;
    world.gpu.fails = [&](std::string_view call) {
        if (!fault.hits(++calls)) return false;
        if (failed.empty()) failed = call;
        return true;
    };
    const auto result = action.act(world);
    world.gpu.fails = [](std::string_view) { return false; };
    CAPTURE(action.name);
    CAPTURE(fault.first);
    CAPTURE(fault.second);
    CAPTURE(failed);
    if (!result) {
        CAPTURE(result.error().message);
        if (fault.second == Fault::never) {
            CHECK(result.error().code ==
                  (failed == "pin" ? Errc::host_memory : Errc::device_error));
            CHECK(seen(world) == before);
        }
        // Whatever is resident can be used, and whatever is not comes back as it was.
        for (const TagStat& tag : world.domain->tags()) {
            for (std::size_t i = 0; i < world.parts.size(); i++) {
                const bool mine = (i == 2) == (tag.tag == "kv_cache");
                if (mine && tag.resident && !dropping) CHECK(world.is_intact(world.parts[i]));
            }
        }
        if (world.gpu.mappings.size() != mappings && action.name != std::string_view("allocate")) {
            CHECK(result.error().message.contains("; "));  // it says what it left behind
        }
        const bool releasing = std::string_view(action.name).starts_with("rel") ||
                               std::string_view(action.name) == "drop";
        if (releasing) all_intact(world);
        REQUIRE(action.act(world));
    } else if (fault.second == Fault::never && fault.first <= calls) {
        CHECK((failed == "destroy" || failed == "unpin" || failed == "unreserve"));
    }
    action.check(world);
    world.end();
    return {fault.first <= calls, fault.second <= calls};
}

TEST_CASE("any one driver call fails") {
    for (const Action& action : actions()) {
        int n = 1;
        while (run(action, {n, Fault::never}).first) n++;
        CHECK(n > 2);
    }
}

TEST_CASE("any two driver calls fail") {
    for (const Action& action : actions()) {
        for (int n = 1; run(action, {n, Fault::never}).first; n++) {
            for (int m = n + 1; run(action, {n, m}).second; m++) {
            }
        }
    }
}

TEST_CASE("a driver fails for a while, from any call on") {
    for (const Action& action : actions()) {
        for (int n = 1; run(action, {n, Fault::all_later}).first; n++) {
        }
    }
}

}  // namespace
}  // namespace rollring::test
