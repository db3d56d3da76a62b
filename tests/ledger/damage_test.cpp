// Ledgers whose files were cut short or changed.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <set>

#include "bad_block.hpp"
#include "fd.hpp"
#include "file_scan.hpp"
#include "ledger_layout.hpp"
#include "ledgers.hpp"
#include "log_writer.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// One segment: five pairs, of which two were acknowledged and one of those settled.
Bytes small_ledger() {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        for (int i = 0; i < 5; i++) {
            // Later groups wait for a third member.
            for (std::uint32_t member = 0; member < 2; member++) {
                send(producer, "prompt " + std::to_string(i), member, i < 2 ? 2 : 3);
            }
            if (i >= 2) continue;
            Batch batch;
            REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
            REQUIRE(batch.ack(i).has_value());
        }
        read_all(*stash);
        CHECK(stash->checkpointed(0).value() == 2);
    }
    // Another session cuts the reserved rest off.
    {
        const auto stash = open_stash(ring.name());
    }
    return bytes_of(folder.files(".ledger").front());
}

}  // namespace

BadBlock rollring::test::bad_block;

// In place of the system's.
extern "C" ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
    struct stat found{};
    if (bad_block.file != 0 && fstat(fd, &found) == 0 && found.st_ino == bad_block.file &&
        offset < bad_block.offset + static_cast<off_t>(ledger::block) &&
        offset + static_cast<off_t>(bytes) > bad_block.offset) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, bytes, offset);
}

TEST_CASE("ledger: a block that cannot be read takes what it has a part of, and nothing else") {
    const Bytes whole = small_ledger();
    const LedgerFolder folder;
    const auto path = folder.path() / "00000001.ledger";
    int lost = 0;
    // Without the first one, which has the file's header.
    for (std::uint64_t at = ledger::block; at < whole.size(); at += ledger::block) {
        CAPTURE(at);
        Bytes zeroed = whole;
        std::fill_n(zeroed.begin() + static_cast<std::ptrdiff_t>(at),
                    std::min(ledger::block, whole.size() - at), '\0');
        write_bytes(path, zeroed);
        const LedgerStat without = look_at(folder.path());
        write_bytes(path, whole);
        struct stat found{};
        REQUIRE(stat(path.c_str(), &found) == 0);
        bad_block = {found.st_ino, static_cast<off_t>(at)};
        const LedgerStat unread = look_at(folder.path());
        bad_block = {};
        CHECK(unread.records == without.records);
        CHECK(unread.unreadable == without.unreadable);
        CHECK(std::ranges::any_of(unread.damaged, [](const std::string& one) {
            return one.ends_with("Input/output error");
        }));
        lost += unread.unreadable != 0 ? 1 : 0;
    }
    CHECK(lost != 0);
}

TEST_CASE("ledger: no stash goes on with a file that the disk cannot read, and none is changed") {
    const Bytes whole = small_ledger();
    const LedgerFolder folder;
    const auto path = folder.path() / "00000001.ledger";
    write_bytes(path, whole);
    struct stat found{};
    REQUIRE(stat(path.c_str(), &found) == 0);
    const TestRing ring(with_ledger(folder.path()));
    for (const std::uint64_t at :
         {std::uint64_t{0}, (whole.size() - 1) / ledger::block * ledger::block}) {
        bad_block = {found.st_ino, static_cast<off_t>(at)};
        const auto stash = Stash::open(ring.name(), freshest_pair);
        const auto restore = LedgerRestore::begin(folder.path(), scratch_name("none"));
        REQUIRE_FALSE(restore.has_value());
        bad_block = {};
        REQUIRE_FALSE(stash.has_value());
        CHECK(stash.error().code == Errc::ledger_failed);
        CHECK(bytes_of(path) == whole);
    }
}

TEST_CASE("ledger: a hole in a file hides nothing behind it, and reserved space is no damage") {
    const Bytes whole = small_ledger();
    const LedgerFolder folder;
    const auto path = folder.path() / "00000001.ledger";
    write_bytes(path, whole);
    const LedgerStat before = look_at(folder.path());
    CHECK(before.damaged.empty());
    std::filesystem::resize_file(path, whole.size() + (std::uintmax_t{8} << 20));
    const LedgerStat reserved = look_at(folder.path());
    const auto reader = recording::FileReader::open(path, ledger::segment_type);
    REQUIRE(reader.has_value());
    CHECK(reader->written_end(ledger::block) == ledger::block);  // it has grown since
    CHECK(reserved.records == before.records);
    CHECK(reserved.damaged.empty());
    constexpr std::uint64_t hole = std::uint64_t{3} << 20;
    for (std::uint64_t at = ledger::block; at < whole.size(); at += ledger::block) {
        CAPTURE(at);
        Bytes apart = whole;
        apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(at), hole, '\0');
        write_bytes(path, apart);
        const LedgerStat without = look_at(folder.path());
        const Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
        REQUIRE(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(at), static_cast<off_t>(hole)) == 0);
        const LedgerStat punched = look_at(folder.path());
        CHECK(punched.records == without.records);
        CHECK(punched.unreadable == without.unreadable);
        CHECK(punched.damaged == without.damaged);
    }
}

TEST_CASE("ledger: of a segment that is cut short anywhere, all whole records are given") {
    const Bytes whole = small_ledger();
    const LedgerFolder folder;
    const auto path = folder.path() / "00000001.ledger";
    std::uint64_t before = 0;
    bool opened = false;
    for (std::size_t length = 0; length <= whole.size(); length++) {
        write_bytes(path,
                    Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
        const auto stat = stat_ledger(folder.path());
        if (!stat) {
            CHECK(stat.error().code == Errc::not_found);
            CHECK_FALSE(opened);
            continue;
        }
        opened = true;
        // Each cut has the records of a shorter one, but for the two that were settled.
        CHECK(stat->records + 2 >= before);
        CHECK(stat->records <= 10);
        before = std::max(before, stat->records);
    }
    CHECK(before == 10);
    CHECK(look_at(folder.path()).records == 8);
}

TEST_CASE("ledger: a damaged copy takes no record out of its ring") {
    enum class Damage : std::uint8_t { removed, header, record };
    for (const Damage damage : {Damage::removed, Damage::header, Damage::record}) {
        CAPTURE(static_cast<int>(damage));
        const LedgerFolder folder;
        const TestRing ring(with_ledger(folder.path()));
        {
            Producer producer = ring.producer();
            const auto stash = open_stash(ring.name());
            for (std::uint32_t i = 0; i < 2; i++) send(producer, "a", i, 2);
            CHECK(train_all(*stash).size() == 1);
            for (std::uint32_t i = 0; i < 2; i++) send(producer, "b", i, 2);
            CHECK(train_all(*stash).size() == 1);
            CHECK(stash->checkpointed(0).value() == 2);
        }
        const LedgerFolder left(folder.path());
        const RestoredRing again(left.path());
        const auto path = left.files(".ledger").front();
        Bytes bytes = bytes_of(path);
        if (damage == Damage::header) bytes[40] = static_cast<char>(bytes[40] ^ 1);
        if (damage == Damage::record) {
            for (std::size_t at = 0; at + 1 < bytes.size(); at++) {
                if (bytes[at] == 'b' && bytes[at + 1] == '\0') bytes[at] = 'c';
            }
        }
        if (damage == Damage::removed) {
            std::filesystem::remove(path);
        } else {
            write_bytes(path, bytes);
        }
        const auto stash = open_stash(again.name());
        CHECK(train_all(*stash) == std::vector<std::string>{"b"});
        CHECK(look_at(left.path()).records == 2);
        CHECK(stash->checkpointed(next_step(*stash)).value() == 2);
    }
}

TEST_CASE("ledger: a file that cannot be read hides no other file's records") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    for (const char* prompt : {"a", "b", "c"}) {  // a file each
        const auto stash = open_stash(ring.name());
        for (std::uint32_t i = 0; i < 2; i++) send(producer, prompt, i, 2);
        CHECK(train_all(*stash) == std::vector<std::string>{prompt});
    }
    for (const bool flipped : {true, false}) {
        CAPTURE(flipped);
        const LedgerFolder left(folder.path());
        const auto path = left.files(".ledger")[1];
        if (flipped) {
            Bytes bytes = bytes_of(path);
            bytes[8] = static_cast<char>(bytes[8] ^ 2);  // its version
            write_bytes(path, bytes);
        } else {
            std::filesystem::remove(path);
            std::filesystem::create_directory(path);  // the kernel refuses each read
        }
        const auto stat = look_at(left.path());
        CHECK(stat.records == 4);
        REQUIRE_FALSE(stat.damaged.empty());
        CHECK(stat.damaged[0].find("00000002.ledger") != std::string::npos);
        const RestoredRing again(left.path(), {.ledger_dir = left.path().string() + ".new"});
        const auto given = train_all(*open_stash(again.name()));
        CHECK(std::set<std::string>(given.begin(), given.end()) == std::set<std::string>{"a", "c"});
        std::filesystem::remove_all(left.path().string() + ".new");
    }
}

TEST_CASE(
    "ledger: a lost file, a cleared header and a damaged end are named, and stay as they are") {
    enum class Damage : std::uint8_t { removed, cleared, end };
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    for (const char* prompt : {"a", "b", "c"}) {  // a file each
        const auto stash = open_stash(ring.name());
        for (std::uint32_t i = 0; i < 2; i++) {
            REQUIRE(send_bytes(producer, prompt, i, 10 * kib, patience()) == Push::ok);
        }
        CHECK(train_all(*stash) == Prompts{prompt});
    }
    CHECK(look_at(folder.path()).damaged.empty());
    for (const Damage damage : {Damage::removed, Damage::cleared, Damage::end}) {
        CAPTURE(static_cast<int>(damage));
        const LedgerFolder left(folder.path());
        const auto files = left.files(".ledger");
        const auto path = damage == Damage::end ? files.back() : files[1];
        Bytes bytes = bytes_of(path);
        if (damage == Damage::cleared) std::fill_n(bytes.begin(), 4096, 0);
        if (damage == Damage::end) {
            // Each entry behind the header's block: no readable one is left there.
            for (std::size_t at = 4096; at < bytes.size(); at += 64) {
                if (bytes[at] != 0) bytes[at] = static_cast<char>(bytes[at] ^ 1);
            }
        }
        if (damage == Damage::removed) {
            std::filesystem::remove(path);
        } else {
            write_bytes(path, bytes);
        }
        CHECK_FALSE(look_at(left.path()).damaged.empty());
        {
            const RestoredRing again(left.path());
        }
        const RestoredRing again(left.path());
        open_stash(again.name()).reset();
        CHECK_FALSE(look_at(left.path()).damaged.empty());
        if (damage == Damage::removed) continue;
        Bytes after = bytes_of(path);
        // Of the newest file, the reserved rest may go.
        if (damage == Damage::end) CHECK(after.size() < bytes.size());
        after.resize(bytes.size());
        CHECK(after == bytes);
    }
}

TEST_CASE("ledger: a lost block between two commits that fill their blocks is named") {
    const LedgerFolder folder;
    std::vector<ledger::Place> places;
    {
        const ledger::RingHead head{.ring_id = 1, .name_bytes = 0};
        const std::string ring(reinterpret_cast<const char*>(&head), sizeof head);
        ledger::LogWriter log({.directory = folder.path(),
                               .columns = "",
                               .schema_id = Schema::standard().id(),
                               .ring = ring,
                               .max_bytes = std::uint64_t{1} << 20},
                              {}, 1, [](const ledger::Mark&) {});
        REQUIRE(log.start().has_value());
        const std::vector<std::byte> payload(ledger::block - ledger::line, std::byte{1});
        const std::array parts{std::span<const std::byte>(payload)};
        for (std::uint64_t number = 1; number <= 4; number++) {
            places.push_back(log.append(
                {.kind = ledger::stored(ledger::Kind::record), .number = number}, parts));
            REQUIRE(log.wait_for(log.hand_over(), patience()).has_value());
        }
    }
    CHECK(look_at(folder.path()).records == 4);
    CHECK(look_at(folder.path()).damaged.empty());
    const auto path = folder.files(".ledger").front();
    Bytes bytes = bytes_of(path);
    REQUIRE(places[2].offset == places[1].offset + ledger::block);
    REQUIRE(places[2].offset % ledger::block == 0);
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(places[2].offset), ledger::block, '\0');
    write_bytes(path, bytes);
    const LedgerStat stat = look_at(folder.path());
    CHECK(stat.records == 3);
    REQUIRE(stat.damaged.size() == 1);
    CHECK(stat.damaged[0].find("bytes " + std::to_string(places[2].offset) + " to " +
                               std::to_string(places[3].offset)) != std::string::npos);
}

TEST_CASE("ledger: files that its writer removes while they are listed are not missing") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    Producer producer = ring.producer();
    for (const char* prompt : {"a", "b", "c"}) {  // a file each
        const auto stash = open_stash(ring.name());
        send(producer, prompt, 0, 2);
        read_all(*stash);
    }
    const auto files = folder.files(".ledger");
    // Listed, and gone when it is opened.
    std::filesystem::remove(files[0]);
    std::filesystem::create_symlink(folder.path() / "gone", files[0]);
    std::filesystem::remove(files[1]);
    CHECK(look_at(folder.path()).damaged.empty());
}

TEST_CASE("ledger: a bit that flipped anywhere changes no record that is given") {
    const Bytes whole = small_ledger();
    const LedgerFolder folder;
    const auto path = folder.path() / "00000001.ledger";
    std::mt19937_64 dice(44);
    std::uint64_t lost = 0;
    for (std::size_t at = 0; at < whole.size(); at += 1 + dice() % 7) {
        CAPTURE(at);
        Bytes changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ (1 << (dice() % 8)));
        write_bytes(path, changed);
        const auto stat = stat_ledger(folder.path());
        if (!stat) {
            CHECK(at < 192);  // its header
            continue;
        }
        CHECK(stat->records <= 10);
        const bool same = stat->records == 8 && stat->acked == 2;
        if (!same) {
            CHECK_FALSE(stat->damaged.empty());
        }
        lost += stat->unreadable;
        if (dice() % 50 != 0) continue;
        const RestoredRing again(folder.path(), {.ledger_dir = folder.path().string() + ".new"});
        CHECK(again.stat().records == stat->records);
        for (const std::string& prompt : train_all(*open_stash(again.name()))) {
            CHECK(prompt.starts_with("prompt "));  // and the tokens are those of the member
        }
        std::filesystem::remove_all(folder.path().string() + ".new");
        for (const auto& map : folder.files(".restored")) std::filesystem::remove(map);
    }
    CHECK(lost > 100);
}
