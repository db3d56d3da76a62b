#pragma once
// A ring with a ledger, and machines that die: a copy of the ledger's directory is left of one.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rollring/extras/ledger.hpp"
#include "rollring/stash.hpp"
#include "rollring/tap.hpp"
#include "support/pairs.hpp"

namespace rollring::test {

using Bytes = std::vector<char>;

inline Bytes bytes_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, const Bytes& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(file.good());
}

// Removed at the end.
class LedgerFolder {
  public:
    LedgerFolder() : path_(std::filesystem::temp_directory_path() / scratch_name("ledger")) {
        std::filesystem::create_directories(path_);
        path_ = std::filesystem::canonical(path_);
    }
    // A copy of another one, as it is now.
    explicit LedgerFolder(const std::filesystem::path& other) : LedgerFolder() {
        std::filesystem::copy(other, path_, std::filesystem::copy_options::recursive);
    }
    LedgerFolder(const LedgerFolder&) = delete;
    LedgerFolder& operator=(const LedgerFolder&) = delete;
    ~LedgerFolder() { std::filesystem::remove_all(path_); }

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::vector<std::filesystem::path> files(const std::string& ending) const {
        std::vector<std::filesystem::path> all;
        for (const auto& entry : std::filesystem::directory_iterator(path_)) {
            if (entry.path().extension() == ending) all.push_back(entry.path());
        }
        std::ranges::sort(all);
        return all;
    }

  private:
    std::filesystem::path path_;
};

inline RingOptions with_ledger(const std::filesystem::path& directory,
                               Durable durable = Durable::group,
                               std::uint64_t bytes = std::uint64_t{64} << 20) {
    return {.lanes = 4,
            .lane_bytes = 1 << 20,
            .spill_bytes = std::uint64_t{1} << 20,
            .ledger_dir = directory.string(),
            .ledger_bytes = bytes,
            .durable = durable};
}

inline std::unique_ptr<Stash> open_stash(const std::string& ring,
                                         const StashOptions& options = freshest_pair) {
    auto opened = Stash::open(ring, options);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

inline Producer open_producer(const std::string& ring) {
    auto opened = Producer::open(ring);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

inline void send_pair(Producer& producer, const std::string& prompt) {
    for (std::uint32_t member = 0; member < 2; member++) send(producer, prompt, member, 2);
}

// Reads all that is there; no batch comes of it.
inline void read_all(Stash& stash) {
    Batch none;
    REQUIRE(stash.next(none, Deadline::now()) == NextBatch::timed_out);
    REQUIRE(stash.sync_ledger(patience()).has_value());
}

// The prompt of the next batch, a pair; empty if there is no batch yet.
inline std::string next_prompt(Stash& stash, Batch& batch) {
    // With Durable::record, a batch is given once the disk has all that was read.
    if (stash.next(batch, Deadline::now()) != NextBatch::batch) {
        REQUIRE(stash.sync_ledger(patience()).has_value());
        if (stash.next(batch, Deadline::now()) != NextBatch::batch) return {};
    }
    REQUIRE(batch.sequences().size() == 2);
    for (const Sequence& one : batch.sequences()) {
        for (const std::int32_t token : one.view.token_ids()) {
            REQUIRE(token == static_cast<std::int32_t>(one.view.meta().repetition_id));
        }
    }
    return std::string(batch.sequences()[0].view.instance_id());
}

using Prompts = std::vector<std::string>;

// All that batches come of now, each acknowledged with the next step.
inline Prompts train_all(Stash& stash) {
    Prompts prompts;
    Batch batch;
    while (true) {
        const std::string prompt = next_prompt(stash, batch);
        if (prompt.empty()) return prompts;
        prompts.push_back(prompt);
        const auto acked = batch.ack(next_step(stash));
        REQUIRE_MESSAGE(acked.has_value(), (acked ? "" : acked.error().to_string()));
    }
}

inline LedgerStat look_at(const std::filesystem::path& directory) {
    const auto stat = stat_ledger(directory);
    REQUIRE_MESSAGE(stat.has_value(), (stat ? "" : stat.error().to_string()));
    return *stat;
}

// All columns of a record, one after the other.
inline std::string content_of(const TrajectoryView& view) {
    std::string all;
    for (const ColumnView& column : view.columns()) {
        all += std::to_string(column.column) + ":";
        all.append(reinterpret_cast<const char*>(column.data.data()), column.data.size());
    }
    return all;
}

// The records of a ring with one producer, in the order in which it sent them.
inline std::vector<std::string> sent_into(const std::string& ring) {
    auto tap = Tap::attach(ring);
    REQUIRE_MESSAGE(tap.has_value(), (tap ? "" : tap.error().to_string()));
    std::vector<std::string> all;
    TapRecord record;
    while (tap->poll(record) == TapPoll::record) all.push_back(content_of(record.view));
    return all;
}

// A new ring with the records of a ledger, which is removed at the end.
class RestoredRing {
  public:
    explicit RestoredRing(const std::filesystem::path& directory,
                          const RestoreOptions& options = {})
        : name_(scratch_name("restored")) {
        auto restore = LedgerRestore::begin(directory, name_, options);
        REQUIRE_MESSAGE(restore.has_value(), (restore ? "" : restore.error().to_string()));
        while (true) {
            const auto sent = restore->send(patience());
            REQUIRE_MESSAGE(sent.has_value(), (sent ? "" : sent.error().to_string()));
            if (!*sent) break;
        }
        stat_ = restore->stat();
        CHECK(stat_.sent == stat_.records);
    }
    RestoredRing(const RestoredRing&) = delete;
    RestoredRing& operator=(const RestoredRing&) = delete;
    ~RestoredRing() { static_cast<void>(remove_ring(name_, true)); }

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] const RestoreStat& stat() const { return stat_; }

  private:
    std::string name_;
    RestoreStat stat_{};
};

using Members = std::set<std::pair<std::string, std::uint32_t>>;

// The members that a restore gives, each of them once, with its bytes.
inline Members restored_members(const std::filesystem::path& directory) {
    const RestoredRing again(directory, {.ledger_dir = directory.string() + ".new"});
    Members members;
    auto stash = open_stash(again.name());
    for (const std::string& prompt : train_all(*stash)) {
        CHECK(members.emplace(prompt, 0).second);
        CHECK(members.emplace(prompt, 1).second);
    }
    for (const GroupStat& group : stash->explain(1000)) {
        for (std::uint32_t i = 0; i < group.size; i++) {
            if (std::ranges::find(group.missing, i) == group.missing.end()) {
                CHECK(members.emplace(group.instance_id, i).second);
            }
        }
    }
    CHECK(stash->account().accepted.records == members.size());
    CHECK(stash->account().dropped_total().records == 0);
    stash.reset();  // its ledger's thread writes there
    std::filesystem::remove_all(directory.string() + ".new");
    return members;
}

inline std::uint64_t durable_of(const std::string& ring) {
    const auto stat = stat_ring(ring);
    REQUIRE(stat.has_value());
    return stat->lanes.empty() ? 0 : stat->lanes.front().durable_records;
}

}  // namespace rollring::test
