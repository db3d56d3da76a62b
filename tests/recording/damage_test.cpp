// Goal: a recording that was cut short, changed, or whose writer was killed or had no room gives
// each batch as it was, or an error that names the place, and never other bytes.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "recorded.hpp"
#include "support/in_child.hpp"
#include "support/splitmix64.hpp"

using namespace rollring;
using namespace rollring::test;
using rollring::test::Shared;

namespace {

// A recording in one file, and the fingerprints of its batches.
struct Whole {
    Folder folder;
    std::vector<std::string> prints;
    std::vector<char> bytes;

    explicit Whole(int batches) {
        Run run;
        RecordingWriter writer = open_writer(folder.path());
        prints = run.record(writer, batches);
        bytes = bytes_of(path());
    }
    [[nodiscard]] std::filesystem::path path() const { return folder.files().at(0); }
};

}  // namespace

TEST_CASE("recording: cut short at any byte it has the batches before, and says so") {
    const Whole whole(4);
    std::size_t most = 0;
    for (std::size_t length = 0; length < whole.bytes.size(); length++) {
        write_bytes(whole.path(), std::span(whole.bytes).first(length));
        const auto recording = Recording::open(whole.folder.path());
        if (!recording) {
            REQUIRE(recording.error().code == Errc::not_a_ring);
            REQUIRE(length < 64);
            continue;
        }
        const std::size_t good = good_batches(*recording, whole.prints);
        REQUIRE(good == recording->batches().size());
        REQUIRE(good >= most);
        most = good;
    }
    CHECK(most == 4);
    write_bytes(whole.path(), std::span(whole.bytes).first(whole.bytes.size() - 100));
    CHECK(open_recording(whole.folder.path()).problem().find("cut short") != std::string::npos);
}

TEST_CASE("recording: with any bit changed each batch is as it was, or an error") {
    const Whole whole(3);
    Dice dice{.state = 44};
    std::size_t lost = 0;
    constexpr int changes = 1500;
    for (int i = 0; i < changes; i++) {
        std::vector<char> changed = whole.bytes;
        const std::size_t at = dice.below(changed.size());
        changed[at] = static_cast<char>(changed[at] ^ (1 << dice.below(8)));
        write_bytes(whole.path(), changed);
        const auto recording = Recording::open(whole.folder.path());
        if (!recording) {
            lost += 3;
            continue;
        }
        const std::size_t good = good_batches(*recording, whole.prints);
        REQUIRE(good + 1 >= whole.prints.size());  // the others are there
        lost += whole.prints.size() - good;
        for (const RecordedInfo& info : recording->batches()) {
            REQUIRE((!info.step || *info.step == static_cast<std::int64_t>(info.number)));
        }
    }
    CHECK(lost > changes / 2);  // most bytes are those of records
}

TEST_CASE("recording: a file of another version of the format is refused by its number") {
    const Whole whole(1);
    constexpr std::size_t version_at = 8;
    std::vector<char> later = whole.bytes;
    REQUIRE(later[version_at] == 1);
    later[version_at] = 2;
    write_bytes(whole.path(), later);
    const auto recording = Recording::open(whole.folder.path());
    REQUIRE(!recording);
    CHECK(recording.error().code == Errc::abi_mismatch);
    CHECK(recording.error().message.contains("version 2 of the format, and this rollring reads 1"));
    write_bytes(whole.path(), whole.bytes);
    CHECK(Recording::open(whole.folder.path()).has_value());
}

TEST_CASE("recording: bytes of an earlier file on the disk are no part of it") {
    const Whole old(3);
    const Whole whole(1);
    std::vector<char> both = whole.bytes;
    both.insert(both.end(), old.bytes.begin() + 64, old.bytes.end());
    write_bytes(whole.path(), both);
    const Recording recording = open_recording(whole.folder.path());
    CHECK(recording.batches().size() == 1);
    CHECK(good_batches(recording, whole.prints) == 1);
}

TEST_CASE("recording: a writer that is killed leaves whole batches, and a next one goes on") {
    const Whole source(3);
    const Folder folder;
    const Shared<std::atomic<std::uint64_t>> added;
    Dice dice{.state = 7};
    std::set<std::uint64_t>
        between;  // added by writers that were killed before its acknowledgement
    for (int kill = 0; kill < 40; kill++) {
        const std::uint64_t until = added->load() + dice.below(30);
        const pid_t pid = start_child([&] {
            const Recording batches = open_recording(source.folder.path());
            RecordingWriter writer = open_writer(folder.path(), {.file_bytes = 20'000});
            while (true) {
                // A batch that is there without having been counted stands for the next number.
                const auto next = open_recording(folder.path()).batches().size();
                const auto batch = batches.read(next % 3);
                require(batch.has_value(), "no source");
                const auto number = writer.add(*batch);
                require(number.has_value() && *number == next, "another number");
                require(writer.acked(*number, static_cast<std::int64_t>(next)).has_value(), "ack");
                added->store(next + 1);
            }
            return 0;
        });
        while (added->load() < until && state_of(pid) != 'Z') std::this_thread::yield();
        REQUIRE(kill_and_collect(pid));
        const auto recording = Recording::open(folder.path());
        if (!recording) {  // killed before the first header
            REQUIRE(added->load() == 0);
            continue;
        }
        const std::uint64_t there = recording->batches().size();
        REQUIRE(there >= added->load());
        REQUIRE(there <= added->load() + 1);
        if (there > added->load()) between.insert(added->load());
        for (std::size_t i = 0; i < there; i++) {
            const auto batch = recording->read(i);
            REQUIRE(batch.has_value());
            REQUIRE(fingerprint(*batch, recording->schema()) == source.prints[i % 3]);
            REQUIRE(recording->batches()[i].number == i);
            if (!between.contains(i)) REQUIRE(recording->batches()[i].step == i);
        }
    }
    CHECK(added->load() > 100);
}

TEST_CASE("recording: without room it ends behind a whole batch, and says so in each call") {
    const Whole source(3);
    const Folder folder;
    CHECK(in_child([&] {
              static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
              const rlimit limit{.rlim_cur = 10'000, .rlim_max = 10'000};
              require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
              const Recording batches = open_recording(source.folder.path());
              RecordingWriter writer = open_writer(folder.path());
              const auto batch = batches.read(2);
              require(batch.has_value(), "no source");
              Result<std::uint64_t> number = 0;
              while ((number = writer.add(*batch))) {
              }
              require(number.error().code == Errc::system, "another error");
              require(number.error().message.find("cannot write") == 0, "another text");
              const auto again = writer.add(*batch);
              require(again.error().message == number.error().message, "another error later");
              require(!writer.acked(0, 0), "an ack without room");
              return 0;
          }) == 0);
    const Recording recording = open_recording(folder.path());
    CHECK(recording.problem().empty());
    REQUIRE(recording.batches().size() > 1);
    for (std::size_t i = 0; i < recording.batches().size(); i++) {
        const auto batch = recording.read(i);
        REQUIRE(batch.has_value());
        CHECK(fingerprint(*batch, recording.schema()) == source.prints[2]);
    }
}
