// Parked rollouts of a ledger that is restored, in its directory or into another one.

#include "faulty_disk.hpp"
#include "parked.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// A ledger with an open group, and as many rollouts that are parked.
void fill_ledger(const LedgerFolder& folder, std::uint32_t rollouts) {
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send(producer, "open", 0, 2);
    read_all(*stash);
    Parking parking = open_parking(ring.name());
    for (std::uint32_t i = 0; i < rollouts; i++) park(parking, i);
}

}  // namespace

TEST_CASE("parked: a restore into another directory takes the rollouts along") {
    constexpr std::uint32_t rollouts = 4;
    const LedgerFolder folder;
    fill_ledger(folder, rollouts);
    const auto damaged = all_parked_files(folder.path()).at(2);
    Bytes bytes = bytes_of(damaged);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_bytes(damaged, bytes);
    const LedgerFolder target;
    for (int round = 0; round < 2; round++) {  // the second finds them there
        const RestoredRing again(folder.path(), {.ledger_dir = target.path().string()});
        CHECK(again.stat().parked == rollouts - 1);
        REQUIRE(again.stat().damaged.size() == 1);
        CHECK(again.stat().damaged[0].find(damaged.filename().string()) != std::string::npos);
        Parking parking = open_parking(again.name());
        std::vector<ParkedRollout> all;
        while (auto taken = take(parking)) all.push_back(std::move(*taken));
        REQUIRE(all.size() == rollouts - 1);
        CHECK(all[2].record().meta().repetition_id == 3);
        CHECK(listed(target.path()).rollouts.at(0).ring != listed(folder.path()).rollouts[0].ring);
    }
    CHECK(listed(folder.path()).rollouts.size() == rollouts - 1);
}

TEST_CASE("parked: a restore that is killed while it copies can begin again") {
    constexpr std::uint32_t rollouts = 3;
    const LedgerFolder folder;
    fill_ledger(folder, rollouts);
    int struck = 0;
    for (int moment = 0;; moment++) {
        CAPTURE(moment);
        const LedgerFolder target;
        const std::string name = scratch_name("killed");
        const RestoreOptions options{.ledger_dir = target.path().string()};
        const int status = in_child([&] {
            const InUse<KillingDisk> disk(moment);
            return LedgerRestore::begin(folder.path(), name, options) ? 0 : 1;
        });
        static_cast<void>(remove_ring(name, true));
        if (status == 0) break;
        REQUIRE(status == 128 + SIGKILL);
        struck++;
        const RestoredRing again(folder.path(), options);
        CHECK(again.stat().parked == rollouts);
        Parking parking = open_parking(again.name());
        for (std::uint32_t i = 0; i < rollouts; i++) {
            auto taken = take(parking);
            REQUIRE(taken.has_value());
            CHECK(taken->record().meta().repetition_id == i);
            REQUIRE(taken->done().has_value());
        }
        CHECK(all_parked_files(target.path()).empty());
    }
    CHECK(struck > 10);
}

TEST_CASE("parked: a folder that cannot be read keeps no record from a restore") {
    const LedgerFolder folder;
    fill_ledger(folder, 1);
    std::filesystem::remove_all(folder.path() / "parked");
    write_bytes(folder.path() / "parked", {'x'});
    const LedgerStat stat = look_at(folder.path());
    CHECK(stat.records == 1);
    REQUIRE(stat.damaged.size() == 1);
    CHECK(stat.damaged[0].find("parked") != std::string::npos);
    const LedgerFolder target;
    const RestoredRing again(folder.path(), {.ledger_dir = target.path().string()});
    CHECK(again.stat().sent == 1);
    CHECK(again.stat().damaged.size() == 1);
}

TEST_CASE("parked: rollouts alone, which no trainer has seen, are shown and named") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 1);
    const LedgerStat stat = look_at(folder.path());
    CHECK(stat.records == 0);
    CHECK(stat.ring == ring.name());
    CHECK(stat.parked == 1);
    CHECK(stat.parked_bytes == std::filesystem::file_size(all_parked_files(folder.path()).at(0)));
    CHECK(stat.oldest_parked_ns == listed(folder.path()).rollouts[0].parked_ns);
    const auto restore = LedgerRestore::begin(folder.path(), scratch_name("none"));
    REQUIRE_FALSE(restore.has_value());
    CHECK(restore.error().message.find("but parked rollouts") != std::string::npos);
    REQUIRE(remove_ring(ring.name(), true).has_value());
    REQUIRE(create_ring(ring.name(), with_ledger(folder.path())).has_value());
    Parking later = open_parking(ring.name());
    CHECK(take(later).has_value());
}
