// Parked rollouts on disks that fail, fill up or lose power, and of processes that are killed.

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <set>

#include "faulty_disk.hpp"
#include "parked.hpp"
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
