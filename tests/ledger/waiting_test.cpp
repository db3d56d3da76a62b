// A stash that waits for its ledger's disk: the work that goes on meanwhile, and the end of waits.

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "chunk.hpp"
#include "faulty_disk.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// Each sync waits until `may_go`, and fails the test if that takes too long.
class WaitingDisk : public ledger::Disk {
  public:
    explicit WaitingDisk(std::function<bool()> may_go) : may_go_(std::move(may_go)) {}
    int sync(int fd) override {
        const Deadline patience = Deadline::after_ms(20'000);
        while (!may_go_()) {
            if (patience.passed()) {
                gave_up_ = true;
                break;
            }
            std::this_thread::yield();
        }
        return Disk::sync(fd);
    }
    int write(int fd, std::span<const std::byte> bytes, std::uint64_t offset) override {
        longest_ = std::max(longest_.load(), bytes.size());
        return Disk::write(fd, bytes, offset);
    }
    [[nodiscard]] std::size_t longest_write() const { return longest_; }
    [[nodiscard]] bool gave_up() const { return gave_up_; }

  private:
    std::function<bool()> may_go_;
    std::atomic<bool> gave_up_ = false;
    std::atomic<std::size_t> longest_ = 0;
};

std::uint64_t delivered_of(const std::string& ring) {
    const auto stat = stat_ring(ring);
    return stat && !stat->lanes.empty() ? stat->lanes.front().delivered_records : 0;
}

}  // namespace

TEST_CASE("ledger: the next batch is read while an acknowledgement waits for the disk") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    std::atomic<std::uint64_t> wanted = 0;
    InUse<WaitingDisk> disk([&] { return delivered_of(ring.name()) >= wanted; });
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(1)});
    send_pair(producer, "first");
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(stash->sync_ledger(patience()).has_value());
    wanted = 4;
    for (const char* prompt : {"second", "third"}) send_pair(producer, prompt);
    REQUIRE(batch.ack(0).has_value());
    CHECK_FALSE(disk->gave_up());
    // No more than the next batch.
    CHECK(delivered_of(ring.name()) == 4);
    CHECK(train_all(*stash) == Prompts{"second", "third"});
    const LedgerFolder left(folder.path());
    CHECK(look_at(left.path()).acked == 6);
}

TEST_CASE("ledger: records that wait for a busy disk go there in writes of a bounded length") {
    constexpr std::uint64_t tokens = 3 << 16;
    const LedgerFolder folder;
    RingOptions options = with_ledger(folder.path(), Durable::group, std::uint64_t{512} << 20);
    options.lane_bytes = std::uint64_t{64} << 20;
    options.spill_bytes = std::uint64_t{128} << 20;
    const TestRing ring(options);
    constexpr std::uint64_t records = 25;
    InUse<WaitingDisk> disk([&] { return delivered_of(ring.name()) >= records; });
    Producer producer = ring.producer();
    for (std::uint32_t i = 0; i < records; i++) {
        const Sent one{.prompt = std::to_string(i), .group_size = 2, .tokens = tokens + i};
        REQUIRE_MESSAGE(send(producer, one) == Push::ok, producer.problem());
    }
    const auto sent = sent_into(ring.name());
    read_all(*open_stash(ring.name()));
    CHECK_FALSE(disk->gave_up());
    CHECK(disk->longest_write() > ledger::chunk_bytes / 2);
    CHECK(disk->longest_write() <= ledger::chunk_bytes);
    const LedgerFolder left(folder.path());
    const RestoredRing again(left.path(), {.ledger_dir = ""});
    CHECK(sent_into(again.name()) == sent);
}

TEST_CASE("ledger: an entry that is longer than a chunk goes to the disk in one write") {
    const LedgerFolder folder;
    RingOptions options = with_ledger(folder.path(), Durable::group, std::uint64_t{512} << 20);
    options.lane_bytes = std::uint64_t{64} << 20;
    options.spill_bytes = std::uint64_t{128} << 20;
    const TestRing ring(options);
    InUse<WaitingDisk> disk([] { return true; });
    Producer producer = ring.producer();
    for (std::uint32_t i = 0; i < 3; i++) {
        const std::uint64_t tokens = i == 1 ? 3 << 20 : 3;
        const Sent one{.prompt = std::to_string(i), .group_size = 2, .tokens = tokens + i};
        REQUIRE_MESSAGE(send(producer, one) == Push::ok, producer.problem());
    }
    const auto sent = sent_into(ring.name());
    read_all(*open_stash(ring.name()));
    CHECK(disk->longest_write() > ledger::chunk_bytes);
    const LedgerFolder left(folder.path());
    const RestoredRing again(left.path(), {.ledger_dir = ""});
    CHECK(sent_into(again.name()) == sent);
}

TEST_CASE("ledger: a disk that hangs holds next() no longer than its deadline") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    std::atomic<bool> hangs = true;
    InUse<WaitingDisk> disk([&] { return !hangs; });
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send_pair(producer, "first");
    Batch batch;
    CHECK(stash->next(batch, Deadline::after_ms(50)) == NextBatch::timed_out);
    CHECK(delivered_of(ring.name()) == 2);
    CHECK_FALSE(disk->gave_up());
    hangs = false;
    CHECK(stash->next(batch, patience()) == NextBatch::batch);
}

TEST_CASE("ledger: an interrupt ends a wait for a disk that hangs") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    std::atomic<bool> hangs = true;
    InUse<WaitingDisk> disk([&] { return !hangs; });
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send_pair(producer, "first");
    std::thread other([&] {
        while (delivered_of(ring.name()) < 2) std::this_thread::yield();
        stash->interrupt();
    });
    Batch batch;
    CHECK(stash->next(batch, patience()) == NextBatch::timed_out);
    other.join();
    CHECK_FALSE(disk->gave_up());
    hangs = false;
    CHECK(stash->next(batch, patience()) == NextBatch::batch);
}

TEST_CASE("ledger: rest() waits for the disk, with a record durable each") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    std::atomic<bool> hangs = true;
    InUse<WaitingDisk> disk([&] { return !hangs; });
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name(), {.group_size = 2, .batch = BatchTarget::groups(2)});
    send_pair(producer, "alone");
    std::thread other([&] {
        while (delivered_of(ring.name()) < 2) std::this_thread::yield();
        hangs = false;
    });
    Batch batch;
    CHECK(stash->rest(batch) == NextBatch::batch);
    other.join();
    CHECK(batch.sequences().size() == 2);
    CHECK_FALSE(disk->gave_up());
}

TEST_CASE("ledger: of records that keep coming, those that the disk has come in a batch") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    std::atomic<bool> hangs = true;
    InUse<WaitingDisk> disk([&] { return !hangs; });
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send_pair(producer, "first");
    Batch batch;
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::timed_out);
    hangs = false;
    REQUIRE(stash->sync_ledger(patience()).has_value());
    hangs = true;
    send_pair(producer, "second");
    CHECK(stash->next(batch, Deadline::now()) == NextBatch::batch);
    hangs = false;
}

TEST_CASE("ledger: rest() gives all complete groups, with a record durable each") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::record));
    Producer producer = ring.producer();
    const auto stash =
        open_stash(ring.name(), {.group_size = 2, .batch = BatchTarget::tokens(1 << 20)});
    for (const char* prompt : {"first", "second", "third"}) send_pair(producer, prompt);
    Batch batch;
    CHECK(stash->rest(batch) == NextBatch::batch);
    CHECK(batch.sequences().size() == 6);
}

TEST_CASE("ledger: nothing counts as durable after a failure, also if that came with a removal") {
    int refused_acks = 0;
    for (int call = 1; call < 16; call++) {
        CAPTURE(call);
        const LedgerFolder folder;
        const TestRing ring(with_ledger(folder.path(), Durable::group, std::uint64_t{1} << 20));
        InUse<FailingDisk> disk(Call::names, EIO, call);
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        Batch batch;
        for (int pair = 0; !disk->has_failed(); pair++) {
            send_pair(producer, std::to_string(pair));
            if (stash->next(batch, patience()) != NextBatch::batch) break;
            if (pair % 40 == 39) {
                static_cast<void>(stash->checkpointed(stash->last_acked_step()));
                // Files are removed after the settlement is durable, unless the batch lies in one.
                const Deadline enough = Deadline::after_ms(100);
                while (!disk->has_failed() && folder.files(".ledger").size() > 1 &&
                       !enough.passed()) {
                    std::this_thread::yield();
                }
                if (disk->has_failed()) break;
            }
            if (!batch.ack(next_step(*stash))) break;
        }
        while (stash->problem().empty()) std::this_thread::yield();
        if (!batch.leased()) continue;
        CHECK_FALSE(batch.ack(next_step(*stash)).has_value());
        CHECK_FALSE(stash->sync_ledger(patience()).has_value());
        refused_acks++;
    }
    CHECK(refused_acks != 0);
}
