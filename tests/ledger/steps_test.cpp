// A trainer with a ledger is killed at every store into the ring's reader pages, one after another,
// by any of its threads: between a call of the disk and the words that tell of it, too.

#include <csignal>

#include "mortal_trainer.hpp"
#include "ring_map.hpp"
#include "support/kill_at_store.hpp"

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
bool kill_stepped(Durable durable, int store) {
    CAPTURE(store);
    const LedgerFolder folder;
    const TestRing ring(small(folder.path(), durable));
    const Shared<TrainerPaper> paper;
    TrainerPaper& words = *paper.operator->();
    MortalTrainer::prepare(ring.name(), words);
    const auto map = RingMap::attach(ring.name(), patience());
    REQUIRE(map.has_value());
    const Geometry& geometry = map->geometry();
    const auto pages = map->segment().map(
        geometry.reader_offset(), geometry.owners_offset() - geometry.reader_offset(), false);
    REQUIRE(pages.has_value());
    const pid_t pid = start_stepped([&] {
        static_cast<void>(raise(SIGSTOP));
        return MortalTrainer::run(ring.name(), words, 3, [] { static_cast<void>(raise(SIGSTOP)); });
    });
    if (!kill_at_store_of_any(pid, {pages->data(), pages->bytes()}, store)) {
        CHECK(words.settled == 2);
        return false;
    }
    MortalTrainer::check_dead(folder.path(), words, MortalTrainer::durable(ring.name()));
    MortalTrainer::check_successor(ring.name(), folder.path(), words);
    return true;
}

}  // namespace

TEST_CASE("ledger: a trainer that is killed at any store into its ring loses and doubles nothing") {
    int stores = 0;
    while (kill_stepped(Durable::group, stores + 1)) stores++;
    MESSAGE("killed at each of " << stores << " stores");
    CHECK(stores > 30);
}
