// Damage in an overflow file: told, counted, and no dearer than the records that it hits.
#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <vector>

#include "layout.hpp"
#include "overflow_world.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("overflow: a record whose bytes have changed in the file is told, and the others come") {
    constexpr std::uint64_t groups = 12;
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    auto producer = ring.producer();
    {
        auto stash = open_stash(ring, pairs_of_any_order);
        open_groups(producer, *stash, 0, groups);
    }
    {
        // In the middle of the second record of those that lie in the file.
        std::fstream file(stat_of(ring).overflow_path,
                          std::ios::in | std::ios::out | std::ios::binary);
        const auto at = static_cast<std::streamoff>(256 * kib + 3 * record_bytes / 2);
        file.seekg(at);
        const char byte = static_cast<char>(file.get() ^ 1);
        file.seekp(at);
        file.put(byte);
        REQUIRE(file.good());
    }
    auto stash = open_stash(ring, pairs_of_any_order);
    std::uint64_t torn = 0;
    const Deadline deadline = patience();
    while (stash->stats().records + torn < groups && !deadline.passed()) {
        Batch none;
        CHECK(stash->next(none, Deadline::after_ms(5)) == NextBatch::timed_out);
        for (Event event{}; stash->next_event(event);) {
            if (event.kind != Event::Kind::torn) continue;
            CHECK(event.detail.find("checksum") != std::string::npos);
            torn++;
        }
    }
    CHECK(torn == 1);
    CHECK(stash->stats().records == groups - 1);
}

namespace {

// Where the frames of the spill begin, in the bytes of its overflow file.
std::vector<std::streamoff> frames_in(std::fstream& file, std::uint64_t bytes) {
    std::vector<std::streamoff> found;
    for (std::uint64_t at = 0; at + sizeof(Frame) <= bytes; at += line_bytes) {
        Frame frame;
        file.seekg(static_cast<std::streamoff>(at));
        file.read(reinterpret_cast<char*>(&frame), sizeof frame);
        const bool here = frame.magic == frame_magic && frame.position == at;
        if (here) found.push_back(static_cast<std::streamoff>(at));
    }
    return found;
}

}  // namespace

TEST_CASE("overflow: a damaged frame costs what it leads to, and the records behind it come") {
    constexpr std::uint64_t groups = 12;
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    auto producer = ring.producer();
    {
        auto stash = open_stash(ring, pairs_of_any_order);
        open_groups(producer, *stash, 0, groups);
    }
    std::uint64_t lost = 1;
    {
        std::fstream file(stat_of(ring).overflow_path,
                          std::ios::in | std::ios::out | std::ios::binary);
        const auto frames = frames_in(file, groups * record_bytes);
        REQUIRE(frames.size() > 5);
        const auto zero = [&](std::streamoff from, std::streamoff to) {
            file.seekp(from);
            file << std::string(static_cast<std::size_t>(to - from), '\0');
        };
        SUBCASE("a frame of zeros") {
            zero(frames[2], frames[2] + 64);
        }
        SUBCASE("three records of zeros") {
            zero(frames[2] + 64, frames[4] + 640);
            lost = 3;
        }
        SUBCASE("a frame that claims a lane which is none") {
            file.seekp(frames[2] + static_cast<std::streamoff>(offsetof(Frame, lane)));
            file << '\x7f';
        }
        REQUIRE(file.good());
    }
    for (int successor = 0; successor < 2; successor++) {
        auto stash = open_stash(ring, pairs_of_any_order);
        std::uint64_t torn = 0;
        const Deadline deadline = patience();
        for (bool all = false; !all && !deadline.passed();) {
            all = stash->stats().records == groups - lost;
            Batch none;
            CHECK(stash->next(none, Deadline::after_ms(5)) == NextBatch::timed_out);
            for (Event event{}; stash->next_event(event);) {
                CHECK(event.kind != Event::Kind::quarantined);
                torn += event.kind == Event::Kind::torn ? 1U : 0U;
            }
        }
        CHECK(stash->stats().records == groups - lost);
        CHECK(stash->stats().quarantines == 0);
        // The first one tells of it; records that it gave up are released for good.
        if (successor == 0) CHECK(torn >= 1);
        if (successor == 1) CHECK(torn == 0);
    }
    // The run goes on over it.
    auto stash = open_stash(ring, pairs_of_any_order);
    open_groups(producer, *stash, groups, groups + 6);
    CHECK(stash->account().conserved());
}
