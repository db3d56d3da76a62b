// The pages of a lane that records go round in are mapped before the first record is.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::TestRing;

namespace {

constexpr std::uint64_t soft_bytes = 2 << 20;

// Of the ring's object, in the page table of this process.
std::uint64_t mapped_bytes(const TestRing& ring) {
    std::ifstream maps("/proc/self/smaps");
    std::string line;
    bool ours = false;
    std::uint64_t sum = 0;
    while (std::getline(maps, line)) {
        if (line.find('-') < line.find(' ')) ours = line.ends_with("." + ring.name());
        std::uint64_t kib = 0;
        std::string word;
        if (ours && std::istringstream(line) >> word >> kib && word == "Rss:") sum += kib << 10;
    }
    return sum;
}

bool kernel_populates() {
    constexpr int populate_write = 23;
    alignas(4096) static std::array<std::byte, 4096> page;
    return madvise(page.data(), page.size(), populate_write) == 0;
}

}  // namespace

TEST_CASE("pages: neither side touches a page of a drained lane for the first time") {
    if (!kernel_populates()) return;
    const TestRing ring({.lanes = 2, .lane_bytes = 16 << 20, .soft_bytes = soft_bytes});
    auto consumer = ring.consumer();
    const std::uint64_t before = mapped_bytes(ring);
    CHECK(before < soft_bytes);
    auto producer = ring.producer();
    const std::uint64_t produced = mapped_bytes(ring);
    CHECK(produced >= before + soft_bytes);
    CHECK(produced < before + 2 * soft_bytes);  // and not all of the lane
    Record record;
    const auto poll = [&] {  // a poll that finds nothing maps a part
        for (int i = 0; i < 64; i++) CHECK(consumer.poll(record) == Poll::empty);
    };
    poll();
    CHECK(mapped_bytes(ring) >= produced + soft_bytes);
    CHECK(mapped_bytes(ring) < produced + 2 * soft_bytes);

    // The lane's pages are given back when its producer closes; the next one's are there, too.
    producer.close();
    rollring::test::await_close(consumer);
    auto next = ring.producer();
    poll();
    CHECK(mapped_bytes(ring) >= before + 2 * soft_bytes);
}
