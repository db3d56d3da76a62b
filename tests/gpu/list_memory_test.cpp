// The memory of a list of differences, on a device that the test plays: the bytes that it is asked
// for, and those that a list gets when it has little.

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "list_memory.hpp"

namespace rollring::test {
namespace {

using cuda::ListMemory;
using cuda::Room;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t boundless = ~std::uint64_t{0};

// A device with this many bytes of memory.
struct Played {
    std::uint64_t free_bytes = 0;
    Errc failure = Errc::out_of_device_memory;
    std::vector<std::uint64_t> asked = {};

    // Memory of it, which is given back.
    struct Given {
        Played* of = nullptr;
        std::uint64_t bytes = 0;
        Given(Played* from, std::uint64_t size) : of(from), bytes(size) { of->free_bytes -= size; }
        Given(Given&& other) noexcept : of(std::exchange(other.of, nullptr)), bytes(other.bytes) {}
        Given& operator=(Given&& other) noexcept {
            std::swap(of, other.of);
            std::swap(bytes, other.bytes);
            return *this;
        }
        ~Given() {
            if (of != nullptr) of->free_bytes += bytes;
        }
    };
    ListMemory<Given> list(std::uint64_t chunk_bytes, std::uint64_t most = boundless) {
        const auto make = [this](std::uint64_t bytes) -> Result<Given> {
            asked.push_back(bytes);
            if (failure != Errc::out_of_device_memory) return refused(failure, "a capture goes on");
            if (bytes > free_bytes) return refused(failure, "no memory");
            return Given(this, bytes);
        };
        return {make, chunk_bytes, most};
    }
};

}  // namespace

TEST_CASE("a device with little memory gives a list as much as it needs") {
    Played device{.free_bytes = 12 * mib};
    auto list = device.list(32 * mib);
    list.clear(boundless, 0);
    // Nothing has changed yet, so that nothing is needed.
    CHECK(*list.grow(0) == Room::device);
    CHECK(list.now() == nullptr);
    CHECK(list.left() == 0);
    CHECK(*list.grow(1000) == Room::there);
    CHECK(list.left() == 1008);
    list.take(1000);
    CHECK(*list.grow(12 * mib) == Room::device);
    list.cut({0, 1000});
    CHECK(list.left() == 8);
}

TEST_CASE("an error of a device is neither a full list nor a lack of memory") {
    Played device{.free_bytes = 100 * mib, .failure = Errc::device_error};
    auto list = device.list(mib);
    list.clear(boundless, 0);
    const auto grown = list.grow(100);
    REQUIRE(!grown);
    CHECK(grown.error().code == Errc::device_error);
    CHECK(device.asked.size() == 1);
}

TEST_CASE("a list is bounded by its bound, and is not made larger than all that it can hold") {
    Played device{.free_bytes = 1000 * mib};
    auto list = device.list(mib, 20 * mib);
    list.clear(4 * mib, 0);
    CHECK(*list.grow(5 * mib) == Room::bound);
    CHECK(*list.grow(3 * mib) == Room::there);
    list.take(3 * mib);
    CHECK(*list.grow(2 * mib) == Room::bound);
    list.cut({0, 3 * mib});
    // A version that changes everything, and one that changes little: a list that may grow without
    // bound is not made larger than all values.
    list.clear(boundless, 0);
    list.clear(boundless, 25 * mib);
    CHECK(*list.grow(0) == Room::there);
    CHECK(list.allocated() == 20 * mib);
    list.clear(boundless, 0);
    CHECK(device.free_bytes == 1000 * mib);
    // It goes on behind the rests of chunks, into which an entry does not fit.
    CHECK(*list.grow(0) == Room::there);
    for (std::uint64_t taken = 0; taken < 20 * mib;) {
        const std::uint64_t entries = list.left() - 1000;
        list.take(entries);
        taken += entries;
        REQUIRE(*list.grow(2000) == Room::there);
    }
    CHECK(list.allocated() > 20 * mib);
    CHECK(list.allocated() <= 22 * mib);
    // A model smaller than a chunk.
    auto small = device.list(32 * mib, mib);
    small.clear(boundless, 0);
    CHECK(*small.grow(0) == Room::there);
    CHECK(small.allocated() == mib);
}

TEST_CASE("a list that has grown keeps what was taken, and becomes one piece") {
    Played device{.free_bytes = 1000 * mib};
    auto list = device.list(mib);
    list.clear(boundless, 0);
    CHECK(*list.grow(0) == Room::there);
    list.take(mib - 16);
    const auto before = list.end();
    CHECK(*list.grow(4 * mib) == Room::there);
    list.take(4 * mib);
    CHECK(list.left() == 0);
    list.cut(before);
    CHECK(list.left() == 16);
    // The chunk behind is there already.
    CHECK(*list.grow(100) == Room::there);
    CHECK(device.asked.size() == 2);
    list.clear(boundless, 6 * mib);
    CHECK(list.allocated() == 0);
    CHECK(*list.grow(0) == Room::there);
    CHECK(list.allocated() == 6 * mib);
    // Kept for a version that changes a little less, and for one that needs no list at all.
    list.clear(boundless, 6 * mib);
    CHECK(list.left() == 6 * mib);
    list.clear(0, 0);
    CHECK(device.free_bytes == 1000 * mib);
}

}  // namespace rollring::test
