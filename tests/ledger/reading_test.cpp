// Readers of a ledger's records, which take no part.

#include <algorithm>
#include <optional>
#include <set>

#include "ledger_layout.hpp"
#include "ledgers.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

Ledger open_ledger(const std::filesystem::path& directory) {
    auto opened = Ledger::open(directory);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

std::string content_in(const Ledger& ledger, std::size_t index) {
    const auto record = ledger.read(index);
    REQUIRE_MESSAGE(record.has_value(), (record ? "" : record.error().to_string()));
    return content_of(record->view());
}

std::vector<std::string> contents_of(const Ledger& ledger) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < ledger.records().size(); i++) all.push_back(content_in(ledger, i));
    return all;
}

// Its blocks up to the last one that has an entry: the rest is reserved.
Bytes used_bytes(const std::filesystem::path& path) {
    Bytes bytes = bytes_of(path);
    while (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
    bytes.resize((bytes.size() + ledger::block - 1) / ledger::block * ledger::block);
    return bytes;
}

std::string ack_next(Stash& stash, std::int64_t step) {
    Batch batch;
    std::string prompt = next_prompt(stash, batch);
    REQUIRE(batch.ack(step).has_value());
    return prompt;
}

// Sends a pair of records of 20 KiB, whose batch is acknowledged with that step.
void train_large(Producer& producer, Stash& stash, std::int64_t step) {
    for (std::uint32_t i = 0; i < 2; i++) {
        REQUIRE(send_bytes(producer, "prompt " + std::to_string(step), i, 20 * kib, patience()) ==
                Push::ok);
    }
    Batch batch;
    REQUIRE(stash.next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.ack(step).has_value());
}

// Two acknowledged pairs, the second of which was begun first, and a group without its end. A
// settled pair was there before.
void fill(const TestRing& ring) {
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    send_pair(producer, "settled");
    REQUIRE(ack_next(*stash, 0) == "settled");
    send(producer, "open", 0, 2);
    send(producer, "long", 0, 2);
    read_all(*stash);
    send_pair(producer, "short");
    REQUIRE(ack_next(*stash, 1) == "short");
    send(producer, "long", 1, 2);
    REQUIRE(ack_next(*stash, 2) == "long");
    REQUIRE(stash->sync_ledger(patience()).has_value());
    REQUIRE(stash->checkpointed(0).value() == 2);
}

}  // namespace

TEST_CASE("ledger: a reader has the records of a restore, in its order, and their steps") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    fill(ring);
    const LedgerFolder dead(folder.path());
    const Ledger ledger = open_ledger(dead.path());
    Prompts prompts;
    std::vector<std::optional<std::int64_t>> steps;
    for (std::size_t i = 0; i < ledger.records().size(); i++) {
        const KeptInfo& info = ledger.records()[i];
        const auto record = ledger.read(i);
        REQUIRE(record.has_value());
        prompts.emplace_back(record->view().instance_id());
        steps.push_back(info.step);
        CHECK(info.tokens == 200);
        CHECK(record->view().n_tokens() == 200);
        CHECK(info.key == record->view().group_key());
    }
    CHECK(prompts == Prompts{"short", "short", "long", "long", "open"});
    CHECK(steps == std::vector<std::optional<std::int64_t>>{1, 1, 2, 2, std::nullopt});
    CHECK(ledger.stat().ring == ring.name());
    CHECK(ledger.stat().records == 5);
    CHECK(ledger.stat().acked == 4);
    CHECK(ledger.schema().id() == Schema::standard().id());
    const auto contents = contents_of(ledger);
    const RestoredRing again(dead.path());
    CHECK(sent_into(again.name()) == contents);
    // The old steps mean nothing in the new ring.
    const auto trainer = open_stash(again.name());
    const std::string first = ack_next(*trainer, 7);
    REQUIRE(trainer->sync_ledger(patience()).has_value());
    const Ledger restored = open_ledger(dead.path());
    CHECK(restored.records().size() == 5);
    for (std::size_t i = 0; i < restored.records().size(); i++) {
        const auto record = restored.read(i);
        REQUIRE(record.has_value());
        const bool trained = record->view().instance_id() == first;
        CHECK(restored.records()[i].step.value_or(-1) == (trained ? 7 : -1));
    }
}

TEST_CASE("ledger: a reader makes and changes no file, and holds no lock") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    fill(ring);
    const LedgerFolder dead(folder.path());
    std::filesystem::remove(dead.path() / "writer.lock");
    const auto look = [&] {
        std::vector<std::pair<std::filesystem::path, Bytes>> all;
        for (const auto& entry : std::filesystem::directory_iterator(dead.path())) {
            all.emplace_back(entry.path(), bytes_of(entry.path()));
        }
        std::ranges::sort(all);
        return all;
    };
    const auto before = look();
    REQUIRE_FALSE(before.empty());
    const Ledger ledger = open_ledger(dead.path());
    CHECK(contents_of(ledger).size() == 5);
    CHECK(look() == before);
    const RestoredRing again(dead.path());  // it would be busy
    CHECK(contents_of(ledger).size() == 5);
}

TEST_CASE("ledger: a reader's record stays while its ring and ledger go, and moves") {
    const LedgerFolder folder;
    std::optional<KeptRecord> kept;
    {
        const TestRing ring(with_ledger(folder.path()));
        fill(ring);
        const Ledger ledger = open_ledger(folder.path());
        auto record = ledger.read(4);
        REQUIRE(record.has_value());
        kept.emplace(std::move(*record));
    }
    for (const auto& path : folder.files(".ledger")) std::filesystem::remove(path);
    CHECK(kept->view().instance_id() == "open");
    CHECK(kept->view().token_ids().size() == 200);
}

TEST_CASE("ledger: a reader of a relative path reads on in another directory") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    fill(ring);
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path().parent_path());
    const Ledger ledger = open_ledger(folder.path().filename());
    std::filesystem::current_path(before);
    CHECK(contents_of(ledger).size() == 5);
}

TEST_CASE("ledger: a bit that flips while a reader is open is named, and takes one record") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    fill(ring);
    const LedgerFolder dead(folder.path());
    const auto path = dead.files(".ledger").front();
    const Ledger ledger = open_ledger(dead.path());
    const auto contents = contents_of(ledger);
    const Bytes bytes = used_bytes(path);
    write_bytes(path, bytes);
    REQUIRE(contents_of(ledger) == contents);
    std::set<std::size_t> damaged;
    for (std::size_t at = 0; at < bytes.size(); at += 61) {
        CAPTURE(at);
        Bytes flipped = bytes;
        flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
        write_bytes(path, flipped);
        std::size_t wrong = 0;
        std::size_t of_header = 0;
        for (std::size_t i = 0; i < contents.size(); i++) {
            const auto record = ledger.read(i);
            if (record) {
                CHECK(content_of(record->view()) == contents[i]);
                continue;
            }
            wrong++;
            CHECK(record.error().message.find(path.string()) != std::string::npos);
            if (record.error().code == Errc::checksum_mismatch) {
                damaged.insert(i);
            } else {
                const bool named = record.error().code == Errc::not_a_ring ||
                                   record.error().code == Errc::abi_mismatch;
                CHECK(named);
                of_header++;
            }
        }
        const bool all_or_one = wrong <= 1 || of_header == contents.size();
        CHECK(all_or_one);
    }
    CHECK(damaged.size() == contents.size());
}

TEST_CASE("ledger: a file that is cut while a reader is open has its whole records") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path()));
    fill(ring);
    const LedgerFolder dead(folder.path());
    const auto path = dead.files(".ledger").front();
    const Ledger ledger = open_ledger(dead.path());
    const auto contents = contents_of(ledger);
    std::size_t last = 0;
    const Bytes whole = used_bytes(path);
    for (std::size_t bytes = ledger::block; bytes <= whole.size(); bytes += 256) {
        CAPTURE(bytes);
        write_bytes(path, Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes)));
        std::size_t read = 0;
        for (std::size_t i = 0; i < contents.size(); i++) {
            const auto record = ledger.read(i);
            if (record) {
                CHECK(content_of(record->view()) == contents[i]);
                read++;
            } else {
                CHECK(record.error().code == Errc::checksum_mismatch);
                CHECK(record.error().message.find(path.string()) != std::string::npos);
            }
        }
        CHECK(read >= last);
        last = read;
        if (bytes == ledger::block) CHECK(read < contents.size());
    }
    CHECK(last == contents.size());
}

TEST_CASE("ledger: records whose files a living writer removes are gone, and others are read") {
    const LedgerFolder folder;
    const TestRing ring(with_ledger(folder.path(), Durable::group, 1 << 20));
    Producer producer = ring.producer();
    const auto stash = open_stash(ring.name());
    std::int64_t step = 0;
    for (; step < 10; step++) train_large(producer, *stash, step);
    const Ledger ledger = open_ledger(folder.path());
    REQUIRE(ledger.records().size() == 20);
    const auto contents = contents_of(ledger);
    REQUIRE(folder.files(".ledger").size() > 2);
    const auto gone = [&] {
        std::size_t found = 0;
        for (std::size_t i = 0; i < contents.size(); i++) {
            const auto record = ledger.read(i);
            if (record) {
                CHECK(content_of(record->view()) == contents[i]);
                CHECK(i >= found);  // the oldest files go first
                continue;
            }
            CHECK(record.error().code == Errc::not_found);
            CHECK(record.error().message.find("was removed since") != std::string::npos);
            found++;
        }
        return found;
    };
    CHECK(gone() == 0);
    CHECK(stash->checkpointed(4).value() == 10);
    for (const std::int64_t end = step + 2; step < end; step++) train_large(producer, *stash, step);
    const std::size_t of_settled = gone();
    CHECK(of_settled > 0);
    CHECK(of_settled <= 10);
    CHECK(open_ledger(folder.path()).records().size() == 14);
    CHECK(stash->checkpointed(9).value() == 10);
    for (const std::int64_t end = step + 8; step < end; step++) train_large(producer, *stash, step);
    CHECK(gone() > of_settled);
}

TEST_CASE("ledger: another ledger in a reader's place has none of its records") {
    const LedgerFolder folder;
    const LedgerFolder other;
    const TestRing ring(with_ledger(folder.path()));
    const TestRing other_ring(with_ledger(other.path()));
    fill(ring);
    fill(other_ring);
    const LedgerFolder dead(folder.path());
    const Ledger ledger = open_ledger(dead.path());
    const auto path = dead.files(".ledger").front();
    write_bytes(path, bytes_of(other.files(".ledger").front()));
    const auto record = ledger.read(0);
    REQUIRE_FALSE(record.has_value());
    CHECK(record.error().code == Errc::not_found);
    CHECK(record.error().message.find(path.string()) != std::string::npos);
}

TEST_CASE("ledger: a directory without a ledger has no reader") {
    const LedgerFolder folder;
    const auto empty = Ledger::open(folder.path());
    REQUIRE_FALSE(empty.has_value());
    CHECK(empty.error().code == Errc::not_found);
    CHECK(empty.error().message.find("has no ledger") != std::string::npos);
    const auto none = Ledger::open(folder.path() / "none");
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == Errc::not_found);
}
