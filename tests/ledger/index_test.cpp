// Indexes of closed segments: restores that send while they read.

#include <sys/stat.h>

#include <cstring>
#include <map>
#include <random>

#include "bad_block.hpp"
#include "faulty_disk.hpp"
#include "ledger_scan.hpp"
#include "segment_index.hpp"
#include "support/in_child.hpp"
#include "xxh3.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

// Of several blocks.
void send_long(Producer& producer, const std::string& name, std::uint32_t member) {
    REQUIRE(send_bytes(producer, "long " + name, member, 20 * kib, patience()) == Push::ok);
}

// Three closed segments with an index each, and one of a writer that died: pairs of which some were
// acknowledged and settled, and open groups across the segments.
class Left {
  public:
    Left() {
        const LedgerFolder folder;
        const TestRing ring(with_ledger(folder.path()));
        Producer producer = ring.producer();
        for (int session = 0; session < 4; session++) {
            const auto stash = open_stash(ring.name());
            const std::string name = std::to_string(session);
            send(producer, "open " + name, 0, 2);
            send_long(producer, name, 1);  // its tokens are ones
            send_pair(producer, "pair " + name);
            if (session > 0) send_long(producer, std::to_string(session - 1), 0);
            train_all(*stash);
            if (session == 1) CHECK(stash->checkpointed(0).value() == 2);
            if (session == 3) copy_ = std::make_unique<LedgerFolder>(folder.path());
        }
        CHECK(copy_->files(".index").size() == 3);
        CHECK(copy_->files(".ledger").size() == 4);
    }
    [[nodiscard]] LedgerFolder folder() const { return LedgerFolder(copy_->path()); }
    [[nodiscard]] static constexpr std::uint64_t records() { return 17; }

  private:
    std::unique_ptr<LedgerFolder> copy_;
};

void remove_indexes(const LedgerFolder& folder) {
    for (const auto& path : folder.files(".index")) std::filesystem::remove(path);
}

ledger::Contents contents(const std::filesystem::path& directory, bool by_index = true) {
    auto found = ledger::scan(directory, {.by_index = by_index});
    REQUIRE(found.has_value());
    return std::move(*found);
}

// Whether both know the same of all records.
bool same(const ledger::Contents& one, const ledger::Contents& other) {
    if (one.book.in_order() != other.book.in_order() || one.end != other.end) return false;
    for (const auto& [number, a] : one.book.records()) {
        const ledger::Kept& b = *other.book.record(number);
        const bool same_place =
            a.segment == b.segment && a.offset == b.offset && a.bytes == b.bytes;
        if (!same_place || !(a.origin == b.origin) || !(a.key == b.key) || a.tokens != b.tokens ||
            a.acked != b.acked || a.step != b.step || a.batch != b.batch) {
            return false;
        }
    }
    return one.book.next_number() == other.book.next_number() &&
           one.book.next_batch() == other.book.next_batch() &&
           one.book.settled_step() == other.book.settled_step() && one.gone == other.gone;
}

std::vector<std::string> restored(const std::filesystem::path& directory) {
    const RestoredRing again(directory, {.ledger_dir = directory.string() + ".new"});
    auto sent = sent_into(again.name());
    std::filesystem::remove_all(directory.string() + ".new");
    return sent;
}

// The place of a record of that prompt in the oldest file that has one.
struct Found {
    std::filesystem::path path;
    std::size_t at = 0;
};
Found find_prompt(const LedgerFolder& folder, const std::string& prompt) {
    for (const auto& path : folder.files(".ledger")) {
        const Bytes bytes = bytes_of(path);
        const auto at = std::ranges::search(bytes, prompt);
        if (!at.empty()) return {path, static_cast<std::size_t>(at.begin() - bytes.begin())};
    }
    FAIL("no record of " << prompt);
    return {};
}

void flip(const Found& found) {
    Bytes bytes = bytes_of(found.path);
    bytes[found.at] = static_cast<char>(bytes[found.at] ^ 1);
    write_bytes(found.path, bytes);
}

// A block in the middle of the group's record in a closed segment.
void spoil(const LedgerFolder& folder, const std::string& prompt) {
    const ledger::Contents found = contents(folder.path());
    for (const std::uint64_t number : found.book.in_order()) {
        const ledger::Kept& one = *found.book.record(number);
        if (!(one.key == GroupKey::of(prompt, 0)) || one.segment == found.newest) continue;
        struct stat its{};
        REQUIRE(stat(ledger::segment_path(folder.path(), one.segment).c_str(), &its) == 0);
        const std::uint64_t at = (one.offset + one.bytes / 2) / ledger::block * ledger::block;
        bad_block = {its.st_ino, static_cast<off_t>(at)};
        return;
    }
    FAIL("no record of " << prompt);
}

// With the right checksum again.
void seal(Bytes& bytes) {
    ledger::IndexHead head{};
    std::memcpy(&head, bytes.data(), sizeof head);
    head.checksum = XXH3_64bits_withSeed(bytes.data() + sizeof head, bytes.size() - sizeof head,
                                         XXH3_64bits(&head, offsetof(ledger::IndexHead, checksum)));
    std::memcpy(bytes.data(), &head, sizeof head);
}

}  // namespace

TEST_CASE("ledger: an index tells a restore all that its segment does") {
    const Left left;
    const LedgerFolder folder = left.folder();
    const ledger::Contents by_index = contents(folder.path());
    CHECK(by_index.indexed == std::unordered_set<std::uint64_t>{1, 2, 3});
    CHECK(by_index.book.records().size() == Left::records());
    CHECK(same(by_index, contents(folder.path(), false)));
    const auto given = restored(folder.path());
    CHECK(given.size() == Left::records());
    remove_indexes(folder);
    CHECK(contents(folder.path()).indexed.empty());
    CHECK(restored(folder.path()) == given);
}

TEST_CASE("ledger: a restore begins without the records of segments that have an index") {
    const Left left;
    const LedgerFolder folder = left.folder();
    for (const bool indexed : {true, false}) {
        if (!indexed) remove_indexes(folder);
        spoil(folder, "long 1");
        const std::string name = scratch_name("begun");
        const auto begun = LedgerRestore::begin(folder.path(), name);
        bad_block = {};
        static_cast<void>(remove_ring(name, true));
        CHECK(begun.has_value() == indexed);
        for (const auto& map : folder.files(".restored")) std::filesystem::remove(map);
    }
}

TEST_CASE("ledger: an index that is cut short, changed or of another file is as good as none") {
    const Left left;
    const LedgerFolder folder = left.folder();
    const ledger::Contents whole = contents(folder.path(), false);
    const auto path = folder.files(".index")[1];
    const Bytes bytes = bytes_of(path);
    const auto check = [&](const Bytes& changed) {
        write_bytes(path, changed);
        const ledger::Contents found = contents(folder.path());
        CHECK_FALSE(found.indexed.contains(2));
        CHECK(same(found, whole));
    };
    for (std::size_t length = 0; length < bytes.size(); length++) {
        CAPTURE(length);
        check(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
    }
    for (std::size_t at = 0; at < bytes.size(); at++) {
        CAPTURE(at);
        Bytes changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
        check(changed);
    }
    Bytes longer = bytes;
    longer.resize(longer.size() + 40);
    check(longer);
    check(bytes_of(folder.files(".index")[0]));
    Bytes newer = bytes;
    newer[8] = 2;  // its version
    seal(newer);
    check(newer);
    // Entries that do not fill the segment, with a right checksum.
    for (const std::size_t field : {std::size_t{24}, sizeof(ledger::IndexHead)}) {
        CAPTURE(field);
        Bytes changed = bytes;
        changed[field] = static_cast<char>(changed[field] ^ 64);  // the end, and an offset
        seal(changed);
        check(changed);
    }
    write_bytes(path, bytes);
    CHECK(contents(folder.path()).indexed.contains(2));
    CHECK(restored(folder.path()).size() == Left::records());
}

TEST_CASE("ledger: a record whose damage shows while others are sent is named and left out") {
    const Left left;
    // The first in the order of a restore, one in its middle, and one of a group of its own.
    struct Damaged {
        std::string prompt;
        std::uint32_t member;
    };
    for (const auto& [prompt, member] :
         {Damaged{"pair 1", 0}, Damaged{"long 2", 1}, Damaged{"open 0", 0}}) {
        CAPTURE(prompt);
        const LedgerFolder folder = left.folder();
        const auto whole = restored(folder.path());
        flip(find_prompt(folder, prompt));
        const LedgerStat scanned = look_at(folder.path());
        CHECK(scanned.unreadable == 1);
        const RestoredRing again(folder.path());
        CHECK(again.stat().records == Left::records() - 1);
        CHECK(again.stat().groups == scanned.groups);
        CHECK(again.stat().unreadable == 1);
        CHECK(again.stat().damaged == scanned.damaged);
        auto given = sent_into(again.name());
        CHECK(given.size() == Left::records() - 1);
        CHECK(std::ranges::includes(std::set(whole.begin(), whole.end()),
                                    std::set(given.begin(), given.end())));
        // Each record is known by its own number: those that were trained on are settled.
        const auto stash = open_stash(again.name());
        Prompts trained = train_all(*stash);
        CHECK(std::ranges::find(trained, prompt) == trained.end());
        CHECK(stash->checkpointed(next_step(*stash)).value() == 2 * trained.size());
        const LedgerStat after = look_at(folder.path());
        CHECK(after.records == Left::records() - 1 - 2 * trained.size());
        Producer worker = open_producer(again.name());
        send(worker, prompt, member, 2);
        for (int i = 0; i < 4; i++) send(worker, "open " + std::to_string(i), 1, 2);
        send(worker, "long 3", 0, 2);
        train_all(*stash);
        CHECK(stash->checkpointed(next_step(*stash)).has_value());
        CHECK(look_at(folder.path()).records == 0);
    }
}

TEST_CASE(
    "ledger: a restore that meets a block which the disk cannot read ends, or goes elsewhere") {
    const Left left;
    const LedgerFolder folder = left.folder();
    spoil(folder, "long 2");
    {
        const RestoredRing again(folder.path(), {.ledger_dir = folder.path().string() + ".new"});
        CHECK(again.stat().sent < Left::records());
        CHECK(again.stat().unreadable == Left::records() - again.stat().sent);
        CHECK(again.stat().damaged.at(0).ends_with("Input/output error"));
        std::filesystem::remove_all(folder.path().string() + ".new");
    }
    const std::string name = scratch_name("ends");
    auto restore = LedgerRestore::begin(folder.path(), name);
    REQUIRE(restore.has_value());
    Result<bool> sent = true;
    while (sent && *sent) sent = restore->send(patience());
    bad_block = {};
    CHECK(restore->stat().sent != 0);
    REQUIRE_FALSE(sent.has_value());
    CHECK(sent.error().code == Errc::ledger_failed);
    CHECK(sent.error().message.find("Input/output error") != std::string::npos);
    CHECK(sent.error().message.find(name) != std::string::npos);
    CHECK_FALSE(restore->send(patience()).has_value());  // it stays as it is
    static_cast<void>(remove_ring(name, true));
    CHECK(restored(folder.path()).size() == Left::records());
}

TEST_CASE("ledger: an index that names other records ends the restore, and nothing comes twice") {
    const Left left;
    const LedgerFolder folder = left.folder();
    const auto path = folder.files(".index")[1];
    Bytes bytes = bytes_of(path);
    // The numbers of two records, exchanged.
    std::vector<std::size_t> numbers;
    std::size_t at = sizeof(ledger::IndexHead);
    while (at < bytes.size()) {
        ledger::IndexedEntry entry{};
        std::memcpy(&entry, bytes.data() + at, sizeof entry);
        if (entry.kind == static_cast<std::uint32_t>(ledger::Kind::record)) {
            numbers.push_back(at + offsetof(ledger::IndexedEntry, number));
        }
        at += sizeof entry + (std::size_t{entry.part_bytes} + 7) / 8 * 8;
    }
    REQUIRE(numbers.size() >= 2);
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(numbers[0]),
                     bytes.begin() + static_cast<std::ptrdiff_t>(numbers[0] + 8),
                     bytes.begin() + static_cast<std::ptrdiff_t>(numbers[1]));
    seal(bytes);
    write_bytes(path, bytes);
    const std::string name = scratch_name("lies");
    auto restore = LedgerRestore::begin(folder.path(), name);
    REQUIRE(restore.has_value());
    Result<bool> sent = true;
    while (sent && *sent) sent = restore->send(patience());
    REQUIRE_FALSE(sent.has_value());
    CHECK(sent.error().message.find(path.filename().string()) != std::string::npos);
    const auto given = sent_into(name);
    CHECK(std::set(given.begin(), given.end()).size() == given.size());
    static_cast<void>(remove_ring(name, true));
    std::filesystem::remove(path);  // as the message says
    CHECK(restored(folder.path()).size() == Left::records());
}

TEST_CASE("ledger: a stash makes the index that a killed one has left out, and removes old ones") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    const auto status = in_child([&] {
        Producer producer = ring.producer();
        const auto stash = open_stash(ring.name());
        send(producer, "open", 0, 2);
        read_all(*stash);
        kill(getpid(), SIGKILL);
        return 0;
    });
    CHECK(status == 128 + SIGKILL);
    CHECK(folder.files(".index").empty());
    write_bytes(folder.path() / "00000077.index", {'x'});
    open_stash(ring.name()).reset();
    REQUIRE(folder.files(".index").size() == 1);
    CHECK(contents(folder.path()).indexed == std::unordered_set<std::uint64_t>{1});
    // A damaged segment has none: its damage is told each time.
    remove_indexes(folder);
    flip(find_prompt(folder, "open"));
    open_stash(ring.name()).reset();
    CHECK_FALSE(std::filesystem::exists(folder.path() / "00000001.index"));
}

TEST_CASE("ledger: the index goes with its segment, and counts for the bound") {
    const LedgerFolder folder;
    constexpr std::uint64_t bound = 1 << 20;
    const TestRing ring(with_ledger(folder.path(), Durable::group, bound));
    Producer producer = ring.producer();
    auto stash = open_stash(ring.name());
    Batch batch;
    std::uint64_t most = 0;
    for (std::int64_t step = 0; step < 200; step++) {
        for (std::uint32_t i = 0; i < 2; i++) {
            REQUIRE(send_bytes(producer, std::to_string(step), i, 10 * kib, patience()) ==
                    Push::ok);
        }
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.ack(step).has_value());
        if (step % 8 == 7) CHECK(stash->checkpointed(step - 4).value() != 0);
        most = std::max<std::uint64_t>(most, folder.files(".index").size());
    }
    CHECK(most > 1);
    stash.reset();
    for (const auto& path : folder.files(".index")) {
        std::filesystem::path segment = path;
        CHECK(std::filesystem::exists(segment.replace_extension(".ledger")));
    }
    std::uint64_t bytes = 0;
    for (const auto& one : std::filesystem::directory_iterator(folder.path())) {
        if (one.is_regular_file()) bytes += one.file_size();
    }
    CHECK(look_at(folder.path()).file_bytes == bytes);
}

TEST_CASE("ledger: a disk that takes no index takes records all the same") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::group, std::uint64_t{1} << 20));
    InUse<FailingDisk> disk(Call::keep, ENOSPC, 0);
    Producer producer = ring.producer();
    {
        const auto stash = open_stash(ring.name());
        for (std::uint32_t i = 0; i < 20; i++) {
            REQUIRE(send_bytes(producer, std::to_string(i), 0, 10 * kib, patience()) == Push::ok);
        }
        read_all(*stash);
        CHECK(stash->problem().empty());
    }
    CHECK(disk->calls() > 1);
    CHECK(folder.files(".ledger").size() > 1);
    CHECK(folder.files(".index").empty());
    CHECK(restored(folder.path()).size() == 20);
}
