// Goal: rollring-scale's account of a run can be made again and is consistent: the same seed gives
// the same run, no more groups are open than there are places, the trainer gets every record once,
// and its time adds up. Mistakes that are planted in the model are found.
#include <doctest/doctest.h>

#include "scale/row.hpp"

using namespace bench::scale;

namespace {

// Some thousand records, a fraction of a second.
Settings small() {
    Settings run;
    run.nodes = 5;
    run.workers = 12;
    run.length_median = 400;
    run.length_sigma = 0.8;
    run.length_most = 4096;
    run.group_size = 4;
    run.batch_groups = 4;
    run.lane_bytes = 1 << 20;
    run.byte_scale = 1;
    run.warm_s = 40;
    run.measure_s = 80;
    run.after_s = 120;
    run.seed = 7;
    return run;
}

std::string row(const Settings& run) {
    return row_of(run, simulate(run)).dump();
}

}  // namespace

TEST_CASE("the same seed gives the same run, another one another") {
    Settings run = small();
    const std::string first = row(run);
    CHECK(first == row(run));
    run.seed++;
    CHECK(first != row(run));
}

TEST_CASE("what must hold holds, whatever is short") {
    Settings run = small();
    SUBCASE("nothing") {}
    SUBCASE("places") {
        run.open_groups = 6;
    }
    SUBCASE("memory") {
        run.spill_bytes = 1 << 18;
    }
    SUBCASE("rings") {
        run.rings = 3;
    }
    SUBCASE("the receiver") {
        run.parcel_us = 200'000;
    }
    SUBCASE("the object store") {
        run.object_store_bytes = 1;
    }
    SUBCASE("the link") {
        run.link_gbit = 0.0001;
    }
    const Outcome outcome = simulate(run);
    for (const std::string& what : outcome.broken) FAIL_CHECK(what);
    CHECK(outcome.steps > 0);
    CHECK(outcome.idle_share >= 0);
    CHECK(outcome.idle_share <= 1);
    CHECK(outcome.generated_share + outcome.place_share + outcome.room_share ==
          doctest::Approx(1).epsilon(0.001));
    CHECK(outcome.loss.nodes == 1);
    CHECK(outcome.loss.groups > 0);
    CHECK(outcome.loss.redone_groups <= outcome.loss.groups);
}

TEST_CASE("what a lost node had is done by others") {
    const Outcome outcome = simulate(small());
    CHECK(outcome.loss.redone_groups == outcome.loss.groups);
    Settings run = small();
    run.redo = false;
    CHECK(simulate(run).loss.redone_groups < outcome.loss.groups);
}

TEST_CASE("a mistake in the model is found") {
    Settings run = small();
    SUBCASE("a record that is sent twice") {
        run.plant = Plant::twice;
    }
    SUBCASE("a group without a place") {
        run.open_groups = 6;
        run.plant = Plant::greedy;
    }
    SUBCASE("time that nobody counts") {
        run.plant = Plant::idle;
    }
    CHECK_FALSE(simulate(run).broken.empty());
}

TEST_CASE("the limit is named, and more rings take a receiver's") {
    Settings run = small();
    run.loss_share = 0;
    run.ask_us = run.parcel_us = 200'000;
    const Outcome one = simulate(run);
    CHECK(one.limit == "receiver's process");
    run.rings = 4;
    const Outcome four = simulate(run);
    CHECK(four.records_per_s > 1.5 * one.records_per_s);
    run = small();
    run.loss_share = 0;
    run.open_groups = 6;
    CHECK(simulate(run).limit == "places");
}

TEST_CASE("a node that sends much has places in advance, and its workers call less") {
    Settings run = small();
    run.loss_share = 0;
    run.tokens_per_s = 80'000;
    run.warm_s = run.measure_s = 2;
    run.parcel_us = 20'000;  // so that parcels have some records each
    const Outcome plenty = simulate(run);
    for (const std::string& what : plenty.broken) FAIL_CHECK(what);
    const auto calls_of = [&](const Outcome& outcome) {
        return static_cast<double>(outcome.calls) / run.measure_s / outcome.records_per_s;
    };
    CHECK(calls_of(plenty) < 0.9);
    run.open_groups = 8;  // nothing to spare
    CHECK(calls_of(simulate(run)) > calls_of(plenty));
}
