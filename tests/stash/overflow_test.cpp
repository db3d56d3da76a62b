// Goal: where memory is used up the spill goes on in a file, and loses there as little as in
// memory: nothing, with any process killed and any refusal of the disk.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "overflow_world.hpp"
#include "rollring/batch.hpp"
#include "segment.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// The second member of the last group comes first: each producer waits for records that only the
// other has.
void send_members(const TestRing& ring, std::uint32_t member, int groups) {
    auto producer = ring.producer();
    for (int i = 0; i < groups; i++) {
        const int group = member == 0 ? i : groups - 1 - i;
        const Push pushed =
            send_bytes(producer, group_name(group), member, record_bytes, patience());
        if (pushed == Push::closed) return;
        CHECK(pushed == Push::ok);
    }
}

void ship(Stash& stash, std::size_t groups, std::multiset<std::string>& seen) {
    while (seen.size() < groups) {
        Batch batch;
        REQUIRE(stash.next(batch, patience()) == NextBatch::batch);
        check_pairs(batch, seen);
        REQUIRE(batch.ack(next_step(stash)).has_value());
    }
    for (std::size_t group = 0; group < groups; group++) {
        CHECK(seen.count(group_name(static_cast<int>(group))) == 1);
    }
    CHECK(stash.account().conserved());
    CHECK(stash.account().groups_partial == 0);
    CHECK(stash.account().held == Amount{});
}

void close_groups(const TestRing& ring, Stash& stash, int from, int to,
                  std::multiset<std::string>& seen) {
    std::thread rollouts([&] {
        auto producer = ring.producer();
        for (int group = from; group < to; group++) {
            CHECK(send_bytes(producer, group_name(group), 1, record_bytes, patience()) == Push::ok);
        }
    });
    ship(stash, static_cast<std::size_t>(to), seen);
    rollouts.join();
}

std::string stall_of(Stash& stash) {
    const Deadline deadline = patience();
    while (!deadline.passed()) {
        Batch batch;
        static_cast<void>(stash.next(batch, Deadline::after_ms(10)));
        for (Event event; stash.next_event(event);) {
            if (event.kind == Event::Kind::stalled) return event.detail;
        }
    }
    return {};
}

}  // namespace

TEST_CASE("overflow: a run that stands still for want of memory") {
    constexpr int groups = 24;
    const Folder folder;
    std::string directory;
    SUBCASE("is told of the option") {}
    SUBCASE("ends with it, and nothing is lost") {
        directory = folder.path();
    }
    {
        const TestRing ring(options_in(directory));
        auto stash = open_stash(ring, pairs_of_any_order);
        const std::int64_t began_ns = monotonic_ns();
        std::thread first([&] { send_members(ring, 0, groups); });
        std::thread second([&] { send_members(ring, 1, groups); });
        if (directory.empty()) {
            // Not before nothing has come for a second.
            CHECK(stall_of(*stash).find("--overflow") != std::string::npos);
            CHECK(monotonic_ns() - began_ns >= 1'000'000'000);
            REQUIRE(remove_ring(ring.name(), true).has_value());
        } else {
            std::multiset<std::string> seen;
            ship(*stash, groups, seen);
            CHECK(stat_of(ring).overflow_resident_bytes > 0);
            CHECK(folder.files() == 1);
            for (Event event; stash->next_event(event);) CHECK(event.kind != Event::Kind::stalled);
        }
        first.join();
        second.join();
    }
    CHECK(folder.files() == 0);
}

TEST_CASE("overflow: memory comes first, and a run that moves takes no disk") {
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    auto stash = open_stash(ring, pairs_of_any_order);
    auto producer = ring.producer();
    std::multiset<std::string> seen;
    for (int group = 0; group < 40; group++) {
        for (const std::uint32_t member : {0U, 1U}) {
            REQUIRE(send_bytes(producer, group_name(group), member, 60 * kib, patience()) ==
                    Push::ok);
        }
        ship(*stash, static_cast<std::size_t>(group) + 1, seen);
    }
    CHECK(stat_of(ring).overflow_resident_bytes == 0);
}

TEST_CASE("overflow: what lies in the file survives the trainer, once") {
    constexpr int groups = 20;
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    auto producer = ring.producer();
    for (int life = 0; life < 3; life++) {
        auto stash = open_stash(ring, pairs_of_any_order);
        open_groups(producer, *stash, life * groups / 4, (life + 1) * groups / 4);
    }
    CHECK(stat_of(ring).overflow_resident_bytes > 0);
    auto stash = open_stash(ring, pairs_of_any_order);
    open_groups(producer, *stash, 3 * groups / 4, groups);
    std::multiset<std::string> seen;
    close_groups(ring, *stash, 0, groups, seen);
}

TEST_CASE("overflow: the spill goes round through memory and file, again and again") {
    constexpr int groups = 30;
    constexpr int rounds = 4;
    const Folder folder;
    RingOptions options = options_in(folder.path());
    options.lanes = 4;                 // those of the round before are not free yet
    options.overflow_bytes = 6 * mib;  // half as much again as lies there at once
    const TestRing ring(options);
    std::multiset<std::string> seen;
    std::uint64_t evacuated = 0;
    for (int round = 0; round < rounds; round++) {
        auto stash = open_stash(ring, pairs_of_any_order);
        auto producer = ring.producer();
        open_groups(producer, *stash, round * groups, (round + 1) * groups);
        evacuated += stash->copies().copied_bytes;
        close_groups(ring, *stash, round * groups, (round + 1) * groups, seen);
    }
    CHECK(evacuated > 2 * 6 * mib);
}

TEST_CASE("overflow: ranks read their shares out of the file") {
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    auto early = Reader::attach(ring.name());  // before anything lies there
    REQUIRE(early.has_value());
    const auto stash = open_stash(ring, pairs_of_any_order);
    constexpr int groups = 40;
    auto producer = ring.producer();
    open_groups(producer, *stash, 0, groups);
    producer.close();
    // All but the capacity of both lanes' memory and of the spill's.
    REQUIRE(stat_of(ring).overflow_resident_bytes > groups * record_bytes - 768 * kib);
    std::thread rollouts([&] {
        auto seconds = ring.producer();
        for (int group = 0; group < groups; group++) {
            CHECK(send_bytes(seconds, group_name(group), 1, record_bytes, patience()) == Push::ok);
        }
    });
    for (int shipped = 0; shipped < groups; shipped++) {
        Batch batch;
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        const auto ticket = batch.ticket();
        REQUIRE(ticket.has_value());
        const auto same = [&](const Share& share) {
            if (share.sequences().size() != 2) return false;
            for (std::size_t i = 0; i < 2; i++) {
                const TrajectoryView& view = share.sequences()[i].view;
                if (view.digest(early->schema()) !=
                    batch.sequences()[i].view.digest(early->schema())) {
                    return false;
                }
            }
            return share.check().has_value();
        };
        {
            const auto share = early->open(*ticket);
            REQUIRE_MESSAGE(share.has_value(), (share ? "" : share.error().to_string()));
            CHECK(same(*share));
        }
        if (shipped % 10 == 0) {
            CHECK(in_child([&] {
                      auto reader = Reader::attach(ring.name());
                      const auto share = reader->open(*ticket);
                      return share && same(*share) ? 0 : 1;
                  }) == 0);
        }
        REQUIRE(batch.ack(next_step(*stash)).has_value());
    }
    rollouts.join();
}

TEST_CASE("overflow: a file that is not there is told, and needed only if records lie in it") {
    constexpr int groups = 12;
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    const std::string path = stat_of(ring).overflow_path;
    const std::string away = folder.path() + "/away";
    fs::rename(path, away);
    auto producer = ring.producer();
    {
        auto stash = open_stash(ring, pairs_of_any_order);
        Event event{};
        bool told = false;
        while (stash->next_event(event)) {
            if (event.kind != Event::Kind::overflow_failed) continue;
            told = event.detail.find(path) != std::string::npos;
        }
        CHECK(told);
        open_groups(producer, *stash, 0, 1);
    }
    fs::rename(away, path);
    {
        auto stash = open_stash(ring, pairs_of_any_order);
        open_groups(producer, *stash, 1, groups);
    }
    REQUIRE(stat_of(ring).overflow_resident_bytes > 0);
    fs::rename(path, away);
    auto refused = Stash::open(ring.name(), pairs_of_any_order);
    REQUIRE(!refused.has_value());
    CHECK(refused.error().message.find(path) != std::string::npos);
    SUBCASE("it is back") {}
    SUBCASE("others could read it") {
        REQUIRE(chmod(away.c_str(), 0644) == 0);
        fs::rename(away, path);
        refused = Stash::open(ring.name(), pairs_of_any_order);
        REQUIRE(!refused.has_value());
        CHECK(refused.error().code == Errc::permission_denied);
        REQUIRE(chmod(path.c_str(), 0600) == 0);
        fs::rename(path, away);
    }
    SUBCASE("another file of its length is there") {
        std::ofstream(path).close();
        fs::resize_file(path, fs::file_size(away));
        REQUIRE(chmod(path.c_str(), 0600) == 0);
        refused = Stash::open(ring.name(), pairs_of_any_order);
        REQUIRE(!refused.has_value());
        CHECK(refused.error().message.find("does not name this ring") != std::string::npos);
        fs::remove(path);
    }
    SUBCASE("it was cut") {
        const auto bytes = fs::file_size(away);
        std::ofstream(path).put('x');
        REQUIRE(chmod(path.c_str(), 0600) == 0);
        refused = Stash::open(ring.name(), pairs_of_any_order);
        REQUIRE(!refused.has_value());
        CHECK(refused.error().message.find("it has 1 B") != std::string::npos);
        CHECK(bytes == 32 * mib + 256 * kib);
        fs::remove(path);
    }
    fs::rename(away, path);
    auto stash = open_stash(ring, pairs_of_any_order);
    std::multiset<std::string> seen;
    close_groups(ring, *stash, 0, groups, seen);
}

TEST_CASE("overflow: wrong directories are refused by name, and leave nothing") {
    const Folder folder;
    const std::string name = "overflow-refused-" + std::to_string(getpid());
    const auto refusal = [&](RingOptions options) {
        const auto made = create_ring(name, options);
        REQUIRE(!made.has_value());
        CHECK(stat_ring(name).error().code == Errc::not_found);
        return made.error();
    };
    const std::string file = folder.path() + "/file";
    std::ofstream(file).put('x');
    for (const std::string& directory : {folder.path() + "/none", file, std::string("/dev/shm")}) {
        const Error error = refusal(options_in(directory));
        const bool there = directory.find("/none") == std::string::npos;
        CHECK(error.code == (there ? Errc::invalid_argument : Errc::not_found));
        CHECK(error.message.find(directory) != std::string::npos);
        CHECK(error.message.find("--overflow") != std::string::npos);
    }
    RingOptions none = options_in("");
    none.overflow_bytes = mib;
    CHECK(refusal(none).message.find("overflow_dir is not") != std::string::npos);
    RingOptions bare = options_in(folder.path());
    bare.spill_bytes = 0;
    CHECK(refusal(bare).message.find("spill_bytes is 0") != std::string::npos);
    RingOptions large = options_in(folder.path());
    large.overflow_bytes = std::uint64_t{1} << 37;
    CHECK(refusal(large).message.find("overflow_bytes is 128 GiB") != std::string::npos);
    if (geteuid() != 0) {
        REQUIRE(chmod(folder.path().c_str(), 0500) == 0);
        const Error error = refusal(options_in(folder.path()));
        CHECK(error.code == Errc::permission_denied);
        REQUIRE(chmod(folder.path().c_str(), 0700) == 0);
    }
    CHECK(folder.files() == 1);
}

TEST_CASE("overflow: what is left of a ring takes its file with it") {
    const Folder folder;
    const TestRing ring(options_in(folder.path()));
    const std::string path = stat_of(ring).overflow_path;
    const auto object = Segment::object_name(ring.name());
    REQUIRE(object.has_value());
    std::fstream memory("/dev/shm" + *object, std::ios::in | std::ios::out | std::ios::binary);
    const auto write = [&](std::uint64_t offset, std::uint64_t word) {
        memory.seekp(static_cast<std::streamoff>(offset));
        memory.write(reinterpret_cast<const char*>(&word), sizeof word).flush();
        REQUIRE(memory.good());
    };
    SUBCASE("its creator died before it was ready") {
        write(offsetof(SegmentHeader, phase), 0);
        REQUIRE(create_ring(ring.name()).has_value());
    }
    SUBCASE("its header is damaged") {
        write(offsetof(SegmentHeader, check), 0);
        CHECK(stat_ring(ring.name()).error().code == Errc::not_a_ring);
        REQUIRE(remove_ring(ring.name()).has_value());
    }
    SUBCASE("the name of its file is damaged: that stays") {
        write(overflow_path_offset + 8, 0);
        CHECK(stat_ring(ring.name()).error().message.find("overflow file is damaged") !=
              std::string::npos);
        REQUIRE(remove_ring(ring.name()).has_value());
        CHECK(fs::remove(path));
    }
    CHECK(folder.files() == 0);
}
