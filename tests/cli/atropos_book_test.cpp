// Which groups make a batch, by the rules of Atropos' server and where those starve.

#include "integrations/atropos/atropos_book.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <stdexcept>

namespace rollring::cli {
namespace {

AtroposBook book_of(std::int64_t batch_size) {
    AtroposBook book;
    book.enter_trainer({.batch_size = batch_size, .starting_step = 5});
    book.start();
    return book;
}

std::vector<std::uint64_t> ids(const std::vector<AtroposEntry>& batch) {
    std::vector<std::uint64_t> found;
    found.reserve(batch.size());
    for (const AtroposEntry& entry : batch) found.push_back(entry.id);
    return found;
}

using Ids = std::vector<std::uint64_t>;

TEST_CASE("a batch has the oldest groups that make it up exactly") {
    AtroposBook book = book_of(8);
    for (std::uint64_t id = 1; id <= 5; id++) static_cast<void>(book.enter({id, {}, 4}));
    CHECK(ids(book.take_batch()) == Ids{1, 2});
    const auto batch = book.take_batch();
    book.put_back(batch);
    CHECK(ids(book.take_batch()) == Ids{3, 4});
    CHECK(book.take_batch().empty());
    CHECK(book.waiting() == 1);
    CHECK(book.waiting_sequences() == 4);
}

TEST_CASE("3 groups of 8 and 20 of 3 make batches of 24 until too few are left") {
    AtroposBook book = book_of(24);
    std::uint64_t id = 0;
    for (int i = 0; i < 3; i++) static_cast<void>(book.enter({++id, 0, 8}));
    for (int i = 0; i < 20; i++) static_cast<void>(book.enter({++id, 1, 3}));
    std::size_t sequences = 0;
    for (auto batch = book.take_batch(); !batch.empty(); batch = book.take_batch()) {
        std::size_t sum = 0;
        for (const AtroposEntry& entry : batch) sum += entry.size;
        CHECK(sum == 24);
        sequences += sum;
    }
    CHECK(sequences == 72);  // of 84
}

TEST_CASE("the oldest group is not left behind while it can be part of a batch") {
    AtroposBook book = book_of(8);
    static_cast<void>(book.enter({1, {}, 3}));
    static_cast<void>(book.enter({2, {}, 8}));
    CHECK(ids(book.take_batch()) == Ids{2});
    static_cast<void>(book.enter({3, {}, 8}));
    static_cast<void>(book.enter({4, {}, 5}));
    CHECK(ids(book.take_batch()) == Ids{1, 4});
}

TEST_CASE("whatever sizes come, a batch is found exactly if there is one") {
    std::mt19937 random(7);
    for (int round = 0; round < 300; round++) {
        const int target = 1 + static_cast<int>(random() % 20);
        AtroposBook book = book_of(target);
        std::vector<int> sizes(random() % 8);
        for (std::size_t i = 0; i < sizes.size(); i++) {
            sizes[i] = 1 + static_cast<int>(random() % 9);
            static_cast<void>(book.enter({i + 1, {}, static_cast<std::uint32_t>(sizes[i])}));
        }
        bool possible = false;
        for (unsigned subset = 1; subset < 1U << sizes.size(); subset++) {
            int sum = 0;
            for (std::size_t i = 0; i < sizes.size(); i++) {
                if ((subset >> i & 1) != 0) sum += sizes[i];
            }
            possible = possible || sum == target;
        }
        const auto batch = book.take_batch();
        const int sum = std::accumulate(batch.begin(), batch.end(), 0,
                                        [](int before, const AtroposEntry& entry) {
                                            return before + static_cast<int>(entry.size);
                                        });
        CAPTURE(target);
        CHECK(sum == (possible ? target : 0));
        CHECK(book.waiting() + batch.size() == sizes.size());
    }
}

TEST_CASE("environments that ask for a share get it, or the batch waits") {
    AtroposBook book = book_of(8);
    const auto a =
        book.enter_env({.desired_name = "e", .group_size = 2, .min_batch_allocation = 0.5});
    const auto b = book.enter_env({.desired_name = "e", .group_size = 4});
    CHECK(book.envs()[0].real_name == "e_0");
    CHECK(book.envs()[1].real_name == "e_1");
    for (std::uint64_t id = 1; id <= 3; id++) static_cast<void>(book.enter({id, b, 4}));
    static_cast<void>(book.enter({4, a, 2}));
    CHECK(book.take_batch().empty());
    static_cast<void>(book.enter({5, a, 2}));
    CHECK(ids(book.take_batch()) == Ids{1, 4, 5});
    CHECK(book.disconnect(a));
    CHECK(!book.disconnect(7));
    CHECK(!book.disconnect(-1));
    CHECK(ids(book.take_batch()) == Ids{2, 3});
}

TEST_CASE("minimums beyond the whole batch are scaled down") {
    AtroposBook book = book_of(8);
    const auto a = book.enter_env({.group_size = 2, .min_batch_allocation = 1.0});
    const auto b = book.enter_env({.group_size = 2, .min_batch_allocation = 1.0});
    for (std::uint64_t id = 1; id <= 4; id++) static_cast<void>(book.enter({id, a, 2}));
    for (std::uint64_t id = 5; id <= 8; id++) static_cast<void>(book.enter({id, b, 2}));
    CHECK(ids(book.take_batch()) == Ids{1, 2, 5, 6});
}

TEST_CASE("groups of another size than announced wait until they make one up") {
    AtroposBook book = book_of(4);
    const auto env = book.enter_env({.group_size = 4});
    CHECK(book.enter({1, env, 3}) == 3U);
    CHECK(book.enter({2, env, 2}) == 5U);
    CHECK(book.waiting() == 0);
    CHECK(book.waiting_sequences() == 5);
    CHECK(book.enter({3, env, 1}) == 2U);  // 3 and 1 make up 4
    CHECK(book.enter({4, env, 4}) == std::nullopt);
    CHECK(book.enter({5, 99, 3}) == std::nullopt);  // of an unknown environment
    CHECK(book.enter({6, -1, 3}) == std::nullopt);
    CHECK(book.waiting() == 5);
    CHECK(book.waiting_sequences() == 3 + 2 + 1 + 4 + 3 + 3);
}

TEST_CASE("what an environment is told of the others") {
    AtroposBook book = book_of(8);
    const auto a = book.enter_env({.max_token_length = 100, .weight = 3, .group_size = 2});
    const auto b = book.enter_env(
        {.max_token_length = 100, .weight = 1, .group_size = 4, .min_batch_allocation = 0.25});
    static_cast<void>(book.enter({1, a, 2}));
    static_cast<void>(book.enter({2, b, 4}));
    static_cast<void>(book.enter({3, b, 4}));
    const AtroposEnvStatus of_a = book.status_of(a);
    CHECK(of_a.max_group_size == 4);
    CHECK(of_a.self_queue_size == 1);
    CHECK(of_a.queue_size == (2 + 8 - 2) / 2);  // all but the other's minimum
    CHECK(of_a.env_weight == 0.75);
    CHECK(of_a.unallocated_fraction == 0.75);
    CHECK(book.status_of(b).env_weight == 0.25);
    CHECK_THROWS_AS(static_cast<void>(book.status_of(2)), std::out_of_range);
    // Without an environment there is no division by zero weight.
    static_cast<void>(book.disconnect(a));
    static_cast<void>(book.disconnect(b));
    CHECK(book.status_of(a).env_weight == 0.01);
}

TEST_CASE("sizes without sense cost nothing") {
    for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 60}) {
        AtroposBook book = book_of(size);
        static_cast<void>(book.enter({1, {}, 65536}));
        CHECK(book.take_batch().empty());
    }
    AtroposBook nobody;
    static_cast<void>(nobody.enter({1, {}, 4}));
    CHECK(nobody.take_batch().empty());
}

}  // namespace
}  // namespace rollring::cli
