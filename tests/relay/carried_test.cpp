// Goal: a successor of a carrier knows what was carried, and which places of groups it still has,
// wherever its predecessor died.
#include "extras/relay/carried.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace rollring;
using namespace rollring::relay;

namespace {

constexpr std::uint32_t lanes = 3;
constexpr std::uint64_t source = 71;
constexpr std::uint64_t destination = 72;
constexpr std::uint32_t lane = 1;  // of the destination

// Memory that outlives a carrier.
class Memory {
  public:
    [[nodiscard]] Carried open(std::uint64_t from = source, std::uint64_t to = destination) {
        return {std::as_writable_bytes(std::span(words_)), from, to, lanes};
    }

  private:
    std::vector<std::uint64_t> words_ =
        std::vector<std::uint64_t>(Carried::bytes(lanes) / sizeof(std::uint64_t) + 1);
};

Places::Place place(std::uint64_t key, std::uint64_t worker = 5) {
    return {{key, 9}, {8, 4096}, worker};
}

std::vector<std::uint64_t> keys(const std::vector<Places::Place>& places) {
    std::vector<std::uint64_t> found;
    found.reserve(places.size());
    for (const Places::Place& one : places) found.push_back(one.key.low);
    std::ranges::sort(found);
    return found;
}

}  // namespace

TEST_CASE("carried: what was noted and is visible is known, what is not visible comes again") {
    Memory memory;
    {
        Carried first = memory.open();
        CHECK(first.recover(lane, 0).empty());
        first.note(0, 64, 1000);   // the record at 64 of lane 0 lies at 1000
        first.note(2, 128, 2000);  // and is not visible when its carrier dies
        CHECK(first.has(0, 64));
        CHECK(first.has(2, 128));
    }
    Carried second = memory.open();
    CHECK(second.recover(lane, 1500).empty());  // the lane ends at 1500
    CHECK(second.has(0, 64));
    CHECK_FALSE(second.has(0, 65));
    CHECK_FALSE(second.has(2, 128));
    CHECK_FALSE(second.has(1, 0));
}

TEST_CASE("carried: what was settled is known, whichever lane the successor has") {
    Memory memory;
    {
        Carried first = memory.open();
        static_cast<void>(first.recover(lane, 0));
        first.note(0, 64, 1000);
        first.settle();
        first.note(0, 192, 3000);
    }
    Carried other = memory.open();
    static_cast<void>(other.recover(lane + 1, 1 << 20));  // a lane in which nothing of ours lies
    CHECK(other.has(0, 64));
    CHECK_FALSE(other.has(0, 192));
}

TEST_CASE("carried: memory of other rings says nothing") {
    Memory memory;
    {
        Carried first = memory.open();
        static_cast<void>(first.recover(lane, 0));
        first.places().add(place(1));
        first.note(0, 64, 1000);
        first.settle();
    }
    for (const auto& [from, to] : {std::pair(source + 1, destination), {source, destination + 1}}) {
        Carried other = memory.open(from, to);
        CHECK(other.recover(lane, 1 << 20).empty());
        CHECK_FALSE(other.has(0, 64));
    }
}

TEST_CASE("carried: it is settled before it is full") {
    Memory memory;
    Carried carried = memory.open();
    static_cast<void>(carried.recover(lane, 0));
    std::uint64_t position = 0;
    for (; !carried.is_full(); position += 64) carried.note(0, position, position);
    carried.settle();
    CHECK_FALSE(carried.is_full());
    CHECK(carried.has(0, position - 64));
    CHECK_FALSE(carried.has(0, position));
}

TEST_CASE("places: a successor has those in whose groups nothing visible was sent") {
    Memory memory;
    {
        Carried first = memory.open();
        static_cast<void>(first.recover(lane, 0));
        Places& places = first.places();
        for (std::uint64_t key = 1; key <= 4; key++) places.add(place(key, key));
        places.note_sent(place(1).key, 1000);
        places.note_sent(place(2).key, 2000);
        places.remove(place(3).key);
        CHECK_FALSE(places.has(place(1).key));
        CHECK(places.has(place(4).key));
    }
    Carried second = memory.open();
    const auto had = second.recover(lane, 1500);
    CHECK(keys(had) == std::vector<std::uint64_t>{2, 4});
    CHECK(had.front().plan.group_size == 8);
    CHECK(had.front().plan.record_bytes == 4096);
    CHECK(second.places().workers() == std::vector<std::uint64_t>{2, 4});
    CHECK(second.places().of(4).size() == 1);
}

TEST_CASE("places: one that was passed on is the other group's, after a death too") {
    Memory memory;
    {
        Carried first = memory.open();
        static_cast<void>(first.recover(lane, 0));
        first.places().add(place(1, Places::nobody));
        CHECK(first.places().workers().empty());
        first.places().pass(place(1).key, place(2).key, 6);
        first.places().pass(place(7).key, place(8).key, 6);  // there is none: no effect
    }
    Carried second = memory.open();
    CHECK(keys(second.recover(lane, 0)) == std::vector<std::uint64_t>{2});
    CHECK(second.places().workers() == std::vector<std::uint64_t>{6});
}

TEST_CASE("places: a slot is free again once what was sent is visible") {
    Memory memory;
    Carried carried = memory.open();
    static_cast<void>(carried.recover(lane, 0));
    Places& places = carried.places();
    for (std::uint64_t key = 0; key < Places::most; key++) places.add(place(key));
    CHECK(places.is_full());
    places.note_sent(place(0).key, 64);
    CHECK(places.is_full());
    carried.settle();
    CHECK_FALSE(places.is_full());
}
