// Ledgers: their contents, and the records that a restore gives and those that it leaves out.

#include <fstream>

#include "chunk.hpp"
#include "ledgers.hpp"
#include "recording_layout.hpp"
#include "xxh3.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

std::uint64_t durable_records(const std::string& ring, std::uint32_t lane) {
    const auto stat = stat_ring(ring);
    REQUIRE(stat.has_value());
    for (const LaneStat& one : stat->lanes) {
        if (one.lane == lane) return one.durable_records;
    }
    return 0;
}

}  // namespace

TEST_CASE("ledger: a new ring has the open groups and those that no checkpoint has") {
    const LedgerFolder folder;
    for (const Durable durable : {Durable::group, Durable::record, Durable::none}) {
        CAPTURE(name(durable));
        const auto directory = folder.path() / name(durable);
        const TestRing ring(with_ledger(directory, durable));
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        send_pair(producer, "first");
        CHECK(train_all(*stash) == Prompts{"first"});  // step 0
        send(producer, "open", 0, 2);
        send_pair(producer, "second");
        CHECK(train_all(*stash) == Prompts{"second"});  // step 1
        CHECK(stash->checkpointed(0).value() == 2);
        send_pair(producer, "complete");
        send(producer, "late", 0, 2);
        Batch leased;
        CHECK(next_prompt(*stash, leased) == "complete");
        REQUIRE(stash->sync_ledger(patience()).has_value());
        CHECK(durable_records(ring.name(), producer.lane()) == 8);
        const LedgerStat stat = look_at(directory);
        CHECK(stat.records == 6);
        CHECK(stat.groups == 4);
        CHECK(stat.acked == 2);
        CHECK(stat.is_written);
        CHECK(stat.damaged.empty());
        CHECK(stat.ring == ring.name());

        const LedgerFolder left(directory);
        const RestoredRing again(left.path());
        CHECK(again.stat().records == 6);
        CHECK(again.stat().groups == 4);
        const auto next = open_stash(
            again.name(),
            {.group_size = 2, .order = Order::freshest, .batch = BatchTarget::groups(1)});
        const auto seen = train_all(*next);
        CHECK(std::set<std::string>(seen.begin(), seen.end()) ==
              std::set<std::string>{"second", "complete"});
        Producer worker = open_producer(again.name());
        send(worker, "open", 1, 2);
        CHECK(train_all(*next) == Prompts{"open"});
        send(worker, "late", 1, 2);
        CHECK(train_all(*next) == Prompts{"late"});
        CHECK(next->checkpointed(next_step(*next)).value() == 8);
        CHECK(look_at(left.path()).records == 0);
    }
}

TEST_CASE("ledger: finished groups are given again in the order of their batches") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send(producer, "b", 0, 2);
    send(producer, "c", 0, 2);
    send(producer, "a", 0, 2);
    for (const char* prompt : {"a", "b", "c"}) {
        send(producer, prompt, 1, 2);
        CHECK(train_all(*stash) == Prompts{prompt});
    }
    const LedgerFolder left(folder.path());
    const RestoredRing again(left.path());
    const auto next = open_stash(
        again.name(), {.group_size = 2, .order = Order::fifo, .batch = BatchTarget::groups(1)});
    CHECK(train_all(*next) == Prompts{"a", "b", "c"});
}

TEST_CASE("ledger: a restore leaves out what its checkpoint has, for good") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    for (const char* prompt : {"a", "b", "c"}) {
        send_pair(producer, prompt);
        CHECK(train_all(*stash) == Prompts{prompt});  // steps 0 to 2
    }
    const LedgerFolder left(folder.path());
    {
        const RestoredRing again(left.path(), {.step = 1});
        CHECK(again.stat().left_out == 4);
        CHECK(again.stat().records == 2);
    }
    const RestoredRing again(left.path());
    CHECK(train_all(*open_stash(again.name())) == Prompts{"c"});
}

TEST_CASE("ledger: a receipt settles records of an earlier ring") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send_pair(producer, "in the checkpoint");
    Batch batch;
    CHECK(next_prompt(*stash, batch) == "in the checkpoint");
    const std::string receipt = batch.receipt();
    REQUIRE(batch.ack(0).has_value());
    send_pair(producer, "after it");
    CHECK(train_all(*stash) == Prompts{"after it"});
    const LedgerFolder left(folder.path());
    const RestoredRing again(left.path());
    CHECK(again.stat().records == 4);
    const auto next = open_stash(again.name());
    CHECK(next->settle(receipt, 0).value() == 2);
    CHECK(next->settle(receipt, 0).value() == 0);
    CHECK(train_all(*next) == Prompts{"after it"});
    CHECK(look_at(left.path()).records == 2);
    CHECK(next->account().conserved());
}

TEST_CASE("ledger: a second death takes nothing that the first one left") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    {
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        send_pair(producer, "trained");
        CHECK(train_all(*stash) == Prompts{"trained"});
        send(producer, "open", 0, 2);
        read_all(*stash);
    }
    const LedgerFolder left(folder.path());
    const RestoredRing second(left.path());
    {
        const auto stash = open_stash(second.name());
        CHECK(train_all(*stash) == Prompts{"trained"});
        Producer worker = open_producer(second.name());
        send(worker, "new", 0, 2);
        read_all(*stash);
        CHECK(look_at(left.path()).records == 4);  // none of them twice
    }
    const LedgerFolder left_again(left.path());
    const RestoredRing third(left_again.path());
    CHECK(third.stat().records == 4);
    const auto stash = open_stash(third.name());
    CHECK(train_all(*stash) == Prompts{"trained"});
    Producer worker = open_producer(third.name());
    send(worker, "open", 1, 2);
    send(worker, "new", 1, 2);
    CHECK(train_all(*stash).size() == 2);
    CHECK(stash->checkpointed(100).value() == 6);
    CHECK(look_at(left_again.path()).records == 0);
}

TEST_CASE("ledger: a trainer that starts again goes on with the ledger of its ring") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        send_pair(producer, "leased");
        Batch batch;
        CHECK(next_prompt(*stash, batch) == "leased");
    }
    CHECK(look_at(folder.path()).records == 3);
    CHECK_FALSE(look_at(folder.path()).is_written);
    const auto stash = open_stash(ring.name());
    CHECK(train_all(*stash) == Prompts{"leased"});
    CHECK(look_at(folder.path()).records == 3);
    CHECK(stash->checkpointed(0).value() == 2);
    send(producer, "open", 1, 2);
    CHECK(train_all(*stash) == Prompts{"open"});
    CHECK(stash->checkpointed(1).value() == 2);
    CHECK(look_at(folder.path()).records == 0);
}

TEST_CASE("ledger: dropped records are not given again") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send_pair(producer, "trained");
    CHECK(train_all(*stash) == Prompts{"trained"});
    CHECK(stash->checkpointed(0).value() == 2);
    send(producer, "trained", 1, 2);  // late
    REQUIRE(try_send(producer, "again", 0, patience(), 2, 0));
    REQUIRE(try_send(producer, "again", 0, patience(), 2, 1));  // supersedes it
    read_all(*stash);
    CHECK(look_at(folder.path()).records == 1);
    CHECK(durable_records(ring.name(), producer.lane()) == 5);
    send_pair(producer, "discarded");
    Batch batch;
    CHECK(next_prompt(*stash, batch) == "discarded");
    REQUIRE(batch.discard(DropReason::stale).has_value());
    REQUIRE(stash->sync_ledger(patience()).has_value());
    CHECK(look_at(folder.path()).records == 1);
}

TEST_CASE("ledger: settled segments go, and a full ledger says so and holds producers back") {
    // A record that no longer fits into a segment of 64 KiB goes into the next one.
    for (const std::uint32_t record_kib : {3U, 10U, 14U, 19U, 29U}) {
        CAPTURE(record_kib);
        const LedgerFolder folder;
        constexpr std::uint64_t bytes = 1 << 20;
        const TestRing ring(with_ledger(folder.path(), Durable::group, bytes));
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        Batch batch;
        std::uint64_t trained = 0;
        const auto fill = [&] {
            while (true) {
                const std::string prompt = "prompt " + std::to_string(trained);
                bool sent = true;
                for (std::uint32_t i = 0; i < 2 && sent; i++) {
                    sent = send_bytes(producer, prompt, i, record_kib * kib,
                                      Deadline::after_ms(0)) == Push::ok;
                }
                if (!sent || stash->next(batch, Deadline::after_ms(100)) != NextBatch::batch)
                    return;
                REQUIRE(batch.ack(static_cast<std::int64_t>(trained)).has_value());
                trained++;
            }
        };
        fill();
        CHECK(2 * trained * record_kib * kib > bytes / 3);
        CHECK(stash->waits_for().find("is full") != std::string::npos);
        CHECK(stash->waits_for().find("ledger_bytes") != std::string::npos);
        CHECK(look_at(folder.path()).file_bytes <= bytes);
        const std::uint64_t before = trained;
        CHECK(stash->checkpointed(static_cast<std::int64_t>(trained)).value() == 2 * trained);
        fill();
        CHECK(2 * (trained - before) * record_kib * kib > bytes / 3);
        CHECK(look_at(folder.path()).file_bytes <= bytes);
        CHECK(stash->account().conserved());
    }
}

TEST_CASE("ledger: a full one goes on in a restored ring, and with the next trainer") {
    const LedgerFolder folder;
    constexpr std::uint64_t bytes = 1 << 20;
    const TestRing ring(with_ledger(folder.path(), Durable::group, bytes));
    Producer producer = ring.producer();
    Batch batch;
    std::int64_t trained = 0;
    {
        const auto stash = open_stash(ring.name());
        const auto sends = [&] {
            for (std::uint32_t i = 0; i < 2; i++) {
                if (send_bytes(producer, "prompt " + std::to_string(trained), i, 10 * kib,
                               Deadline::after_ms(0)) != Push::ok) {
                    return false;
                }
            }
            return true;
        };
        while (sends() && stash->next(batch, Deadline::after_ms(100)) == NextBatch::batch) {
            REQUIRE(batch.ack(trained).has_value());
            trained++;
        }
        CHECK(stash->waits_for().find("is full") != std::string::npos);
    }
    const LedgerFolder left(folder.path());
    const TestRing restored(with_ledger(left.path(), Durable::group, bytes));
    auto restore = LedgerRestore::begin(left.path(), restored.name());
    REQUIRE(restore.has_value());
    for (const std::string& name : {ring.name(), restored.name()}) {
        CAPTURE(name);
        const auto stash = open_stash(name);
        std::int64_t step = next_step(*stash);
        const auto train = [&] {
            while (stash->next(batch, Deadline::after_ms(100)) == NextBatch::batch) {
                REQUIRE(batch.ack(step++).has_value());
            }
        };
        train();
        while (name == restored.name()) {
            const auto sent = restore->send(Deadline::now());
            if (sent && !*sent) break;
            if (sent) continue;
            REQUIRE(sent.error().code == Errc::timed_out);
            const std::int64_t before = step;
            train();  // makes room
            REQUIRE(step > before);
        }
        train();
        if (name != ring.name()) CHECK(step >= trained);
        const auto settled = stash->checkpointed(step);
        REQUIRE(settled.has_value());
        CHECK(*settled >= 2 * static_cast<std::uint64_t>(trained));
        Producer worker = open_producer(name);
        send_pair(worker, "later");
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        CHECK(stash->waits_for().find("is full") == std::string::npos);
        CHECK(batch.ack(step).has_value());
    }
}

TEST_CASE("ledger: a restore sends its records into a ring that workers have opened, once") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    send_pair(producer, "kept");
    CHECK(train_all(*open_stash(ring.name())) == Prompts{"kept"});
    const LedgerFolder left(folder.path());
    const TestRing made(with_ledger(left.path()));
    Producer worker = made.producer();
    {
        auto restore = LedgerRestore::begin(left.path(), made.name());
        REQUIRE_MESSAGE(restore.has_value(), (restore ? "" : restore.error().to_string()));
        send_pair(worker, "new");
        REQUIRE(restore->send(patience()).value());
    }
    const auto again = LedgerRestore::begin(left.path(), made.name());
    REQUIRE_FALSE(again.has_value());
    CHECK(again.error().code == Errc::busy);
    send_pair(worker, "later");
    const auto stash = open_stash(made.name());
    Prompts given = train_all(*stash);
    std::ranges::sort(given);
    CHECK(given == Prompts{"later", "new"});
    CHECK(stash->checkpointed(next_step(*stash)).value() == 4);
    CHECK(look_at(left.path()).records == 2);
}

TEST_CASE("ledger: the steps of a restored ring go on after those that its checkpoint has") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    {
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        for (const char* prompt : {"a", "b", "c", "d"}) {
            send_pair(producer, prompt);
            CHECK(train_all(*stash) == Prompts{prompt});  // steps 0 to 3
        }
        CHECK(stash->checkpointed(1).value() == 4);
    }
    for (const std::int64_t last : {1, 2}) {
        CAPTURE(last);
        const LedgerFolder left(folder.path());
        RestoreOptions options;
        if (last == 2) options.step = last;
        const RestoredRing second(left.path(), options);
        CHECK(open_stash(second.name())->last_acked_step() == last);
        const LedgerFolder left_again(left.path());
        const RestoredRing third(left_again.path());
        const auto stash = open_stash(third.name());
        CHECK(stash->last_acked_step() == last);
        Batch batch;
        CHECK_FALSE(next_prompt(*stash, batch).empty());
        CHECK_FALSE(batch.ack(last - 1).has_value());
        CHECK(batch.ack(last + 1).has_value());
        CHECK(stash->checkpointed(last).value() == 0);
        CHECK(stash->checkpointed(last + 1).value() == 2);
    }
    // All is settled: another run may use the directory, and its steps begin at 0.
    CHECK(open_stash(ring.name())->checkpointed(3).value() == 4);
    const TestRing other(with_ledger(folder.path()));
    CHECK(open_stash(other.name())->last_acked_step() == -1);
}

TEST_CASE("ledger: a directory is of one ring, one stash and one version") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        read_all(*stash);
        const TestRing other(with_ledger(folder.path()));
        const auto restore = LedgerRestore::begin(folder.path(), scratch_name("none"));
        REQUIRE_FALSE(restore.has_value());
        CHECK(restore.error().code == Errc::busy);
    }
    const TestRing other(with_ledger(folder.path()));
    const auto opened = Stash::open(other.name(), freshest_pair);
    REQUIRE_FALSE(opened.has_value());
    CHECK(opened.error().code == Errc::busy);
    CHECK(opened.error().message.find("rollring restore") != std::string::npos);

    const auto consumer = Consumer::open(ring.name());
    REQUIRE_FALSE(consumer.has_value());
    CHECK(consumer.error().code == Errc::invalid_argument);

    for (const std::uint32_t version : {0U, 2U}) {  // an older and a newer one
        const LedgerFolder copy(folder.path());
        std::fstream file(copy.files(".ledger").front(),
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(8);
        file.write(reinterpret_cast<const char*>(&version), sizeof version);
        // Its writer's checksum: with another one, the version is damaged.
        recording::FileHeader header{};
        file.seekg(0);
        file.read(reinterpret_cast<char*>(&header), sizeof header);
        std::string columns(header.columns_bytes, '\0');
        file.read(columns.data(), static_cast<std::streamsize>(columns.size()));
        header.checksum = XXH3_64bits(&header, offsetof(recording::FileHeader, checksum)) ^
                          XXH3_64bits_withSeed(columns.data(), columns.size(), header.file_id);
        file.seekp(0);
        file.write(reinterpret_cast<const char*>(&header), sizeof header);
        file.close();
        const auto stat = stat_ledger(copy.path());
        REQUIRE_FALSE(stat.has_value());
        CHECK(stat.error().code == Errc::abi_mismatch);
        const auto restore = LedgerRestore::begin(copy.path(), scratch_name("none"));
        REQUIRE_FALSE(restore.has_value());
        CHECK(restore.error().code == Errc::abi_mismatch);
        const TestRing refused(with_ledger(copy.path()));
        const auto stash = Stash::open(refused.name(), freshest_pair);
        REQUIRE_FALSE(stash.has_value());
        CHECK(stash.error().code == Errc::abi_mismatch);
    }
}

TEST_CASE("ledger: a chunk of marks alone, which has no memory, is padded to nothing") {
    ledger::BlockBuffer buffer;
    buffer.pad();
    CHECK(buffer.used() == 0);
    buffer.grow(1);
    buffer.pad();
    CHECK(buffer.used() == ledger::block);
    buffer.pad();
    CHECK(buffer.used() == ledger::block);
}
