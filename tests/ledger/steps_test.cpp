// A trainer with a ledger is killed at every store into the ring's reader pages, one after another,
// by any of its threads: between a call of the disk and the words that tell of it, too.

#include <csignal>

#include "mortal_trainer.hpp"
#include "ring_map.hpp"
#include "support/in_child.hpp"
#include "support/store_trap.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

RingOptions small(const std::filesystem::path& directory, Durable durable) {
    RingOptions options = with_ledger(directory, durable, std::uint64_t{1} << 20);
    options.lanes = 1;  // a lane that had another producer
    options.lane_bytes = 64 << 10;
    options.journal_records = 16;
    options.spill_bytes = 0;
    options.group_rows = 16;
    options.requests = 0;
    return options;
}

// True: it was killed at that store.
bool is_killed(Durable durable, int store) {
    CAPTURE(store);
    const LedgerFolder folder;
    const TestRing ring(small(folder.path(), durable));
    const Shared<TrainerPaper> paper;
    TrainerPaper& words = *paper.operator->();
    MortalTrainer::prepare(ring.name(), words);
    const auto map = RingMap::attach(ring.name(), patience());
    REQUIRE(map.has_value());
    const Geometry& geometry = map->geometry();
    const int status = in_child([&] {
        return MortalTrainer::run(ring.name(), words, 3, [&] {
            StoreTrap::arm(ring.name(), geometry.reader_offset(), geometry.owners_offset(), store);
        });
    });
    if (status == 0) {
        CHECK(words.settled == 2);
        return false;
    }
    REQUIRE(status == 128 + SIGKILL);
    MortalTrainer::check_dead(folder.path(), words, MortalTrainer::durable(ring.name()));
    MortalTrainer::check_successor(ring.name(), folder.path(), words);
    return true;
}

}  // namespace

TEST_CASE("ledger: a trainer that is killed at any store into its ring loses and doubles nothing") {
    for (const Durable durable : {Durable::record, Durable::group}) {
        CAPTURE(durable);
        int stores = 0;
        while (is_killed(durable, stores + 1)) stores++;
        MESSAGE("killed at each of " << stores << " stores");
        CHECK(stores > 100);
    }
}
