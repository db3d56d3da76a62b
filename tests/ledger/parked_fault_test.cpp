// Parked rollouts on disks that fail, fill up or lose power, and of processes that are killed.

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <set>

#include "faulty_disk.hpp"
#include "parked.hpp"
#include "parked_file.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct Paper {
    std::array<std::atomic<int>, 64> taken;
    std::atomic<int> ready;
};

void await(const std::atomic<int>& word, int value) {
    const Deadline deadline = patience();
    while (word < value) require(!deadline.passed(), "a word of another process");
}

// A taker comes by between the making of a file and its lock.
class VisitedDisk : public ledger::Disk {
  public:
    explicit VisitedDisk(std::filesystem::path directory) : directory_(std::move(directory)) {}
    int make(const std::filesystem::path& path, std::uint64_t bytes, bool direct, Fd& fd) override {
        const int error = Disk::make(path, bytes, direct, fd);
        if (visits_++ == 0) ledger::remove_unfinished(directory_);
        return error;
    }
    [[nodiscard]] int visits() const { return visits_; }

  private:
    std::filesystem::path directory_;
    int visits_ = 0;
};

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

TEST_CASE("parked: of several processes that take at once, each rollout has one") {
    constexpr int rollouts = 48;
    constexpr int takers = 4;
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    for (std::uint32_t i = 0; i < rollouts; i++) park(parking, i);
    const Shared<Paper> paper;
    std::vector<pid_t> children;
    for (int i = 0; i < takers; i++) {
        children.push_back(start_child([&] {
            auto own = Parking::open(ring.name());
            if (!own) return 1;
            paper->ready++;
            await(paper->ready, takers);
            int left = rollouts;  // others may hold the rest
            while (left > 0) {
                auto taken = own->take();
                if (!taken) return 2;
                if (*taken) {
                    paper->taken[(*taken)->record().meta().repetition_id]++;
                    if (!(*taken)->done()) return 3;
                }
                const auto list = list_parked(folder.path());
                if (!list || !list->damaged.empty()) return 4;
                left = static_cast<int>(list->rollouts.size());
            }
            return 0;
        }));
    }
    for (const pid_t child : children) CHECK(collect(child) == 0);
    for (int i = 0; i < rollouts; i++) CHECK(paper->taken[i] == 1);
    CHECK(all_parked_files(folder.path()).empty());
}

TEST_CASE("parked: the death of a process that has taken one gives it back") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 1);
    const Shared<Paper> paper;
    const pid_t child = start_child([&] {
        auto own = Parking::open(ring.name());
        if (!own) return 1;
        const auto taken = own->take();
        // A child of it holds nothing.
        const pid_t grandchild = start_child([&] {
            paper->ready = taken && *taken ? 1 : 2;
            pause();
            return 0;
        });
        paper->taken[0] = grandchild;
        pause();
        return 0;
    });
    await(paper->ready, 1);
    REQUIRE(paper->ready == 1);
    CHECK_FALSE(take(parking).has_value());
    CHECK(kill_and_collect(child));
    const Deadline deadline = patience();
    std::optional<ParkedRollout> taken;
    while (!taken && !deadline.passed()) taken = take(parking);
    CHECK(taken.has_value());
}

TEST_CASE("parked: a forked child has nothing of its parent's") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 1);
    auto taken = take(parking);
    REQUIRE(taken.has_value());
    CHECK(in_child([&] {
              const auto done = taken->done();
              if (done || done.error().code != Errc::forked) return 1;
              taken->give_back();
              taken.reset();
              return parking.take().value() ? 2 : 0;
          }) == 0);
    CHECK_FALSE(take(parking).has_value());
    CHECK(taken->done().has_value());
}

TEST_CASE("parked: a disk that fails parks nothing, and says so") {
    for (const Call call : {Call::make, Call::write, Call::sync, Call::rename, Call::names}) {
        for (const int error : {ENOSPC, EIO}) {
            CAPTURE(static_cast<int>(call));
            CAPTURE(error);
            const LedgerFolder folder;
            const TestRing ring(with_ledger(folder.path()));
            Parking parking = open_parking(ring.name());
            park(parking, 1);
            auto taken = take(parking);
            REQUIRE(taken.has_value());
            InUse<FailingDisk> disk(call, error, 0);
            const Partial next(1, 90);
            const auto parked = parking.park(next.draft(), next.state(), &*taken);
            REQUIRE_FALSE(parked.has_value());
            CHECK(parked.error().code == Errc::system);
            CHECK(parked.error().system_errno == error);
            CHECK(parked.error().message.find("was not parked") != std::string::npos);
            CHECK(all_parked_files(folder.path()).size() == 1);
            disk->heal();
            REQUIRE(parking.park(next.draft(), next.state(), &*taken).has_value());
            const ParkedList list = listed(folder.path());
            REQUIRE(list.rollouts.size() == 1);
            CHECK(list.rollouts[0].tokens == 90);
        }
    }
}

TEST_CASE("parked: one that cannot be removed stays with its process") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    park(parking, 1);
    auto taken = take(parking);
    REQUIRE(taken.has_value());
    InUse<FailingDisk> disk(Call::remove, EIO, 0);
    CHECK(taken->done().error().code == Errc::system);
    CHECK_FALSE(take(parking).has_value());
    disk->heal();
    CHECK(taken->done().has_value());
}

TEST_CASE("parked: a process that is killed at any moment of the disk loses no rollout") {
    int struck = 0;
    for (int moment = 0;; moment++) {
        CAPTURE(moment);
        const LedgerFolder folder;
        const TestRing ring(with_ledger(folder.path()));
        const Shared<Paper> paper;
        const int status = in_child([&] {
            auto own = Parking::open(ring.name());
            if (!own) return 1;
            const InUse<KillingDisk> disk(moment);
            const Partial first(1);
            if (!own->park(first.draft(), first.state())) return 2;
            paper->ready = 1;
            auto taken = own->take();
            if (!taken || !*taken) return 3;
            const Partial next(1, 90);
            if (!own->park(next.draft(), next.state(), &**taken)) return 4;
            paper->ready = 2;
            auto again = own->take();
            if (!again || !*again) return 5;
            if (!(*again)->done()) return 6;
            paper->ready = 3;
            return 0;
        });
        const int ready = paper->ready;
        if (status == 0) break;
        REQUIRE(status == 128 + SIGKILL);
        struck++;
        const ParkedList list = listed(folder.path());
        CHECK(list.damaged.empty());
        // The old one may be there beside the new one: at least once.
        CHECK(list.rollouts.size() <= 2);
        if (ready == 1) CHECK_FALSE(list.rollouts.empty());
        if (ready == 2) CHECK(list.rollouts.size() <= 1);
        for (const ParkedInfo& one : list.rollouts) CHECK_FALSE(one.is_taken);
        Parking parking = open_parking(ring.name());
        for (std::size_t i = 0; i < list.rollouts.size(); i++) {
            auto taken = parking.take();
            REQUIRE((taken && *taken));
            CHECK((*taken)->record().n_tokens() == list.rollouts[i].tokens);
            REQUIRE((*taken)->done().has_value());
        }
        CHECK_FALSE(take(parking).has_value());
        CHECK(all_parked_files(folder.path()).empty());  // nor an unfinished one
    }
    CHECK(struck > 10);
}

TEST_CASE("parked: a power cut at any moment leaves each rollout that was parked, whole") {
    struct Cut {
        std::unique_ptr<LedgerFolder> left;
        std::uint32_t parked;
    };
    std::vector<Cut> cuts;
    std::atomic<std::uint32_t> parked = 0;
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    std::uint64_t seed = 0;
    {
        const InUse<MortalDisk> disk([&](MortalDisk& self) {
            for (int i = 0; i < 4; i++) {
                Cut cut{std::make_unique<LedgerFolder>(), parked};
                std::filesystem::create_directory(cut.left->path() / "parked");
                self.cut(cut.left->path() / "parked", seed++);
                cuts.push_back(std::move(cut));
            }
        });
        Parking parking = open_parking(ring.name());
        for (std::uint32_t i = 0; i < 8; i++) {
            park(parking, i);
            parked++;
        }
    }
    CHECK(cuts.size() > 100);
    for (const Cut& cut : cuts) {
        const ParkedList list = listed(cut.left->path());
        CHECK(list.damaged.empty());
        CHECK(list.rollouts.size() >= cut.parked);
        CHECK(list.rollouts.size() <= cut.parked + 1);
        for (std::uint32_t i = 0; i < cut.parked; i++) {
            CHECK(list.rollouts[i].repetition_id == i);
        }
    }
}

TEST_CASE("parked: a file that is made while another process takes one is made again") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    InUse<VisitedDisk> disk(folder.path());
    park(parking, 1);
    CHECK(disk->visits() == 2);
    CHECK(all_parked_files(folder.path()).size() == 1);
    CHECK(take(parking).has_value());
}

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
