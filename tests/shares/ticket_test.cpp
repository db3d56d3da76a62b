// Goal: with any bytes in a ticket, and any bytes in the words that readers and the trainer share,
// no reader reads outside the ring, waits without end, or takes other bytes for its share.
#include <doctest/doctest.h>

#include <cstring>

#include "hostile/pages.hpp"
#include "pair_batch.hpp"
#include "support/splitmix64.hpp"
#include "ticket.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

bool is_refusal(const Error& error) {
    return error.code == Errc::invalid_argument || error.code == Errc::stale_ticket ||
           error.code == Errc::bad_record;
}

SharePage& share_page(const Pages& pages) {
    return pages.all.at<SharePage>(pages.geometry.shares_offset());
}
ShareSeat& seat(const Pages& pages, std::uint32_t number) {
    return pages.all.at<ShareSeat>(pages.geometry.share_seats_offset() +
                                   number * sizeof(ShareSeat));
}

}  // namespace

TEST_CASE("ticket: bytes that are none are refused by name") {
    PairBatch world(3);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    for (std::size_t bytes = 0; bytes < ticket.size(); bytes++) {
        CHECK(failed_with(reader.open(ticket.substr(0, bytes)), Errc::invalid_argument));
    }
    CHECK(failed_with(reader.open(ticket + "x"), Errc::invalid_argument));
    CHECK(failed_with(reader.open(world.batch.receipt()), Errc::invalid_argument));
    Dice dice{5};
    for (int i = 0; i < 3000; i++) {
        std::string bad = ticket;
        bad[dice.below(bad.size())] ^= static_cast<char>(1 << dice.below(8));
        CHECK(failed_with(reader.open(bad), Errc::invalid_argument));
    }
    CHECK(reader.open(ticket).has_value());
}

// With a check that holds: the ticket of a sender that knows the format.
TEST_CASE("ticket: fields of any value are refused, or name records of this ring") {
    PairBatch world(3);
    auto reader = world.reader();
    const auto good = Ticket::read(world.ticket());
    REQUIRE(good.has_value());
    Dice dice{7};
    const auto any = [&](std::uint64_t was) -> std::uint64_t {
        switch (dice.below(6)) {
            case 0:
                return was + 64 * dice.below(9) - 256;
            case 1:
                return was ^ (std::uint64_t{1} << dice.below(64));
            case 2:
                return ~std::uint64_t{0} - dice.below(3);
            case 3:
                return dice.below(5);
            case 4:
                return dice.next();
            default:
                return std::uint64_t{1} << dice.below(64);
        }
    };
    int refused = 0;
    for (int i = 0; i < 20'000; i++) {
        Ticket bad = *good;
        for (std::uint64_t times = 1 + dice.below(2); times > 0; times--) {
            auto& record = bad.records[dice.below(bad.records.size())];
            auto& group = bad.groups[dice.below(bad.groups.size())];
            // One word of one of the three, whatever it is.
            auto* words = reinterpret_cast<std::byte*>(&record);
            std::size_t bytes = sizeof record;
            if (dice.below(4) == 0) {
                words = reinterpret_cast<std::byte*>(&group);
                bytes = sizeof group;
            } else if (dice.below(4) == 0) {
                words = reinterpret_cast<std::byte*>(&bad.head);
                bytes = sizeof bad.head;
            }
            std::byte* const at = words + 4 * dice.below(bytes / 4);
            std::uint32_t word;
            std::memcpy(&word, at, 4);
            word = static_cast<std::uint32_t>(any(word));
            std::memcpy(at, &word, 4);
        }
        const auto share = reader.open(bad.write());
        if (!share) {
            REQUIRE_MESSAGE(is_refusal(share.error()), share.error().to_string());
            refused++;
            continue;
        }
        std::uint64_t sum = 0;
        for (const Sequence& one : share->sequences()) {
            for (const std::int32_t token : one.view.token_ids()) sum += token != 0 ? 1 : 0;
        }
        CHECK(sum < 10'000);
    }
    CHECK(refused > 10'000);
    CHECK(world.batch.ack(0, Deadline::now()).has_value());  // nothing was left held
}

TEST_CASE("ticket: of a ring that was made anew") {
    PairBatch world(1);
    const std::string ticket = world.ticket();
    const PairBatch other(1);
    CHECK(failed_with(other.reader().open(ticket), Errc::stale_ticket));
}

TEST_CASE("ticket: a reader's seat that is written over is noticed by its check") {
    PairBatch world(2);
    const Pages pages(world.ring);
    auto reader = world.reader();
    auto share = reader.open(world.ticket());
    REQUIRE(share.has_value());
    std::uint32_t number = 0;
    while (seat(pages, number).holds[0] == 0) number++;
    seat(pages, number).holds[0] = 77;
    CHECK(world.batch.ack(0, Deadline::now()).has_value());  // no reader seems to hold it
    CHECK(failed_with(share->check(), Errc::stale_ticket));
}

TEST_CASE("ticket: seats and numbers of any value keep nobody from acknowledging") {
    Dice dice{3};
    for (int round = 0; round < 200; round++) {
        PairBatch world(1);
        const Pages pages(world.ring);
        const std::string ticket = world.ticket();
        const std::uint64_t number = Ticket::read(ticket)->head.number;
        for (std::uint32_t i = 0; i < share_seats; i++) {
            seat(pages, i).pid = static_cast<std::uint32_t>(dice.next());
            for (auto& held : seat(pages, i).holds) {
                held = dice.below(2) == 0 ? number : dice.next();
            }
        }
        share_page(pages).numbers = dice.below(2) == 0 ? ~std::uint64_t{0} : dice.next();
        auto reader = world.reader();
        const auto share = reader.open(ticket);
        REQUIRE(share.has_value());
        check_same(*share, world.batch);
        for (auto& batch : share_page(pages).batches) {
            if (dice.below(2) == 0) batch = dice.next();
        }
        const auto checked = share->check();
        if (!checked) CHECK(checked.error().code == Errc::stale_ticket);
        const auto refused = world.batch.ack(0, Deadline::now());
        CHECK(failed_with(refused, Errc::busy));  // the one that does read it
        CHECK(failed_with(Batch().ticket(), Errc::not_leased));
        world.batch.nack();
    }
}

TEST_CASE("ticket: a record that was damaged meanwhile is refused") {
    PairBatch world(1);
    const Pages pages(world.ring);
    auto reader = world.reader();
    const std::string ticket = world.ticket();
    const auto named = Ticket::read(ticket);
    const TicketRecord& first = named->records.front();
    std::byte* const frame = pages.data(first.lane) + first.position;  // of the first lap
    SUBCASE("its frame") {
        frame[24] ^= std::byte{1};
    }
    SUBCASE("its header") {
        frame[64] ^= std::byte{1};
    }
    SUBCASE("its length") {
        frame[64 + 88] ^= std::byte{1};
    }
    CHECK(failed_with(reader.open(ticket), Errc::bad_record));
    CHECK(world.batch.ack(0, Deadline::now()).has_value());
}
