// Records of groups that stay open, which move from the oldest file into the newest one.

#include <algorithm>

#include "faulty_disk.hpp"
#include "ledgers.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// Pairs of 20 KiB, each of which is trained on and settled.
void train_and_settle(Producer& producer, Stash& stash, std::int64_t steps) {
    Batch batch;
    for (std::int64_t step = 0; step < steps; step++) {
        for (std::uint32_t i = 0; i < 2; i++) {
            REQUIRE(send_bytes(producer, "prompt " + std::to_string(step), i, 10 * kib,
                               patience()) == Push::ok);
        }
        REQUIRE(stash.next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(step).has_value());
        CHECK(stash.checkpointed(step).value() == 2);
    }
}

// Zeros in place of the first such text. False: there is none.
bool clear_text(const std::filesystem::path& path, const std::string& text) {
    Bytes bytes = bytes_of(path);
    const auto found = std::ranges::search(bytes, text);
    if (found.empty()) return false;
    std::ranges::fill(found, '\0');
    write_bytes(path, bytes);
    return true;
}

}  // namespace

TEST_CASE("ledger: a group that stays open keeps no file of later groups") {
    const LedgerFolder folder;
    constexpr std::uint64_t bytes = 1 << 20;
    const TestRing ring(with_ledger(folder.path(), Durable::group, bytes));
    Producer producer = ring.producer();
    send(producer, "open", 0, 2);
    Batch batch;
    std::int64_t step = 0;
    for (int session = 0; session < 3; session++) {
        CAPTURE(session);
        const auto stash = open_stash(ring.name());
        for (const std::int64_t end = step + 300; step < end; step++) {
            const std::string prompt = "prompt " + std::to_string(step);
            for (std::uint32_t i = 0; i < 2; i++) {
                REQUIRE(send_bytes(producer, prompt, i, 10 * kib, patience()) == Push::ok);
            }
            REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
            REQUIRE(batch.ack(step).has_value());
            CHECK(stash->checkpointed(step).value() == 2);
        }
        CHECK(look_at(folder.path()).file_bytes <= bytes);
    }
    {
        const LedgerFolder left(folder.path());
        CHECK(look_at(left.path()).records == 1);
        const RestoredRing again(left.path());
        Producer worker = open_producer(again.name());
        send(worker, "open", 1, 2);
        CHECK(train_all(*open_stash(again.name())) == Prompts{"open"});
    }
    send(producer, "open", 1, 2);
    CHECK(train_all(*open_stash(ring.name())) == Prompts{"open"});
}

TEST_CASE("ledger: a torn copy of a record that moves takes nothing from the first one") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::group, 1 << 20));
    InUse<FailingDisk> disk(Call::remove, EIO, 0);  // the first one stays, as if its writer died
    Producer producer = ring.producer();
    send(producer, "moves", 0, 2);
    {
        const auto stash = open_stash(ring.name());
        train_and_settle(producer, *stash, 28);
    }
    const LedgerFolder left(folder.path());
    int torn = 0;
    for (const auto& path : left.files(".ledger")) {
        if (path != left.files(".ledger").front() && clear_text(path, "moves")) torn++;
    }
    CHECK(torn > 0);
    CHECK(look_at(left.path()).records == 1);
    CHECK(look_at(left.path()).unreadable == 0);
    const RestoredRing again(left.path());
    Producer worker = open_producer(again.name());
    send(worker, "moves", 1, 2);
    CHECK(train_all(*open_stash(again.name())) == Prompts{"moves"});
}

TEST_CASE("ledger: a damaged copy of a record that moved takes it out of no restored ring") {
    const LedgerFolder folder;
    {
        const TestRing ring(with_ledger(folder.path(), Durable::group, std::uint64_t{1} << 20));
        Producer producer = ring.producer();
        send(producer, "moves", 0, 2);
        const auto stash = open_stash(ring.name());
        train_and_settle(producer, *stash, 100);
    }
    // The file of the first copy is gone, and all numbers below those of the oldest file are.
    REQUIRE(folder.files(".ledger").front().filename() != "00000001.ledger");
    const RestoredRing again(folder.path());
    CHECK(again.stat().sent == 1);
    int damaged = 0;
    for (const auto& path : folder.files(".ledger")) damaged += clear_text(path, "moves") ? 1 : 0;
    CHECK(damaged == 1);
    CHECK(look_at(folder.path()).unreadable == 1);
    const auto stash = open_stash(again.name());
    Producer worker = open_producer(again.name());
    send(worker, "moves", 1, 2);
    CHECK(train_all(*stash) == Prompts{"moves"});
    CHECK(look_at(folder.path()).records == 2);
}
