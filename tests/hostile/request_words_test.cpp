// Overwritten words of a ring's requests: both ends stay within their memory and their time, and
// new ones work again.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "request_layout.hpp"
#include "rollring/extras/requests.hpp"
#include "support/splitmix64.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using namespace rollring::test;
using requests::RequestEntry;
using requests::RequestGeometry;
using requests::State;
using requests::Word;

namespace {

constexpr std::uint32_t places = 4;

// A word that says what may be, or anything.
std::uint64_t rubbish(Dice& dice) {
    if (dice.below(4) == 0) return dice.next();
    return Word{static_cast<State>(dice.below(8)), dice.below(2) == 0,
                static_cast<std::uint32_t>(dice.below(32)),
                static_cast<std::uint32_t>(dice.below(3)),
                static_cast<std::uint32_t>(dice.below(1 << 22))}
        .packed();
}

}  // namespace

TEST_CASE("words: whatever the entries of requests say, both ends go on") {
    const TestRing ring(
        {.lanes = 1, .lane_bytes = 64 << 10, .requests = places, .request_bytes = 4096});
    REQUIRE(RequestBoard::open(ring.name()).has_value());
    const auto segment = Segment::attach(ring.name(), patience());
    const auto object = Companion::look(*segment, requests::kind, Access::read_write);
    REQUIRE(object.has_value());
    const std::uint64_t at = RequestGeometry::shared_offset();
    const std::uint64_t entries = RequestGeometry::entries_offset() - at;
    const auto all = object->map(at, entries + places * sizeof(RequestEntry), true);
    REQUIRE(all.has_value());
    Dice dice{7};
    const std::vector<std::byte> body(100);
    std::uint64_t taken_ever = 0;
    for (int round = 0; round < 40; round++) {
        {
            auto board = RequestBoard::open(ring.name());
            auto worker = RequestWorker::open(ring.name());
            REQUIRE(board.has_value());
            REQUIRE(worker.has_value());
            std::vector<TakenRequest> has;
            for (int step = 0; step < 500; step++) {
                auto& entry =
                    all->at<RequestEntry>(entries + dice.below(places) * sizeof(RequestEntry));
                switch (dice.below(9)) {
                    case 0:
                        entry.word = rubbish(dice);
                        break;
                    case 1:
                        entry.bytes = dice.below(2) == 0 ? dice.next() : dice.below(8192);
                        break;
                    case 2: {  // bells, control, seats
                        const std::uint64_t word = dice.next();
                        std::memcpy(all->data() + dice.below(entries / 8) * 8, &word, sizeof word);
                        break;
                    }
                    case 3:
                        static_cast<void>(board->post(body, Deadline::now()));
                        break;
                    case 4:
                        static_cast<void>(board->withdraw(dice.next()));
                        static_cast<void>(board->given_up(Deadline::now()));
                        break;
                    case 5:
                        if (auto taken = worker->take(Deadline::now()); taken && *taken) {
                            CHECK((*taken)->body.size() <= 4096);
                            has.push_back(**taken);
                            taken_ever++;
                        }
                        break;
                    default:
                        if (has.empty()) break;
                        static_cast<void>(dice.below(2) == 0 ? worker->finish(has.back())
                                                             : worker->give_back(has.back()));
                        has.pop_back();
                        break;
                }
            }
        }
        auto board = RequestBoard::open(ring.name());
        auto worker = RequestWorker::open(ring.name());
        REQUIRE(board.has_value());
        REQUIRE(worker.has_value());
        for (std::uint32_t i = 0; i < 3 * places; i++) {
            const auto number = board->post(body, patience());
            REQUIRE(number.has_value());
            const auto taken = worker->take(patience());
            REQUIRE(taken.has_value());
            REQUIRE(taken->has_value());
            CHECK((*taken)->number == *number);
            CHECK((*taken)->body.size() == body.size());
            CHECK(worker->finish(**taken));
        }
    }
    CHECK(taken_ever > 100);
}
