// Records of groups that stay open, which move from the oldest file into the newest one.

#include <fstream>
#include <iterator>

#include "faulty_disk.hpp"
#include "ledgers.hpp"

using namespace rollring;
using namespace rollring::test;

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
        Batch batch;
        for (std::int64_t step = 0; step < 28; step++) {
            for (std::uint32_t i = 0; i < 2; i++) {
                REQUIRE(send_bytes(producer, "prompt " + std::to_string(step), i, 10 * kib,
                                   patience()) == Push::ok);
            }
            REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
            REQUIRE(batch.ack(step).has_value());
            CHECK(stash->checkpointed(step).value() == 2);
        }
    }
    const LedgerFolder left(folder.path());
    int torn = 0;
    for (const auto& path : left.files(".ledger")) {
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        const std::size_t at = bytes.find("moves");
        if (at == std::string::npos || path == left.files(".ledger").front()) continue;
        file.seekp(static_cast<std::streamoff>(at));
        file.write("\0\0\0\0\0", 5);
        torn++;
    }
    CHECK(torn > 0);
    CHECK(look_at(left.path()).records == 1);
    CHECK(look_at(left.path()).unreadable == 0);
    const RestoredRing again(left.path());
    Producer worker = open_producer(again.name());
    send(worker, "moves", 1, 2);
    CHECK(train_all(*open_stash(again.name())) == Prompts{"moves"});
}
