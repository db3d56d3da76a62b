// Parked rollouts on disks that fail, fill up or lose power, and of processes that are killed.

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <random>
#include <set>
#include <thread>

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
    std::atomic<int> allowed;
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
    children.reserve(takers);
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

TEST_CASE("parked: of several threads that take at once, each rollout has one") {
    constexpr int rollouts = 24;
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    std::array<std::atomic<int>, rollouts> taken{};
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (std::uint32_t own = 0; own < 4; own++) {
        threads.emplace_back([&, own] {
            for (std::uint32_t i = own; i < rollouts; i += 4) {
                const Partial partial(i);
                if (!parking.park(partial.draft(), partial.state())) return;
            }
            ready++;
            await(ready, 4);
            // None may be free for a moment, while others look at them.
            while (!all_parked_files(folder.path()).empty()) {
                auto one = parking.take();
                if (!one) return;
                if (!*one) continue;
                taken[(*one)->record().meta().repetition_id]++;
                if (!(*one)->done()) return;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < rollouts; i++) CHECK(taken[i] == 1);
}

namespace {

constexpr std::size_t whole_tokens = 90;

// Takes rollouts up, goes on by some tokens, and parks them again or finishes them.
int work(const std::string& ring, Paper& paper) {
    auto parking = Parking::open(ring);
    if (!parking) return 1;
    while (true) {
        if (paper.ready >= paper.allowed) {
            std::this_thread::yield();
            continue;
        }
        auto taken = parking->take();
        if (!taken) return 2;
        if (!*taken) continue;
        const std::uint32_t number = (*taken)->record().meta().repetition_id;
        const std::size_t tokens = (*taken)->record().n_tokens() + 10;
        const Partial next(number, tokens);
        if (tokens < whole_tokens) {
            if (!parking->park(next.draft(), next.state(), &**taken)) return 3;
        } else {
            paper.taken[number]++;  // it is pushed, and durable
            if (!(*taken)->done()) return 4;
        }
        paper.ready++;
    }
}

}  // namespace

TEST_CASE("parked: workers that are killed at random moments lose no rollout") {
    constexpr int rollouts = 16;
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Parking parking = open_parking(ring.name());
    for (std::uint32_t i = 0; i < rollouts; i++) park(parking, i);
    const Shared<Paper> paper;
    const auto start = [&] {
        return start_child([&] { return work(ring.name(), *paper.operator->()); });
    };
    std::vector<pid_t> workers{start(), start(), start()};
    std::mt19937_64 dice(44);
    int kills = 0;
    const Deadline deadline = patience();
    while (!all_parked_files(folder.path()).empty() && !deadline.passed()) {
        // However slow this process is, a kill comes after a few steps of theirs.
        paper->allowed = paper->ready + static_cast<int>(dice() % 4);
        while (paper->ready < paper->allowed && !deadline.passed()) {
            if (all_parked_files(folder.path()).empty()) break;
        }
        pid_t& victim = workers[dice() % workers.size()];
        REQUIRE(kill_and_collect(victim));
        victim = start();
        kills++;
    }
    CHECK_FALSE(deadline.passed());
    for (const pid_t worker : workers) CHECK(kill_and_collect(worker));
    for (int i = 0; i < rollouts; i++) CHECK(paper->taken[i] >= 1);
    CHECK(kills > 5);
}
