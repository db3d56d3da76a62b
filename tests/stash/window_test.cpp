// Goal: a batch of a window is cut with the very group that makes it possible, however often there
// was none before.
#include "machine_bench.hpp"

using namespace rollring;
using rollring::test::Bench;
using rollring::test::one_second;

namespace {

// Groups 0 to 7, of two, a second apart, with a record each: the oldest four are the window.
StashOptions eight() {
    StashOptions options;
    options.group_size = 2;
    options.batch = BatchTarget::groups(2);
    options.advanced.window_fraction = 0.5;
    options.at_deadline = AtDeadline::drop;
    options.deadline = std::chrono::seconds(20);
    return options;
}

void fill(Bench& bench) {
    for (std::uint64_t prompt = 0; prompt < 8; prompt++) {
        bench.send(prompt, 0, 1);
        bench.now_ns += one_second;
    }
}

// It is whole.
bool cut_with(Bench& bench, std::uint64_t prompt) {
    bench.send(prompt, 1, 0);
    return bench.cut();
}

}  // namespace

TEST_CASE("window: what is ready behind it makes no batch, and each group in it counts") {
    Bench bench(eight());
    fill(bench);
    for (const std::uint64_t prompt : {7, 6, 2}) CHECK(!cut_with(bench, prompt));
    REQUIRE(cut_with(bench, 0));
    CHECK(bench.batch.groups[0].key.low == 0);
    CHECK(bench.batch.groups[1].key.low == 2);
}

TEST_CASE("window: it goes on where groups leave it, by a batch or by their deadline") {
    Bench bench(eight());
    fill(bench);
    for (const std::uint64_t prompt : {7, 6, 5, 2}) CHECK(!cut_with(bench, prompt));
    REQUIRE(cut_with(bench, 0));
    CHECK(!bench.cut());  // 1, 3, 4, 5
    bench.now_ns = 22 * one_second;
    bench.stash.tick(bench.now_ns);
    REQUIRE(bench.cut());  // 3, 4, 5, 6
    CHECK(bench.batch.groups[0].key.low == 5);
    CHECK(bench.batch.groups[1].key.low == 6);
}

TEST_CASE("window: a batch that is given back is there again at once") {
    Bench bench(eight());
    fill(bench);
    CHECK(!cut_with(bench, 3));
    REQUIRE(cut_with(bench, 1));
    CHECK(!bench.cut());
    bench.stash.nack(bench.batch.id);
    CHECK(bench.cut());
}
