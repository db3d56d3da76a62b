#pragma once
// A recording of batches of known content, in a directory of its own.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "rollring/extras/recording.hpp"
#include "rollring/stash.hpp"
#include "support/pairs.hpp"

namespace rollring::test {

// Removed at the end.
class Folder {
  public:
    Folder() : path_(std::filesystem::temp_directory_path() / scratch_name("recording")) {
        std::filesystem::create_directories(path_);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { std::filesystem::remove_all(path_); }

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    // Of the recording, in order.
    [[nodiscard]] std::vector<std::filesystem::path> files() const {
        std::vector<std::filesystem::path> all;
        for (const auto& entry : std::filesystem::directory_iterator(path_)) {
            if (entry.path().extension() == ".rollouts") all.push_back(entry.path());
        }
        std::ranges::sort(all);
        return all;
    }

  private:
    std::filesystem::path path_;
};

inline std::vector<char> bytes_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, std::span<const char> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(file.good());
}

// All that a batch says: equal for equal batches only.
inline std::string fingerprint(const Sequences& batch, const Schema& schema) {
    std::string all;
    const auto add = [&all](const auto& value) {
        all.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    for (const BatchGroupInfo& group : batch.groups()) add(group);
    for (const std::uint32_t offset : batch.group_offsets()) add(offset);
    for (const double reward : batch.rewards()) add(reward);
    for (const double advantage : batch.advantages()) add(advantage);
    for (const std::uint32_t number : batch.repetition_ids()) add(number);
    for (const std::int64_t version : batch.policy_versions()) add(version);
    for (const Sequence& one : batch.sequences()) {
        add(one.view.digest(schema));
        add(one.member);
        add(one.withheld);
        add(one.view.n_tokens());
        add(one.view.run_id());
        add(one.view.meta().created_ns);
        for (const ColumnView& column : one.view.columns()) {
            all.append(reinterpret_cast<const char*>(column.data.data()), column.data.size());
        }
    }
    return all;
}

inline RecordingWriter open_writer(const std::filesystem::path& path,
                                   const RecordingOptions& options = {},
                                   const Schema& schema = Schema::standard()) {
    auto opened = RecordingWriter::open(path, schema, options);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

inline Recording open_recording(const std::filesystem::path& path) {
    auto opened = Recording::open(path);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

// A ring whose trainer is given pairs, one prompt each.
class Run {
  public:
    explicit Run(StashOptions options = freshest_pair)
        : producer_(ring_.producer()), stash_(open_stash(ring_, options)) {}

    [[nodiscard]] Stash& stash() { return *stash_; }
    [[nodiscard]] Producer& producer() { return producer_; }
    // Sends the next pair, and leases it.
    Batch& next() {
        const std::string prompt = "prompt " + std::to_string(count_++);
        for (std::uint32_t i = 0; i < 2; i++) {
            REQUIRE(test::send(producer_, {.prompt = prompt,
                                           .repetition = i,
                                           .group_size = 2,
                                           .reward = 0.1 * i + static_cast<double>(count_),
                                           .tokens = 5 + 7 * count_}) == Push::ok);
        }
        REQUIRE(stash_->next(batch_, patience()) == NextBatch::batch);
        return batch_;
    }
    // Records `count` batches, acknowledged with the steps from `step` on; their fingerprints.
    std::vector<std::string> record(RecordingWriter& writer, int count) {
        std::vector<std::string> prints;
        for (int i = 0; i < count; i++) {
            const Batch& batch = next();
            const auto number = writer.add(batch);
            REQUIRE_MESSAGE(number.has_value(), (number ? "" : number.error().to_string()));
            prints.push_back(fingerprint(batch, stash_->schema()));
            const std::int64_t step = next_step(*stash_);
            REQUIRE(batch_.ack(step).has_value());
            REQUIRE(writer.acked(*number, step).has_value());
        }
        return prints;
    }

  private:
    const TestRing ring_;
    Producer producer_;
    std::unique_ptr<Stash> stash_;
    Batch batch_;
    std::uint64_t count_ = 0;
};

// Reads every batch of a recording, and requires that each is one of `prints`, or an error.
// The number of good ones.
inline std::size_t good_batches(const Recording& recording,
                                const std::vector<std::string>& prints) {
    std::size_t good = 0;
    for (std::size_t i = 0; i < recording.batches().size(); i++) {
        const auto batch = recording.read(i);
        if (!batch) continue;
        const std::uint64_t number = recording.batches()[i].number;
        REQUIRE(number < prints.size());
        REQUIRE(fingerprint(*batch, recording.schema()) == prints[number]);
        good++;
    }
    return good;
}

}  // namespace rollring::test
