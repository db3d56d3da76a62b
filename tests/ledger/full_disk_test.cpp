// A ledger on a file system of its own that really has no space left.

#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "mortal_trainer.hpp"
#include "parked.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct FullPaper {
    std::atomic<int> sent;
    std::atomic<std::uint64_t> durable_when_full;
    std::atomic<std::uint64_t> durable_at_end;
};

bool mount_small(const std::filesystem::path& at) {
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", at.c_str(), "tmpfs", 0, "size=512k") == 0;
}

void copy_files(const std::filesystem::path& from, const std::filesystem::path& to) {
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

// Sends groups that wait for a member until the disk takes no more.
void fill_disk(Producer& producer, Stash& stash, FullPaper& paper) {
    Result<void> synced;
    for (; synced; paper.sent++) {
        require(paper.sent < 100, "it is full at last");
        const std::string prompt = MortalTrainer::prompt_of(paper.sent);
        require(send_bytes(producer, prompt, 0, 20 * kib, patience()) == Push::ok, "push");
        Batch none;
        require(stash.next(none, Deadline::now()) == NextBatch::timed_out, "no group is whole");
        synced = stash.sync_ledger(Deadline::after_ms(500));
    }
    require(synced.error().code == Errc::timed_out, "{}", synced.error().to_string());
    require(synced.error().message.find("it is full") != std::string::npos, "{}",
            synced.error().message);
    require(stash.waits_for().find("is full") != std::string::npos, "{}", stash.waits_for());
    require(stash.problem().empty(), "{}", stash.problem());
}

void try_to_park(const std::string& ring, int error) {
    auto parking = Parking::open(ring);
    require(parking.has_value(), "parking");
    const Partial partial(1, 20'000);
    const auto parked = parking->park(partial.draft(), partial.state());
    require(parked.has_value() == (error == 0), "parked");
    require(parked || parked.error().system_errno == error, "{}",
            parked ? "" : parked.error().to_string());
}

int run_out_of_space(const TestRing& ring, const std::filesystem::path& directory,
                     const std::filesystem::path& when_full, FullPaper& paper) {
    if (!mount_small(directory)) return skipped;
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        fill_disk(producer, *stash, paper);
        try_to_park(ring.name(), ENOSPC);
        paper.durable_when_full = durable_of(ring.name());
        copy_files(directory, when_full / "copy");
        require(mount(nullptr, directory.c_str(), nullptr, MS_REMOUNT, "size=8m") == 0, "remount");
        try_to_park(ring.name(), 0);
        const auto synced = stash->sync_ledger(patience());
        require(synced.has_value(), "{}", synced ? "" : synced.error().to_string());
        read_all(*stash);
        paper.durable_at_end = durable_of(ring.name());
    }
    copy_files(directory, when_full / "end");
    return 0;
}

}  // namespace

TEST_CASE(
    "ledger: a file system without space is named, takes nothing back, and goes on with space") {
    const LedgerFolder folder;
    const LedgerFolder left;
    const TestRing ring(with_ledger(folder.path(), Durable::group, std::uint64_t{1} << 20));
    const Shared<FullPaper> paper;
    const int status = in_child(
        [&] { return run_out_of_space(ring, folder.path(), left.path(), *paper.operator->()); });
    if (status == skipped) {
        MESSAGE("skipped: no file system can be mounted here");
        return;
    }
    REQUIRE(status == 0);
    const int sent = paper->sent;
    CHECK(paper->durable_when_full > 2);
    CHECK(paper->durable_when_full < static_cast<std::uint64_t>(sent));
    CHECK(paper->durable_at_end == static_cast<std::uint64_t>(sent));
    const Members when_full = restored_members(left.path() / "copy");
    for (int i = 0; i < static_cast<int>(paper->durable_when_full); i++) {
        CHECK(when_full.contains({MortalTrainer::prompt_of(i), 0}));
    }
    CHECK(restored_members(left.path() / "end").size() == static_cast<std::size_t>(sent));
    CHECK(listed(left.path() / "end").rollouts.size() == 1);
    CHECK(listed(left.path() / "copy").rollouts.empty());
}
