// Ledgers whose trainer, or whose restore, is killed at any moment of the disk.

#include <atomic>
#include <csignal>
#include <set>
#include <string>

#include "faulty_disk.hpp"
#include "mortal_trainer.hpp"
#include "parked.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// True: it was killed at that moment.
bool kill_trainer(Durable durable, bool late, int moment) {
    CAPTURE(moment);
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), durable, std::uint64_t{1} << 20));
    const Shared<TrainerPaper> paper;
    MortalTrainer::prepare(ring.name(), *paper.operator->());
    REQUIRE(folder.files(".ledger").size() == 2);
    const int status = in_child([&] {
        const InUse<KillingDisk> disk(moment, late);
        return MortalTrainer::run(ring.name(), *paper.operator->(), 5);
    });
    if (status == 0) {
        // So the moments of the removal of two files were among the others.
        CHECK(folder.files(".ledger").size() == 1);
        CHECK(folder.files(".ledger").front().filename() == "00000003.ledger");
        return false;
    }
    REQUIRE(status == 128 + SIGKILL);
    MortalTrainer::check_dead(folder.path(), *paper.operator->(),
                              MortalTrainer::durable(ring.name()));
    MortalTrainer::check_successor(ring.name(), folder.path(), *paper.operator->());
    return true;
}

constexpr std::uint64_t left_records = 5;

// Four trained pairs, the first of which is settled, a group that waits for a member, and a parked
// rollout.
void fill_dead(const std::filesystem::path& directory) {
    const TestRing ring(with_ledger(directory));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    for (const char* prompt : {"0", "1", "2", "3"}) {
        send_pair(producer, prompt);
        REQUIRE(train_all(*stash) == Prompts{prompt});
    }
    send(producer, "open", 0, 2);
    read_all(*stash);
    REQUIRE(stash->checkpointed(0).value() == 2);
    Parking parking = open_parking(ring.name());
    park(parking, 1);
}

struct Sender {
    std::string ring;
    RestoreOptions options;
};

int send_all(const std::filesystem::path& directory, const Sender& sender, int moment,
             std::atomic<int>& sent) {
    InUse<KillingDisk> disk(moment);
    auto restore = LedgerRestore::begin(directory, sender.ring, sender.options);
    if (!restore) return 1;
    while (true) {
        disk->strike();
        const auto more = restore->send(patience());
        if (!more) return 2;
        if (!*more) return 0;
        sent++;
    }
}

// All but the pair that `step` settles, once, whatever came before.
void check_restored(const std::filesystem::path& directory, const RestoreOptions& options) {
    const RestoredRing again(directory, options);
    CHECK(again.stat().sent == left_records);
    CHECK(again.stat().damaged.empty());
    CHECK(again.stat().parked == 1);
    const auto stash = open_stash(again.name());
    const Prompts prompts = train_all(*stash);
    CHECK(std::set<std::string>(prompts.begin(), prompts.end()) == std::set<std::string>{"2", "3"});
    CHECK(prompts.size() == 2);
    REQUIRE(stash->explain(10).size() == 1);
    CHECK(stash->explain(10)[0].instance_id == "open");
    CHECK(stash->account().accepted.records == left_records);
    CHECK(stash->account().dropped_total().records == 0);
    CHECK(stash->checkpointed(stash->last_acked_step()).value() == 4);
    Parking parking = open_parking(again.name());
    CHECK(take(parking).has_value());
    CHECK(look_at(options.ledger_dir.value_or(directory.string())).records == 1);
}

// True: it was killed at that moment. `trained`: a trainer has read all records that had come.
bool kill_restore(const std::filesystem::path& dead, bool elsewhere, int moment, bool trained) {
    CAPTURE(moment);
    const LedgerFolder folder(dead);
    const LedgerFolder fresh;
    const LedgerFolder other;
    Sender sender{scratch_name("restored"), {.step = 1}};
    if (elsewhere) sender.options.ledger_dir = fresh.path().string();
    struct Paper {
        std::atomic<int> sent;
    };
    const Shared<Paper> paper;
    const int status =
        in_child([&] { return send_all(folder.path(), sender, moment, paper->sent); });
    if (trained && stat_ring(sender.ring)) {
        // Before the restore has named its records, none is there, and a trainer is refused.
        const auto stash = Stash::open(sender.ring, freshest_pair);
        if (stash) static_cast<void>(train_all(**stash));
        if (paper->sent > 0) CHECK(stash.has_value());
    }
    static_cast<void>(remove_ring(sender.ring, true));
    if (status == 0) {
        CHECK(paper->sent == left_records);
        return false;
    }
    REQUIRE(status == 128 + SIGKILL);
    // That directory has records of the trainer's.
    if (elsewhere && trained) sender.options.ledger_dir = other.path().string();
    check_restored(folder.path(), sender.options);
    return true;
}

}  // namespace

TEST_CASE("ledger: a trainer that is killed at any moment of the disk loses and doubles nothing") {
    for (const Durable durable : {Durable::none, Durable::group, Durable::record}) {
        for (const bool late : {false, true}) {
            if (late && durable != Durable::group) continue;
            CAPTURE(static_cast<int>(durable));
            CAPTURE(late);
            int moment = 0;
            while (kill_trainer(durable, late, moment)) moment++;
            CHECK(moment > 25);
        }
    }
}

TEST_CASE("ledger: a restore that is killed at any moment is done again, and gives all once") {
    const LedgerFolder dead;
    fill_dead(dead.path());
    for (const bool elsewhere : {false, true}) {
        for (const bool trained : {false, true}) {
            CAPTURE(elsewhere);
            CAPTURE(trained);
            int moment = 0;
            while (kill_restore(dead.path(), elsewhere, moment, trained)) moment++;
            CHECK(moment > 15);
        }
    }
}
