// Requests: each is taken by one worker, comes back if that one lets go of it or dies, and is given
// up when it has been begun too often.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rollring/extras/requests.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

RequestBoard board_of(const TestRing& ring, const RequestBoardOptions& options = {}) {
    auto board = RequestBoard::open(ring.name(), options);
    REQUIRE_MESSAGE(board.has_value(), (board ? "" : board.error().to_string()));
    return std::move(*board);
}

RequestWorker worker_of(const TestRing& ring) {
    auto worker = RequestWorker::open(ring.name());
    REQUIRE_MESSAGE(worker.has_value(), (worker ? "" : worker.error().to_string()));
    return std::move(*worker);
}

std::uint64_t post(RequestBoard& board, std::string_view body) {
    auto number = board.post(std::as_bytes(std::span(body)), Deadline::now());
    REQUIRE_MESSAGE(number.has_value(), (number ? "" : number.error().to_string()));
    return *number;
}

TakenRequest take(RequestWorker& worker) {
    auto taken = worker.take(patience());
    REQUIRE(taken.has_value());
    REQUIRE(taken->has_value());
    return **taken;
}

std::string text(const TakenRequest& request) {
    return {reinterpret_cast<const char*>(request.body.data()), request.body.size()};
}

bool nothing(RequestWorker& worker) {
    const auto taken = worker.take(Deadline::now());
    return taken.has_value() && !taken->has_value();
}

// The objects beside rings of this name.
std::vector<std::filesystem::path> beside(const TestRing& ring) {
    std::vector<std::filesystem::path> found;
    const std::string start = fmt::format("rollring.{}.{}~", getuid(), ring.name());
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        if (entry.path().filename().string().starts_with(start)) found.push_back(entry.path());
    }
    return found;
}

void make_again(const TestRing& ring) {
    REQUIRE(create_ring(ring.name(), {.lanes = 1, .lane_bytes = 1 << 20, .spill_bytes = 1 << 20})
                .has_value());
}

// As a remover leaves it that is killed in the middle.
void take_name_away(const TestRing& ring) {
    REQUIRE(std::filesystem::remove(fmt::format("/dev/shm/rollring.{}.{}", getuid(), ring.name())));
}

}  // namespace

TEST_CASE("requests: the oldest first, each to one worker, and its place is free again") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20, .requests = 3});
    RequestBoard board = board_of(ring);
    RequestWorker first = worker_of(ring);
    RequestWorker second = worker_of(ring);
    CHECK(nothing(first));
    for (int round = 0; round < 100; round++) {
        std::set<std::uint64_t> numbers;
        for (const char* body : {"a", "", "c"}) numbers.insert(post(board, body));
        CHECK(numbers.size() == 3);
        CHECK(board.post({}, Deadline::now()).error().code == Errc::timed_out);
        const TakenRequest a = take(first);
        const TakenRequest b = take(second);
        const TakenRequest c = take(first);
        CHECK(text(a) == "a");
        CHECK(text(b).empty());
        CHECK(text(c) == "c");
        CHECK(nothing(second));
        CHECK(a.attempt == 0);
        CHECK_FALSE(second.finish(a));  // not its own
        CHECK(board.counts().taken == 3);
        CHECK(board.counts().workers == 2);
        CHECK(first.finish(a));
        CHECK_FALSE(first.finish(a));
        CHECK(second.finish(b));
        CHECK(first.finish(c));
        numbers.erase(a.number);
        numbers.erase(b.number);
        numbers.erase(c.number);
        CHECK(numbers.empty());
    }
    CHECK(board.counts().waiting + board.counts().taken + board.counts().given_up == 0);
}

TEST_CASE("requests: what is given back comes to the next, and is given up in the end") {
    const TestRing ring;
    RequestBoard board = board_of(ring, {.attempts = 2});
    RequestWorker first = worker_of(ring);
    RequestWorker second = worker_of(ring);
    const std::uint64_t number = post(board, "hard");
    CHECK(first.give_back(take(first)));
    const TakenRequest again = take(second);
    CHECK(again.number == number);
    CHECK(again.attempt == 1);
    CHECK(text(again) == "hard");
    CHECK(board.given_up(Deadline::now())->empty());
    CHECK(second.give_back(again));
    CHECK_FALSE(second.give_back(again));
    CHECK(nothing(first));
    CHECK(board.given_up(patience()).value() == std::vector{number});
    CHECK(board.given_up(Deadline::now())->empty());  // told once
}

TEST_CASE("requests: a worker that is closed or dies lets go of what it has") {
    const TestRing ring;
    RequestBoard board = board_of(ring, {.attempts = 4});
    RequestWorker heir = worker_of(ring);
    const std::uint64_t number = post(board, "prompt");
    {
        RequestWorker closed = worker_of(ring);
        CHECK(take(closed).number == number);
        CHECK(nothing(heir));
    }
    const TakenRequest again = take(heir);
    CHECK(again.attempt == 1);
    CHECK(heir.give_back(again));
    CHECK(test::in_child([&] {
              auto worker = RequestWorker::open(ring.name());
              auto taken = worker->take(patience());
              std::_Exit(taken.has_value() && taken->has_value() ? 7 : 1);  // no destructor runs
              return 0;
          }) == 7);
    CHECK(take(heir).attempt == 3);
}

TEST_CASE("requests: whoever takes a dead worker's seat lets go of what that one had") {
    const TestRing ring;
    RequestBoard board = board_of(ring);
    post(board, "prompt");
    CHECK(test::in_child([&] {
              auto worker = RequestWorker::open(ring.name());
              auto taken = worker->take(patience());
              std::_Exit(taken.has_value() && taken->has_value() ? 7 : 1);
              return 0;
          }) == 7);
    RequestWorker heir = worker_of(ring);
    auto taken = heir.take(Deadline::now());  // at once: the death need not be seen
    REQUIRE(taken.has_value());
    REQUIRE(taken->has_value());
    CHECK((*taken)->attempt == 1);
}

TEST_CASE("requests: one that is withdrawn is begun by nobody, and its worker is told") {
    const TestRing ring;
    RequestBoard board = board_of(ring);
    RequestWorker worker = worker_of(ring);
    CHECK(board.withdraw(post(board, "never begun")));
    CHECK(nothing(worker));
    const std::uint64_t number = post(board, "begun");
    const TakenRequest taken = take(worker);
    CHECK_FALSE(worker.withdrawn(taken));
    CHECK(board.withdraw(number));
    CHECK(worker.withdrawn(taken));
    CHECK_FALSE(worker.finish(taken));
    CHECK_FALSE(board.withdraw(number));
    const std::uint64_t other = post(board, "given back");
    const TakenRequest second = take(worker);
    CHECK(board.withdraw(other));
    CHECK_FALSE(worker.give_back(second));
    CHECK(nothing(worker));
    CHECK(board.given_up(Deadline::now())->empty());
    CHECK_FALSE(board.withdraw(123456789));
}

TEST_CASE("requests: the next board withdraws what the last one posted") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20, .requests = 2});
    RequestWorker worker = worker_of(ring);
    std::optional<RequestBoard> board = board_of(ring);
    CHECK(RequestBoard::open(ring.name(), {.attach_timeout = {}}).error().code == Errc::busy);
    post(*board, "of the first");
    post(*board, "waits");
    const TakenRequest old = take(worker);
    board.reset();
    board = board_of(ring);
    CHECK(worker.withdrawn(old));
    CHECK(nothing(worker));
    const std::uint64_t number = post(*board, "of the second");
    CHECK(board->post({}, Deadline::now()).error().code == Errc::timed_out);  // the old one's place
    CHECK(number != old.number);
    CHECK_FALSE(worker.finish(old));
    post(*board, "where it was");
    CHECK(text(take(worker)) == "of the second");
}

TEST_CASE("requests: what cannot be is refused, and what waits is told") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20, .requests = 2, .request_bytes = 4096});
    RequestBoard board = board_of(ring);
    const std::vector<std::byte> most(4096);
    CHECK(board.post(most, Deadline::now()).has_value());
    const std::vector<std::byte> more(4097);
    const auto refused = board.post(more, Deadline::now());
    CHECK(refused.error().code == Errc::too_large);
    CHECK(refused.error().message.find("--request-bytes") != std::string::npos);
    CHECK(RequestBoard::open(ring.name(), {.attempts = 0}).error().code == Errc::invalid_argument);
    CHECK(RequestBoard::open(ring.name(), {.attempts = 32}).error().code == Errc::invalid_argument);
    const TestRing none({.lanes = 1, .lane_bytes = 1 << 20, .requests = 0});
    CHECK(RequestBoard::open(none.name()).error().code == Errc::invalid_argument);
    CHECK(RequestWorker::open(none.name()).error().code == Errc::invalid_argument);

    RequestWorker worker = worker_of(ring);
    CHECK(take(worker).body.size() == 4096);
    CHECK(remove_ring(ring.name()).error().code == Errc::busy);
    std::thread remover([&] { CHECK(remove_ring(ring.name(), true).has_value()); });
    CHECK(worker.take(patience()).error().code == Errc::closed);  // it slept
    remover.join();
    CHECK(board.post({}, patience()).error().code == Errc::closed);
    CHECK(board.given_up(patience()).error().code == Errc::closed);
}

TEST_CASE("requests: both ends are inert in a forked child") {
    const TestRing ring;
    RequestBoard board = board_of(ring);
    RequestWorker worker = worker_of(ring);
    const std::uint64_t number = post(board, "prompt");
    const TakenRequest taken = take(worker);
    CHECK(test::in_child([&] {
              test::require(worker.take(Deadline::now()).error().code == Errc::forked, "take");
              test::require(!worker.finish(taken) && !worker.give_back(taken), "finish");
              test::require(board.post({}, Deadline::now()).error().code == Errc::forked, "post");
              test::require(!board.withdraw(number), "withdraw");
              return 0;
          }) == 0);
    CHECK(worker.finish(taken));
}

TEST_CASE("requests: many workers in threads take each of many requests once") {
    constexpr std::uint32_t many = 5'000;
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20, .requests = 16});
    RequestBoard board = board_of(ring);
    std::vector<std::atomic<int>> seen(many);
    std::atomic<std::uint32_t> finished{0};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            auto worker = RequestWorker::open(ring.name());
            while (finished < many) {
                auto taken = worker->take(Deadline::after_ms(20));
                if (!taken.has_value() || !taken->has_value()) continue;
                std::uint32_t id = 0;
                std::memcpy(&id, (*taken)->body.data(), sizeof id);
                seen[id]++;
                if (worker->finish(**taken)) finished++;
            }
        });
    }
    for (std::uint32_t id = 0; id < many; id++) {
        REQUIRE(board.post(std::as_bytes(std::span(&id, 1)), patience()).has_value());
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(finished == many);
    for (const std::atomic<int>& times : seen) REQUIRE(times == 1);
}

TEST_CASE("requests: they lie beside the ring, from the first end on, and go with it") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20, .requests = 2, .request_bytes = 4096});
    const std::uint64_t before = stat_ring(ring.name())->resident_bytes;
    CHECK(stat_requests(ring.name())->places == 2);
    CHECK(beside(ring).empty());
    {
        RequestWorker worker = worker_of(ring);
        REQUIRE(beside(ring).size() == 1);
        const std::uint64_t after = stat_ring(ring.name())->resident_bytes;
        CHECK(after > before);
        RequestBoard board = board_of(ring);
        post(board, "prompt");
        CHECK(text(take(worker)) == "prompt");
        CHECK(beside(ring).size() == 1);
        CHECK(stat_ring(ring.name())->resident_bytes > after);  // the body
        CHECK(remove_ring(ring.name()).error().code == Errc::busy);
        CHECK(diagnose_ring(ring.name()).in_use);
        CHECK(std::ranges::count(list_rings(), ring.name()) == 1);
    }
    CHECK_FALSE(diagnose_ring(ring.name()).in_use);
    CHECK(remove_ring(ring.name()).has_value());
    CHECK(beside(ring).empty());
    const TestRing none({.lanes = 1, .lane_bytes = 1 << 20, .requests = 0});
    CHECK_FALSE(RequestBoard::open(none.name()).has_value());
    CHECK(beside(none).empty());
}

TEST_CASE("requests: where they alone were removed, both ends say so, and can be opened again") {
    const TestRing ring({.lanes = 1, .lane_bytes = 1 << 20, .requests = 2});
    {
        RequestBoard board = board_of(ring);
        RequestWorker worker = worker_of(ring);
        std::filesystem::remove(beside(ring).at(0));
        const auto given_up = board.given_up(patience());
        const auto taken = worker.take(patience());
        REQUIRE_FALSE(given_up.has_value());
        REQUIRE_FALSE(taken.has_value());
        for (const Error& error : {given_up.error(), taken.error()}) {
            CHECK(error.code == Errc::closed);
            CHECK(error.message.find("the ring was not") != std::string::npos);
        }
    }
    RequestBoard board = board_of(ring);
    RequestWorker worker = worker_of(ring);
    post(board, "prompt");
    CHECK(text(take(worker)) == "prompt");
}

TEST_CASE("requests: a ring made again under the name has none of those before") {
    const TestRing ring;
    RequestBoard old_board = board_of(ring);
    RequestWorker old_worker = worker_of(ring);
    post(old_board, "old");
    REQUIRE(remove_ring(ring.name(), true).has_value());
    make_again(ring);
    RequestWorker worker = worker_of(ring);
    RequestBoard board = board_of(ring);  // its seat is another one
    CHECK(nothing(worker));
    post(board, "new");
    CHECK(old_worker.take(patience()).error().code == Errc::closed);
    CHECK(old_board.post({}, patience()).error().code == Errc::closed);
    CHECK(text(take(worker)) == "new");
    CHECK(beside(ring).size() == 1);
}

TEST_CASE("requests: what is left beside a ring that is gone is listed, and goes") {
    const TestRing ring;
    {
        RequestBoard board = board_of(ring);
        post(board, "old");
    }
    take_name_away(ring);
    const auto left = beside(ring);
    REQUIRE(left.size() == 1);
    const auto is_listed = [&] {
        return std::ranges::count(list_leftovers(), "/" + left[0].filename().string()) == 1;
    };
    CHECK(is_listed());
    CHECK(std::ranges::count(list_rings(), ring.name()) == 0);
    CHECK(RequestWorker::open(ring.name(), {}, Deadline::now()).error().code == Errc::not_found);
    SUBCASE("with the name") {
        CHECK(remove_ring(ring.name()).has_value());
        CHECK(remove_ring(ring.name()).error().code == Errc::not_found);
    }
    SUBCASE("when there is a ring of that name again") {
        make_again(ring);
        RequestWorker worker = worker_of(ring);
        CHECK(nothing(worker));
    }
    CHECK_FALSE(std::filesystem::exists(left[0]));
    CHECK_FALSE(is_listed());
}

TEST_CASE("requests: an object that is not this ring's, or is damaged, is refused by all") {
    const TestRing ring;
    const TestRing other;
    for (const TestRing* each : {&ring, &other}) board_of(*each);
    const std::filesystem::path own = beside(ring).at(0);
    const auto refused = [&] {
        const Errc code = RequestBoard::open(ring.name()).error().code;
        CHECK(RequestWorker::open(ring.name()).error().code == code);
        CHECK(stat_requests(ring.name()).error().code == code);
        return code;
    };
    for (std::streamoff word = 0; word < 7; word++) {
        std::fstream memory(own, std::ios::in | std::ios::out | std::ios::binary);
        char bytes[8];
        memory.seekg(word * 8).read(bytes, sizeof bytes);
        const char kept = std::exchange(bytes[0], static_cast<char>(bytes[0] ^ 1));
        memory.seekp(word * 8).write(bytes, sizeof bytes).flush();
        CHECK(refused() == (word == 1 ? Errc::abi_mismatch : Errc::not_a_ring));
        bytes[0] = kept;
        memory.seekp(word * 8).write(bytes, sizeof bytes).flush();
        CHECK(RequestBoard::open(ring.name()).has_value());
    }
    std::filesystem::rename(beside(other).at(0), own);
    CHECK(refused() == Errc::not_a_ring);
}
