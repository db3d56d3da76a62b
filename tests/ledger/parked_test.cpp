// Parked rollouts: each is taken by one process at a time, and never with other bytes.

#include <random>

#include "parked.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// Tells whether the damaged file is named and left alone; one that reads is the same rollout.
bool is_named(Parking& parking, const std::filesystem::path& directory) {
    const ParkedList list = listed(directory);
    CHECK(list.rollouts.size() + list.damaged.size() == 1);
    const auto taken = take(parking);
    CHECK(taken.has_value() == list.damaged.empty());
    CHECK(all_parked_files(directory).size() == 1);
    if (list.damaged.empty()) return false;
    CHECK(list.damaged[0].find(directory.string()) != std::string::npos);
    return true;
}

// Another one with as long a state has no room in a ledger of 64 MiB.
void park_three(Parking& parking, std::span<const std::byte> state) {
    for (std::uint32_t i = 0; i < 3; i++) {
        REQUIRE(parking.park(Partial(i).draft(), state).has_value());
    }
}

}  // namespace

TEST_CASE("parked: a rollout comes back with all of its bytes, the first one first") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    CHECK_FALSE(take(parking).has_value());
    for (std::uint32_t i = 0; i < 7; i++) park(parking, i);
    const ParkedList list = listed(folder.path());
    REQUIRE(list.rollouts.size() == 7);
    CHECK(list.rollouts[0].repetition_id == 0);
    CHECK(list.rollouts[0].ring == ring.name());
    CHECK(list.rollouts[0].tokens == 40);
    CHECK(list.rollouts[6].state_bytes == 2);
    Parking other = open_parking(ring.name());
    for (std::uint32_t i = 0; i < 7; i++) {
        auto taken = take(other);
        REQUIRE(taken.has_value());
        CHECK(taken->record().meta().repetition_id == i);
        CHECK(taken->parked_ns() == list.rollouts[i].parked_ns);
        REQUIRE(taken->done().has_value());
        CHECK(taken->done().has_value());
    }
    CHECK(all_parked_files(folder.path()).empty());
}

TEST_CASE("parked: one that is taken is nobody else's until it is given back") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking first = open_parking(ring.name());
    Parking second = open_parking(ring.name());
    park(first, 1);
    {
        auto taken = take(first);
        REQUIRE(taken.has_value());
        CHECK(listed(folder.path()).rollouts.at(0).is_taken);
        CHECK_FALSE(take(second).has_value());
        CHECK_FALSE(take(first).has_value());
        taken->give_back();
        CHECK(taken->done().error().code == Errc::not_leased);
        CHECK_FALSE(listed(folder.path()).rollouts.at(0).is_taken);
        CHECK(take(second).has_value());
    }
    CHECK(take(first).has_value());
    CHECK(listed(folder.path()).rollouts.size() == 1);
}

TEST_CASE("parked: a caller takes only what it accepts") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    for (std::uint32_t i = 0; i < 3; i++) park(parking, i);
    const auto odd = [](const TrajectoryView& record, std::span<const std::byte>) {
        return record.meta().source_id == 1;
    };
    auto taken = take(parking, odd);
    REQUIRE(taken.has_value());
    CHECK(taken->record().meta().repetition_id == 1);
    CHECK_FALSE(take(parking, odd).has_value());
    CHECK(take(parking)->record().meta().repetition_id == 0);
}

TEST_CASE("parked: its successor takes the place of a rollout that is parked again") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 1);
    auto taken = take(parking);
    REQUIRE(taken.has_value());
    const Partial longer(1, 90);
    REQUIRE(parking.park(longer.draft(), longer.state(), &*taken).has_value());
    CHECK(taken->done().has_value());
    const ParkedList list = listed(folder.path());
    REQUIRE(list.rollouts.size() == 1);
    CHECK(list.rollouts[0].tokens == 90);
}

TEST_CASE("parked: a draft or a ring that cannot be parked is refused by name") {
    const TestRing without;
    const auto none = Parking::open(without.name());
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == Errc::invalid_argument);
    CHECK(none.error().message.find("--ledger DIR") != std::string::npos);
    CHECK(Parking::open("no-such-ring").error().code == Errc::not_found);

    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    Draft draft("a");
    const auto empty = parking.park(draft);
    REQUIRE_FALSE(empty.has_value());
    CHECK(empty.error().code == Errc::bad_record);
    CHECK(empty.error().message.find("token_ids") != std::string::npos);
    CHECK(all_parked_files(folder.path()).empty());
}

TEST_CASE("parked: more than a quarter of the ledger's bytes is refused, but for taken ones") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));  // of 64 MiB
    Parking parking = open_parking(ring.name());
    const std::vector<std::byte> state(5 * mib);
    park_three(parking, state);
    const auto full = parking.park(Partial(3).draft(), state);
    REQUIRE_FALSE(full.has_value());
    CHECK(full.error().code == Errc::store_full);
    CHECK(full.error().message.contains("may fill 16 MiB"));
    CHECK(all_parked_files(folder.path()).size() == 3);
    park(parking, 4);  // a short one has room
    auto taken = parking.take();
    REQUIRE(taken.has_value());
    REQUIRE(taken->has_value());
    REQUIRE(parking.park(Partial(3).draft(), state).has_value());
    (*taken)->give_back();
    CHECK(parking.park(Partial(5).draft(), state).error().code == Errc::store_full);
    CHECK(listed(folder.path()).rollouts.size() == 5);
}

TEST_CASE("parked: taken rollouts are parked anew, although others have filled their places") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));  // of 64 MiB
    Parking parking = open_parking(ring.name());
    const std::vector<std::byte> state(5 * mib);
    park_three(parking, state);
    std::vector<ParkedRollout> taken;
    for (std::uint32_t i = 0; i < 2; i++) {
        auto one = parking.take();
        REQUIRE(one.has_value());
        REQUIRE(one->has_value());
        taken.push_back(std::move(**one));
        REQUIRE(parking.park(Partial(3 + i).draft(), state).has_value());
    }
    const std::vector<std::byte> longer(8 * mib);
    const auto grown = parking.park(Partial(0).draft(), longer, taken.data());
    REQUIRE_FALSE(grown.has_value());
    CHECK(grown.error().code == Errc::store_full);
    CHECK(listed(folder.path()).rollouts.size() == 5);
    for (std::uint32_t i = 0; i < 2; i++) {
        const auto again = parking.park(Partial(i).draft(), state, &taken[i]);
        REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().to_string()));
    }
    CHECK(listed(folder.path()).rollouts.size() == 5);
    // Those places went with the old files.
    CHECK(parking.park(Partial(5).draft(), state, taken.data()).error().code == Errc::store_full);
}

TEST_CASE("parked: a rollout of another ledger has no place that its successor could take") {
    const LedgerFolder folder;
    const LedgerFolder elsewhere;
    const TestRing ring(with_ledger(folder.path()));  // of 64 MiB
    const TestRing other(with_ledger(elsewhere.path()));
    Parking parking = open_parking(ring.name());
    Parking there = open_parking(other.name());
    const std::vector<std::byte> state(5 * mib);
    park_three(parking, state);
    REQUIRE(there.park(Partial(0).draft(), state).has_value());
    auto taken = there.take();
    REQUIRE(taken.has_value());
    REQUIRE(taken->has_value());
    const auto full = parking.park(Partial(4).draft(), state, &**taken);
    REQUIRE_FALSE(full.has_value());
    CHECK(full.error().code == Errc::store_full);
}

TEST_CASE("parked: a file that is cut short anywhere is named, and not taken") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 3);
    const auto path = all_parked_files(folder.path()).at(0);
    const Bytes whole = bytes_of(path);
    for (std::size_t length = 0; length < whole.size(); length++) {
        CAPTURE(length);
        write_bytes(path,
                    Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
        REQUIRE(is_named(parking, folder.path()));
    }
    Bytes longer = whole;
    longer.push_back('\0');
    write_bytes(path, longer);
    CHECK(is_named(parking, folder.path()));
    write_bytes(path, whole);
    CHECK_FALSE(is_named(parking, folder.path()));
}

TEST_CASE("parked: a bit that flipped anywhere changes no rollout that is given") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 4);
    const auto path = all_parked_files(folder.path()).at(0);
    const Bytes whole = bytes_of(path);
    std::mt19937_64 dice(44);
    std::size_t named = 0;
    for (std::size_t at = 0; at < whole.size(); at++) {
        CAPTURE(at);
        Bytes changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ (1 << (dice() % 8)));
        write_bytes(path, changed);
        named += is_named(parking, folder.path()) ? 1 : 0;  // all but the padding of entries
    }
    CHECK(named > whole.size() * 3 / 4);
}

TEST_CASE("parked: files of another version, of other columns or of another ring are left there") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 5);
    const auto path = all_parked_files(folder.path()).at(0);
    const Bytes whole = bytes_of(path);
    Bytes later = whole;
    later[8] = 2;  // its version
    write_bytes(path, later);
    CHECK(is_named(parking, folder.path()));
    CHECK(listed(folder.path()).damaged[0].find("has version 2") != std::string::npos);
    CHECK(look_at(folder.path()).damaged.size() == 1);
    write_bytes(path, whole);

    const TestRing other(with_ledger(folder.path()));
    Parking elsewhere = open_parking(other.name());
    CHECK_FALSE(take(elsewhere).has_value());
    RingOptions more = with_ledger(folder.path());
    more.schema = Schema::standard_with({{.name = "entropy", .dtype = dtype_f32}}).value();
    REQUIRE(remove_ring(ring.name(), true).has_value());
    REQUIRE(create_ring(ring.name(), more).has_value());
    Parking wider = open_parking(ring.name());
    CHECK_FALSE(take(wider).has_value());
    CHECK(take(parking).has_value());  // its columns are the file's, and it needs no ring
}
