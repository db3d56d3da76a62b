// Ledgers on disks that fail, fill up, lose power, or are written by a process that is killed.

#include <atomic>
#include <fstream>

#include "faulty_disk.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr int pairs = 12;

std::string prompt_of(int number) {
    return "prompt " + std::to_string(number);
}

// Sends member by member, so that some groups stay open for a while.
void send_members(Producer& producer, int number) {
    send(producer, prompt_of(number), 0, 2);
    if (number > 0) send(producer, prompt_of(number - 1), 1, 2);
}

// The words of the run, in the order in which it is promised.
struct Told {
    std::atomic<std::int64_t> asked = -1;       // steps up to it may be settled,
    std::atomic<std::int64_t> checkpoint = -1;  // and up to this they are
};

// Trains on all pairs but the last, which stays open; every third step is a checkpoint. False: the
// ledger has failed.
bool train_pairs(Producer& producer, Stash& stash, Told& told) {
    Batch batch;
    for (int i = 0; i < pairs; i++) {
        send_members(producer, i);
        if (i == 0) continue;
        const NextBatch got = stash.next(batch, patience());
        if (got == NextBatch::closed) return false;
        REQUIRE(got == NextBatch::batch);
        const std::int64_t step = i - 1;
        if (const auto acked = batch.ack(step); !acked) {
            CHECK(acked.error().code == Errc::ledger_failed);
            return false;
        }
        if (step % 3 != 2) continue;
        told.asked = step - 1;
        if (!stash.checkpointed(step - 1).has_value()) return false;
        told.checkpoint = step - 1;
    }
    return stash.sync_ledger(patience()).has_value();
}

// The order in which send_members() sends: the prompt and the member of the n-th record.
std::pair<int, std::uint32_t> sent_as(std::uint64_t n) {
    if (n == 0) return {0, 0};
    const auto round = static_cast<int>((n + 1) / 2);
    return n % 2 == 1 ? std::pair{round, 0U} : std::pair{round - 1, 1U};
}

struct Promised {
    std::uint64_t durable;    // records
    std::int64_t checkpoint;  // steps up to it are settled,
    std::int64_t asked;       // and up to this they may be
};

void check_members(const Members& given, const Promised& promised) {
    for (std::uint64_t n = 0; n < promised.durable; n++) {
        const auto [number, member] = sent_as(n);  // pair n is trained on with step n
        if (number > promised.asked) CHECK(given.contains({prompt_of(number), member}));
    }
    for (const auto& [prompt, member] : given) {
        const int number = std::stoi(prompt.substr(prompt.find(' ') + 1));
        CHECK(number < pairs);
        CHECK(number > promised.checkpoint);
    }
}

}  // namespace

TEST_CASE("ledger: a power cut at any moment of the disk takes no durable record") {
    for (const Durable durable : {Durable::group, Durable::record}) {
        struct Cut {
            std::unique_ptr<LedgerFolder> left;
            Promised promised;
        };
        std::vector<Cut> cuts;
        const LedgerFolder folder;
        const TestRing ring(with_ledger(folder.path(), durable));
        Told told;
        std::uint64_t seed = 0;
        const auto watch = [&](MortalDisk& self) {
            for (int i = 0; i < 3; i++) {
                // Words from before the cut hold after it.
                Promised promised{durable_of(ring.name()), told.checkpoint, 0};
                auto left = std::make_unique<LedgerFolder>();
                self.cut(left->path(), seed++);
                promised.asked = told.asked;
                cuts.push_back({std::move(left), promised});
            }
        };
        {
            const InUse<MortalDisk> disk(watch);
            Producer producer = ring.producer();
            const auto stash = open_stash(ring.name());
            REQUIRE(train_pairs(producer, *stash, told));
            CHECK(durable_of(ring.name()) == 2 * pairs - 1);
        }
        CHECK(cuts.size() > 60);
        for (const Cut& cut : cuts) {
            CAPTURE(cut.promised.durable);
            const auto stat = stat_ledger(cut.left->path());
            if (!stat) {
                CHECK(stat.error().code == Errc::not_found);
                CHECK(cut.promised.durable == 0);
                continue;
            }
            check_members(restored_members(cut.left->path()), cut.promised);
        }
    }
}

TEST_CASE("ledger: long records of one turn survive a power cut once they are durable") {
    constexpr int groups = 10;
    constexpr std::uint64_t bytes = 300'000;  // the disk begins before all of them are copied
    const LedgerFolder folder;
    const LedgerFolder left;
    RingOptions options = with_ledger(folder.path());
    options.lane_bytes = std::uint64_t{8} << 20;
    options.spill_bytes = std::uint64_t{32} << 20;
    const TestRing ring(options);
    {
        InUse<MortalDisk> disk([](MortalDisk&) {});
        Producer producer = ring.producer();
        for (int i = 0; i < groups; i++) {
            REQUIRE(send_bytes(producer, prompt_of(i), 0, bytes, patience()) == Push::ok);
        }
        const auto stash = open_stash(ring.name());
        read_all(*stash);
        REQUIRE(durable_of(ring.name()) == groups);
        disk->cut(left.path(), 0);
    }
    const Members given = restored_members(left.path());
    for (int i = 0; i < groups; i++) CHECK(given.contains({prompt_of(i), 0}));
}

TEST_CASE("ledger: a disk that fails at any call ends it, and what was durable stays") {
    constexpr std::array calls{Call::make, Call::write, Call::sync, Call::names};
    for (const Call call : calls) {
        for (int at = 0;; at++) {
            CAPTURE(static_cast<int>(call));
            CAPTURE(at);
            const LedgerFolder folder;
            const TestRing ring(with_ledger(folder.path()));
            Told told;
            std::uint64_t durable = 0;
            {
                InUse<FailingDisk> disk(call, EIO, at);
                Producer producer = ring.producer();
                const auto stash = open_stash(ring.name());
                const bool whole = train_pairs(producer, *stash, told);
                if (!disk->has_failed()) {
                    CHECK(whole);
                    break;
                }
                CHECK_FALSE(whole);
                durable = durable_of(ring.name());
                Batch batch;
                CHECK(stash->next(batch, patience()) == NextBatch::closed);
                CHECK(stash->problem().find("has failed") != std::string::npos);
                CHECK(stash->problem().find(folder.path().string()) != std::string::npos);
                disk->heal();  // too late: the kernel may have forgotten
                CHECK(stash->next(batch, patience()) == NextBatch::closed);
                const auto synced = stash->sync_ledger(patience());
                CHECK_FALSE(synced.has_value());
                CHECK(durable_of(ring.name()) == durable);
            }
            const auto again = Stash::open(ring.name(), freshest_pair);
            REQUIRE_FALSE(again.has_value());
            CHECK(again.error().code == Errc::ledger_failed);
            StashOptions without = freshest_pair;
            without.advanced.ledger = false;
            CHECK(Stash::open(ring.name(), without).has_value());
            const auto stat = stat_ledger(folder.path());
            if (!stat) {
                CHECK(durable == 0);
                continue;
            }
            CHECK(stat->failure.find("has failed") != std::string::npos);
            const auto refused = LedgerRestore::begin(folder.path(), scratch_name("none"));
            REQUIRE_FALSE(refused.has_value());
            CHECK(refused.error().code == Errc::ledger_failed);
            check_members(restored_members(folder.path()), {durable, told.checkpoint, told.asked});
        }
    }
}

TEST_CASE("ledger: the stat of its ring has the bytes of its files, and its failure") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    const auto look = [&] { return stat_ring(ring.name()).value(); };
    CHECK(look().ledger_files_bytes == 0);
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        read_all(*stash);
        CHECK(look().ledger_files_bytes == look_at(folder.path()).file_bytes);
        CHECK(look().ledger_files_bytes > 0);
        CHECK_FALSE(look().ledger_failed);
    }
    const InUse<FailingDisk> disk(Call::sync, EIO, 0);
    const auto stash = open_stash(ring.name());
    send(producer, "open", 1, 2);
    Batch batch;
    while (stash->next(batch, Deadline::after_ms(20)) != NextBatch::closed) {
    }
    CHECK(look().ledger_failed);
}

TEST_CASE("ledger: a file system without direct writes is written through the page cache") {
    const InUse<BufferedDisk> disk;
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send(producer, "open", 0, 2);
    read_all(*stash);
    CHECK(look_at(folder.path()).records == 1);
}

TEST_CASE("ledger: a stash syncs what an earlier one wrote before it counts as durable") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        read_all(*stash);
    }
    {
        InUse<FailingDisk> disk(Call::sync_file, EIO, 1);
        const auto stash = open_stash(ring.name());
        CHECK(disk->calls() == 1);
        send(producer, "other", 0, 2);
        read_all(*stash);
    }
    InUse<FailingDisk> disk(Call::sync_file, EIO, 1);
    const auto opened = Stash::open(ring.name(), freshest_pair);
    REQUIRE_FALSE(opened.has_value());
    CHECK(opened.error().code == Errc::ledger_failed);
    CHECK(disk->calls() == 2);
    disk->heal();  // too late: the kernel may have forgotten
    const auto again = Stash::open(ring.name(), freshest_pair);
    REQUIRE_FALSE(again.has_value());
    CHECK(again.error().code == Errc::ledger_failed);
    CHECK(look_at(folder.path()).failure.find("fdatasync") != std::string::npos);
}

TEST_CASE("ledger: a failure that cannot be noted in the directory says so") {
    // The sync of the record fails, and so does the note.
    class Broken : public ledger::Disk {
        int sync(int) override { return EIO; }
        int note(const std::filesystem::path&, std::string_view) override { return EROFS; }
    };
    const InUse<Broken> disk;
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send(producer, "open", 0, 2);
    Batch batch;
    while (stash->next(batch, Deadline::after_ms(20)) != NextBatch::closed) {
    }
    CHECK(stash->problem().find("has failed") != std::string::npos);
    CHECK(stash->problem().find("FAILED") != std::string::npos);
    CHECK(stash->problem().find("Read-only file system") != std::string::npos);
}

TEST_CASE("ledger: a file that cannot be removed keeps the later ones, which settle its records") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    InUse<FailingDisk> disk(Call::remove, EIO, 0);
    for (std::int64_t step = 0; step < 3; step++) {
        const auto stash = open_stash(ring.name());
        for (std::uint32_t i = 0; i < 2; i++)
            send(producer, prompt_of(static_cast<int>(step)), i, 2);
        CHECK(train_all(*stash).size() == 1);
        if (step > 0) CHECK(stash->checkpointed(step - 1).value() == 2);
    }
    CHECK(disk->has_failed());
    CHECK(folder.files(".ledger").size() == 3);
    CHECK(look_at(folder.path()).records == 2);
    disk->heal();
    CHECK(open_stash(ring.name())->checkpointed(2).value() == 2);
    CHECK(folder.files(".ledger").size() == 1);
}

TEST_CASE("ledger: a restore into another directory needs no write into the old one") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    for (std::uint32_t i = 0; i < 2; i++) send(producer, "kept", i, 2);
    CHECK(train_all(*stash).size() == 1);
    const LedgerFolder left(folder.path());
    // The lock cannot be opened for writing, as on a file system that has become read-only.
    std::filesystem::remove(left.path() / "writer.lock");
    std::filesystem::create_directory(left.path() / "writer.lock");
    REQUIRE_FALSE(LedgerRestore::begin(left.path(), scratch_name("none")).has_value());
    const LedgerFolder fresh;
    const RestoredRing again(left.path(), {.ledger_dir = fresh.path().string()});
    CHECK(left.files(".restored").empty());
    const auto next = open_stash(again.name());
    CHECK(train_all(*next) == std::vector<std::string>{"kept"});
    CHECK(look_at(fresh.path()).records == 2);
}

TEST_CASE("ledger: no batch has a record that is not durable, if each of them is to be") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    InUse<FailingDisk> disk(Call::write, ENOSPC, 0);
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    for (std::uint32_t member = 0; member < 2; member++) send(producer, "pair", member, 2);
    Batch batch;
    CHECK(stash->next(batch, Deadline::after_ms(100)) == NextBatch::timed_out);
    CHECK(stash->rest(batch) == NextBatch::timed_out);
    CHECK(durable_of(ring.name()) == 0);
    disk->heal();
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    CHECK(durable_of(ring.name()) == 2);
}

TEST_CASE("ledger: a trainer that starts again takes back no durable record") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        for (std::uint32_t member = 0; member < 2; member++) send(producer, "pair", member, 2);
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(0).has_value());
        CHECK(durable_of(ring.name()) == 3);
    }
    const auto stash = open_stash(ring.name());
    read_all(*stash);
    CHECK(durable_of(ring.name()) == 3);
}

TEST_CASE("ledger: a full disk holds the run back, and it goes on when there is space") {
    for (const Call call : {Call::make, Call::write}) {
        const LedgerFolder folder;
        const TestRing ring(with_ledger(folder.path()));
        InUse<FailingDisk> disk(call, ENOSPC, 0);
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        Batch batch;
        CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
        const auto blocked = stash->sync_ledger(Deadline::after_ms(300));
        REQUIRE_FALSE(blocked.has_value());
        CHECK(blocked.error().code == Errc::timed_out);
        CHECK(stash->waits_for().find("is full") != std::string::npos);
        CHECK(durable_of(ring.name()) == 0);
        send(producer, "unread", 0, 2);
        CHECK(stash->next(batch, Deadline::after_ms(100)) == NextBatch::timed_out);
        CHECK(stash->explain(10).size() == 1);
        disk->heal();
        REQUIRE(stash->sync_ledger(patience()).has_value());
        CHECK(durable_of(ring.name()) == 1);
        CHECK(look_at(folder.path()).records == 1);
        read_all(*stash);
        CHECK(durable_of(ring.name()) == 2);
        CHECK(stash->problem().empty());
    }
}
