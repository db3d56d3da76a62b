// A look at a ring's requests from outside: the worker that has each, since when, and the outcome
// of all.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "rollring/extras/requests.hpp"
#include "rollring/ring.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

RequestsStat requests_of(const TestRing& ring) {
    auto stat = stat_requests(ring.name());
    REQUIRE_MESSAGE(stat.has_value(), (stat ? "" : stat.error().to_string()));
    const std::uint64_t over = stat->answered + stat->given_up + stat->withdrawn;
    CHECK(stat->posted == stat->waiting + stat->taken + over);
    return std::move(*stat);
}

RequestBoard board_of(const TestRing& ring, const RequestBoardOptions& options = {}) {
    auto board = RequestBoard::open(ring.name(), options);
    REQUIRE(board.has_value());
    return std::move(*board);
}

RequestWorker worker_of(const TestRing& ring, std::string_view name) {
    auto worker = RequestWorker::open(ring.name(), name);
    REQUIRE(worker.has_value());
    return std::move(*worker);
}

std::uint64_t post(RequestBoard& board) {
    const std::string body = "prompt";
    auto number = board.post(std::as_bytes(std::span(body)), Deadline::now());
    REQUIRE(number.has_value());
    return *number;
}

TakenRequest take(RequestWorker& worker) {
    auto taken = worker.take(patience());
    REQUIRE(taken.has_value());
    REQUIRE(taken->has_value());
    return **taken;
}

}  // namespace

TEST_CASE("requests stat: nobody has asked for anything, and the look takes no memory") {
    const TestRing ring;
    const std::uint64_t before = stat_ring(ring.name())->resident_bytes;
    const RequestsStat stat = requests_of(ring);
    CHECK_FALSE(stat.used);
    CHECK_FALSE(stat.board_alive);
    CHECK(stat.places == 1024);
    CHECK(stat.workers.empty());
    CHECK(stat.requests.empty());
    CHECK(stat.oldest_waiting_ns == -1);
    CHECK(stat_ring(ring.name())->resident_bytes == before);
    const TestRing without({.lanes = 1, .lane_bytes = 1 << 20, .requests = 0});
    CHECK(requests_of(without).places == 0);
    CHECK(stat_requests("not-there").error().code == Errc::not_found);
}

TEST_CASE("requests stat: who has what since when, and what came of each") {
    const TestRing ring;
    RequestBoard board = board_of(ring, {.attempts = 2});
    RequestWorker first = worker_of(ring, "first");
    RequestWorker second = worker_of(ring, "sec\x1bond");
    const std::uint64_t oldest = post(board);
    while (requests_of(ring).requests[0].age_ns < 2'000'000) {
    }
    const std::uint64_t next = post(board);
    post(board);
    RequestsStat stat = requests_of(ring);
    CHECK(stat.used);
    CHECK(stat.board_alive);
    CHECK(stat.board_pid == static_cast<std::uint32_t>(getpid()));
    CHECK(stat.attempts == 2);
    CHECK(stat.waiting == 3);
    CHECK(stat.workers_alive == 2);
    REQUIRE(stat.requests.size() == 3);
    CHECK(stat.requests[0].number == oldest);
    CHECK(stat.requests[0].state == RequestState::waiting);
    CHECK(stat.requests[0].age_ns >= 2'000'000);
    CHECK(stat.requests[0].unchanged_ns == stat.requests[0].age_ns);
    CHECK(stat.requests[0].bytes == 6);
    CHECK(stat.requests[0].worker.empty());
    CHECK(stat.oldest_waiting_ns == stat.requests[0].age_ns);

    const TakenRequest a = take(first);
    const TakenRequest b = take(second);
    stat = requests_of(ring);
    CHECK(stat.waiting == 1);
    CHECK(stat.taken == 2);
    CHECK(stat.requests[0].state == RequestState::taken);
    CHECK(stat.requests[0].worker == "first (seat 0)");
    CHECK(stat.requests[1].worker == "sec?ond (seat 1)");
    CHECK(stat.requests[0].unchanged_ns < stat.requests[0].age_ns);
    CHECK(stat.oldest_taken_ns >= stat.requests[1].unchanged_ns);
    REQUIRE(stat.workers.size() == 2);
    CHECK(stat.workers[0].taken == 1);
    CHECK(stat.workers[0].oldest_ns == stat.requests[0].unchanged_ns);

    CHECK(first.finish(a));
    CHECK(board.withdraw(next));
    CHECK(board.withdraw(next));  // once is enough
    stat = requests_of(ring);
    CHECK(stat.answered == 1);
    CHECK(stat.withdrawn == 1);
    CHECK(stat.taken == 0);
    REQUIRE(stat.requests.size() == 2);
    CHECK(stat.requests[0].state == RequestState::withdrawn);
    CHECK(stat.workers[1].taken == 1);
    CHECK_FALSE(second.finish(b));
    CHECK(requests_of(ring).answered == 1);

    CHECK(first.give_back(take(first)));
    stat = requests_of(ring);
    CHECK(stat.requests[0].attempt == 1);
    CHECK(stat.requests[0].state == RequestState::waiting);
    CHECK(second.give_back(take(second)));
    stat = requests_of(ring);
    CHECK(stat.given_up == 1);
    CHECK(stat.requests[0].state == RequestState::given_up);
    CHECK(board.given_up(patience())->size() == 1);
    CHECK(requests_of(ring).requests.empty());
    CHECK(requests_of(ring).given_up == 1);
}

TEST_CASE("requests stat: a worker that dies is seen, and the board after the last one counts on") {
    const TestRing ring;
    {
        RequestBoard board = board_of(ring);
        post(board);
        post(board);
        CHECK(test::in_child([&] {
                  auto doomed = RequestWorker::open(ring.name(), "doomed");
                  auto taken = doomed->take(patience());
                  std::_Exit(taken.has_value() && taken->has_value() ? 7 : 1);  // no destructor
                  return 0;
              }) == 7);
        RequestsStat stat = requests_of(ring);
        CHECK(stat.workers_alive == 0);
        REQUIRE(stat.workers.size() == 1);
        CHECK(stat.workers[0].name == "doomed");
        CHECK_FALSE(stat.workers[0].alive);
        CHECK(stat.workers[0].taken == 1);
        CHECK(stat.requests[0].worker == "doomed (seat 0)");
        RequestWorker heir = worker_of(ring, "heir");
        CHECK(heir.finish(take(heir)));
    }
    RequestsStat stat = requests_of(ring);
    CHECK_FALSE(stat.board_alive);
    CHECK(stat.withdrawn == 1);
    CHECK(stat.answered == 1);
    RequestBoard board = board_of(ring);
    post(board);
    stat = requests_of(ring);
    CHECK(stat.board_epoch == 2);
    CHECK(stat.posted == 3);
    CHECK(stat.waiting == 1);
}
