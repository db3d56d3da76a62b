// Records that an earlier trainer had read, and those that it had moved to the spill.

#include <latch>

#include "faulty_disk.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t record_bytes = 128 * kib;
constexpr int old_groups = 4;        // which stay open longest
constexpr int passing_groups = 960;  // as many as make a spill be compacted
constexpr int late_groups = 320;     // more bytes than a ledger takes before the disk has some

std::string moved_prompt(int number) {
    return "moved " + std::to_string(number);
}

std::set<std::string> prompts_in(const std::filesystem::path& directory) {
    const auto ledger = Ledger::open(directory);
    REQUIRE_MESSAGE(ledger.has_value(), (ledger ? "" : ledger.error().to_string()));
    std::set<std::string> prompts;
    for (std::size_t i = 0; i < ledger->records().size(); i++) {
        const auto record = ledger->read(i);
        REQUIRE(record.has_value());
        prompts.emplace(record->view().instance_id());
    }
    return prompts;
}

// A trainer without the ledger, whose spill is compacted: the oldest records lie there last.
void fill_spill(const TestRing& ring, Producer& producer) {
    StashOptions without = freshest_pair;
    without.advanced.ledger = false;
    const auto stash = open_stash(ring.name(), without);
    const auto pass = [&](const std::string& prompt, std::uint32_t member) {
        REQUIRE(send_bytes(producer, prompt, member, record_bytes, patience()) == Push::ok);
        Batch batch;
        if (stash->next(batch, Deadline::now()) == NextBatch::batch) {
            REQUIRE(batch.ack(next_step(*stash)).has_value());
        }
    };
    const auto passing = [](int number) { return "passing " + std::to_string(number); };
    for (int i = 0; i < old_groups; i++) pass(moved_prompt(i), 0);
    for (int i = 0; i < passing_groups; i++) pass(passing(i), 0);
    for (int i = old_groups; i < old_groups + late_groups; i++) pass(moved_prompt(i), 0);
    for (int i = 0; i < passing_groups; i++) pass(passing(i), 1);
}

}  // namespace

TEST_CASE("ledger: a record in the spill is durable before later ones of its producer count") {
    const LedgerFolder folder;
    RingOptions options = with_ledger(folder.path(), Durable::group, 256 * mib);
    options.lanes = 1;
    options.lane_bytes = 4 * mib;
    options.spill_bytes = 2048 * mib;
    const TestRing ring(options);
    Producer producer = ring.producer();
    fill_spill(ring, producer);
    std::latch stands_still(1);
    const InUse<MortalDisk> disk([&](MortalDisk&) { stands_still.wait(); });
    const auto stash = open_stash(ring.name());
    Batch none;
    // As much as the ledger takes while the disk stands still.
    REQUIRE(stash->next(none, Deadline::now()) == NextBatch::timed_out);
    stands_still.count_down();
    REQUIRE(stash->sync_ledger(patience()).has_value());
    const std::set<std::string> kept = prompts_in(folder.path());
    REQUIRE(kept.size() < old_groups + late_groups);
    REQUIRE_FALSE(kept.contains(moved_prompt(0)));
    CHECK(durable_of(ring.name()) == 0);
    read_all(*stash);
    CHECK(prompts_in(folder.path()).contains(moved_prompt(0)));
    CHECK(durable_of(ring.name()) == old_groups + passing_groups + late_groups);
}

TEST_CASE("ledger: a batch whose records the ledger has waits for no disk after a restart") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        send_pair(producer, "pair");
        Batch batch;
        REQUIRE(next_prompt(*stash, batch) == "pair");
    }
    std::latch stands_still(1);
    {
        const InUse<MortalDisk> disk([&](MortalDisk&) { stands_still.wait(); });
        const auto stash = open_stash(ring.name());
        Batch batch;
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::batch);
        stands_still.count_down();
    }
}
