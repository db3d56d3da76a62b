// Goal: a rank in another process reads its share in place, and never other bytes that it could
// take for it: a trainer that gives the batch back waits for it, or its check says so.
#include <doctest/doctest.h>

#include <csignal>

#include "hostile/pages.hpp"
#include "pair_batch.hpp"
#include "rollring/gather.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// A process that opens a share, and then does nothing more: it says so by a byte.
struct HoldingChild {
    explicit HoldingChild(const std::string& ring, const std::string& ticket) {
        int pipes[2];
        REQUIRE(pipe(pipes) == 0);
        pid = start_child([&] {
            auto reader = Reader::attach(ring, {.name = "held"});
            if (!reader) return 1;
            const auto share = reader->open(ticket);
            if (!share || write(pipes[1], "x", 1) != 1) return 2;
            for (;;) pause();
        });
        char byte;
        const bool said = read(pipes[0], &byte, 1) == 1;
        close(pipes[0]);
        close(pipes[1]);
        REQUIRE(said);
    }
    HoldingChild(const HoldingChild&) = delete;
    HoldingChild& operator=(const HoldingChild&) = delete;
    ~HoldingChild() { kill_and_collect(pid); }
    pid_t pid = 0;
};

}  // namespace

TEST_CASE("reader: ranks in other processes see their shares of a batch, and together all of it") {
    PairBatch world(5);
    for (std::uint32_t rank = 0; rank < 2; rank++) {
        const std::string ticket = world.ticket({.rank = rank, .world = 2});
        const int status = in_child([&] {
            auto reader = Reader::attach(world.ring.name());
            auto share = reader->open(ticket);
            if (!share || share->sequences().empty() || share->rank() != rank) return 1;
            for (std::size_t i = 0; i < share->sequences().size(); i++) {
                const std::uint32_t group = share->indices()[i] / 2;
                const std::uint32_t repetition = share->indices()[i] % 2;
                const TrajectoryView& view = share->sequences()[i].view;
                if (view.instance_id() != "g" + std::to_string(group)) return 2;
                if (view.n_tokens() != tokens_of(group, repetition)) return 3;
                for (const std::int32_t token : view.token_ids()) {
                    if (token != static_cast<std::int32_t>(repetition)) return 4;
                }
            }
            return share->check() && share->close() ? 0 : 5;
        });
        CHECK(status == 0);
    }
    auto reader = world.reader();
    for (const SplitBy by : {SplitBy::tokens, SplitBy::group_tokens, SplitBy::sequences,
                             SplitBy::groups, SplitBy::same}) {
        std::size_t seen = 0;
        for (std::uint32_t rank = 0; rank < 3; rank++) {
            const auto share = reader.open(world.ticket({.rank = rank, .world = 3, .by = by}));
            REQUIRE(share.has_value());
            check_same(*share, world.batch);
            seen += share->sequences().size();
        }
        CHECK(seen == (by == SplitBy::same ? 30 : 10));
    }
    CHECK(world.batch.ack(0).has_value());
}

TEST_CASE("reader: a share is packed as a batch is") {
    PairBatch world(3);
    auto reader = world.reader();
    const auto share = reader.open(world.ticket({.rank = 1, .world = 2}));
    REQUIRE(share.has_value());
    GatherColumn column{.column = static_cast<std::uint16_t>(Std::token_ids)};
    const auto shape = gathered_shape(*share, reader.schema(), column, {});
    REQUIRE(shape.has_value());
    std::vector<std::int32_t> packed(shape->elements());
    column.to = std::as_writable_bytes(std::span(packed));
    REQUIRE(gather(*share, reader.schema(), {&column, 1}, {}).has_value());
    for (std::size_t i = 0; i < share->sequences().size(); i++) {
        const auto begin = packed.begin() + share->cu_seqlens()[i];
        CHECK(std::ranges::equal(std::span(begin, packed.begin() + share->cu_seqlens()[i + 1]),
                                 share->sequences()[i].view.token_ids()));
    }
}

TEST_CASE("reader: ack waits for who reads, names him at its deadline, and changes nothing then") {
    PairBatch world(2);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    auto share = reader.open(ticket);
    REQUIRE(share.has_value());
    const auto refused = world.batch.ack(0, Deadline::now());
    REQUIRE(failed_with(refused, Errc::busy));
    CHECK(refused.error().message.find("rank (pid " + std::to_string(getpid())) !=
          std::string::npos);
    CHECK(world.batch.leased());
    CHECK(world.stash->last_acked_step() == -1);
    CHECK(share->check().has_value());
    CHECK(reader.open(ticket).has_value());  // still good
    CHECK(share->close().has_value());
    CHECK(failed_with(share->close(), Errc::not_leased));
    CHECK(share->sequences().empty());
    CHECK(world.batch.ack(0).has_value());
    CHECK(failed_with(reader.open(ticket), Errc::stale_ticket));
}

TEST_CASE("reader: ack goes on as soon as the last one lets go") {
    PairBatch world(2);
    const std::string ticket = world.ticket();
    const HoldingChild child(world.ring.name(), ticket);
    CHECK(failed_with(world.batch.ack(0, Deadline::now()), Errc::busy));
    kill(child.pid, SIGKILL);
    CHECK(world.batch.ack(0, patience()).has_value());  // without the dead, whatever it held
}

TEST_CASE("reader: one that is stopped is not taken for dead") {
    PairBatch world(2);
    const HoldingChild child(world.ring.name(), world.ticket());
    kill(child.pid, SIGSTOP);
    await_stopped(child.pid);
    const auto refused = world.batch.ack(0, Deadline::after_ms(150));
    REQUIRE(failed_with(refused, Errc::busy));
    CHECK(refused.error().message.find("held") != std::string::npos);
    CHECK(world.batch.leased());
}

TEST_CASE("reader: a batch that is given back makes its tickets stale, whoever reads") {
    PairBatch world(2);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    auto share = reader.open(ticket);
    REQUIRE(share.has_value());
    world.batch.nack();
    CHECK(failed_with(share->check(), Errc::stale_ticket));
    CHECK(failed_with(share->close(), Errc::stale_ticket));
    CHECK(failed_with(reader.open(ticket), Errc::stale_ticket));
    // Its groups are delivered again, as another batch.
    world.lease();
    CHECK(failed_with(reader.open(ticket), Errc::stale_ticket));
    const auto again = reader.open(world.ticket());
    REQUIRE(again.has_value());
    check_same(*again, world.batch);
}

TEST_CASE("reader: what a trainer shared is good until another takes its place") {
    PairBatch world(2);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    auto share = reader.open(ticket);
    REQUIRE(share.has_value());
    world.stash.reset();
    CHECK(share->check().has_value());
    CHECK(reader.open(ticket).has_value());
    SUBCASE("a trainer") {
        world.stash = open_stash(world.ring, {.group_size = 2, .batch = BatchTarget::groups(2)});
        world.lease();
        CHECK(world.batch.ack(0).has_value());
    }
    SUBCASE("a plain consumer") {
        auto consumer = world.ring.consumer();
        Record record;
        CHECK(consumer.wait(record, patience()) == Poll::record);
    }
    CHECK(failed_with(share->check(), Errc::stale_ticket));
    CHECK(failed_with(reader.open(ticket), Errc::stale_ticket));
}

TEST_CASE("reader: a step that is refused leaves a batch shared") {
    PairBatch world(2);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    CHECK(failed_with(world.batch.ack(-1), Errc::invalid_argument));
    CHECK(reader.open(ticket).has_value());
}

TEST_CASE("reader: eight shares at a time, 63 batches, and a batch that moves") {
    PairBatch world(1);
    auto reader = world.reader();
    Batch moved = std::move(world.batch);
    const std::string ticket = *moved.ticket();
    std::vector<Share> shares;
    shares.reserve(8);
    for (std::uint32_t i = 0; i < 8; i++) shares.push_back(std::move(*reader.open(ticket)));
    CHECK(failed_with(reader.open(ticket), Errc::busy));
    shares.erase(shares.begin());
    shares.push_back(std::move(*reader.open(ticket)));
    for (const Share& share : shares) CHECK(share.check().has_value());
    CHECK(failed_with(moved.ack(0, Deadline::now()), Errc::busy));
    shares.clear();
    CHECK(moved.ack(0).has_value());

    auto producer = world.ring.producer();
    std::vector<Batch> batches(64);
    for (std::size_t i = 0; i < batches.size(); i++) {
        for (std::uint32_t r = 0; r < 2; r++) {
            REQUIRE(send(producer,
                         {.prompt = "m" + std::to_string(i), .repetition = r, .group_size = 2}) ==
                    Push::ok);
        }
        REQUIRE(world.stash->next(batches[i], patience()) == NextBatch::batch);
        if (i < 63) CHECK(batches[i].ticket().has_value());
    }
    CHECK(failed_with(batches[63].ticket(), Errc::busy));
    CHECK(batches[0].ack(1).has_value());
    CHECK(batches[63].ticket().has_value());
}

TEST_CASE("reader: a forked child has none of its parent's") {
    PairBatch world(2);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    auto share = reader.open(ticket);
    REQUIRE(share.has_value());
    const int status = in_child([&] {
        if (share->leased()) return 1;
        if (!failed_with(share->check(), Errc::forked)) return 2;
        if (!failed_with(reader.open(ticket), Errc::forked)) return 3;
        if (!failed_with(share->close(), Errc::forked)) return 4;
        return 0;
    });
    CHECK(status == 0);
    CHECK(failed_with(world.batch.ack(0, Deadline::now()), Errc::busy));  // the parent's holds
    CHECK(share->check().has_value());
}

TEST_CASE("reader: a ring is in use while somebody reads it") {
    PairBatch world(1);
    auto reader = world.reader();
    world.batch.nack();
    world.stash.reset();
    const auto refused = remove_ring(world.ring.name(), false);
    CHECK(failed_with(refused, Errc::busy));
    {
        const Reader gone = std::move(reader);
    }
    CHECK(remove_ring(world.ring.name(), false).has_value());
    CHECK(failed_with(Reader::attach(world.ring.name(), {.attach_timeout = {}}), Errc::not_found));
}

TEST_CASE("reader: a lane that somebody may still look at is not given back to the system") {
    PairBatch world(1);
    const Pages pages(world.ring);
    auto reader = std::make_unique<Reader>(world.reader());
    auto share = reader->open(world.ticket());
    REQUIRE(share.has_value());
    int closed = 0;
    const auto until_closed = [&](int producers) {
        for (Event event; closed < producers;) {
            static_cast<void>(world.stash->next(world.batch, Deadline::after_ms(1)));
            while (world.stash->next_event(event)) {
                closed += event.kind == Event::Kind::producer_closed ? 1 : 0;
            }
        }
    };
    world.batch.nack();
    world.lease();
    REQUIRE(world.batch.ack(0).has_value());  // under a share that is stale
    until_closed(1);                          // the sender of those
    auto producer = world.ring.producer();
    const std::uint64_t before = pages.map.segment().resident_bytes();
    producer.close();
    until_closed(2);
    CHECK(pages.map.segment().resident_bytes() == before);
    CHECK(failed_with(share->close(), Errc::stale_ticket));
    reader.reset();
    world.ring.producer().close();
    until_closed(3);
    CHECK(pages.map.segment().resident_bytes() < before);
}

TEST_CASE("reader: records in the spill are read there") {
    const TestRing ring(small_lanes);
    const auto stash = open_stash(ring, freshest_pair);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    send(producer, "old", 0);
    pass_pairs(producer, *stash, "p", 60, seen);
    REQUIRE(stash->copies().evacuated_records == 1);
    send(producer, "old", 1);
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    auto reader = Reader::attach(ring.name());
    REQUIRE(reader.has_value());
    const auto share = reader->open(*batch.ticket());
    REQUIRE(share.has_value());
    check_same(*share, batch);
    CHECK(share->sequences().front().view.instance_id() == "old");
}
