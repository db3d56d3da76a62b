// Records that are read ahead in large pieces, whichever order they are wanted in.

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "bad_block.hpp"
#include "ledgers.hpp"
#include "record_stream.hpp"

using namespace rollring;
using namespace rollring::test;
using ledger::DataFile;
using ledger::DataFiles;
using ledger::RecordStream;

namespace {

Bytes random_bytes(std::size_t bytes, std::uint64_t seed) {
    std::mt19937_64 dice(seed);
    Bytes made(bytes);
    for (char& one : made) one = static_cast<char>(dice());
    return made;
}

// Files of random bytes, and places in them.
class Places {
  public:
    explicit Places(std::size_t file_bytes) {
        for (std::uint64_t i = 0; i < files_.size(); i++) {
            files_[i] = random_bytes(file_bytes + i * 1000, i);
            write_bytes(path(i), files_[i]);
        }
    }
    [[nodiscard]] std::filesystem::path path(std::uint64_t segment) const {
        return folder_.path() / std::to_string(segment);
    }
    [[nodiscard]] DataFiles open() const {
        DataFiles opened;
        for (std::uint64_t i = 0; i < files_.size(); i++) {
            auto file = DataFile::open(path(i), i, i == 0);
            REQUIRE(file.has_value());
            opened.emplace(i, std::move(*file));
        }
        return opened;
    }
    // All places of that size, but for every `skipped`th of them.
    [[nodiscard]] std::vector<RecordStream::Place> all(std::uint64_t bytes,
                                                       std::uint64_t skipped) const {
        std::vector<RecordStream::Place> places;
        for (std::uint64_t segment = 0; segment < files_.size(); segment++) {
            for (std::uint64_t at = 64, i = 0; at + bytes <= files_[segment].size();
                 at += bytes, i++) {
                if (i % skipped != 1) places.push_back({segment, at, bytes});
            }
        }
        return places;
    }
    [[nodiscard]] bool has(const RecordStream::Place& place, const RecordStream::Read& read) const {
        return read.bytes.size() == place.bytes && read.file->file_id() == place.segment &&
               std::memcmp(read.bytes.data(), files_[place.segment].data() + place.offset,
                           place.bytes) == 0;
    }

  private:
    LedgerFolder folder_;
    std::array<Bytes, 3> files_;
};

void check_all(const Places& files, const std::vector<RecordStream::Place>& order) {
    RecordStream stream(files.open(), order);
    REQUIRE(stream.start().has_value());
    std::size_t right = 0;
    for (const RecordStream::Place& place : order) {
        const auto read = stream.next();
        if (read.problem.empty() && files.has(place, read)) right++;
    }
    CHECK(right == order.size());
}

}  // namespace

TEST_CASE("ledger: records are read in their order, however they lie in their files") {
    const Places files(std::size_t{9} << 20);
    std::mt19937_64 dice(44);
    for (const std::uint64_t bytes : {192, 4096, 40'000, 3'000'000}) {
        CAPTURE(bytes);
        auto order = files.all(bytes, 7);
        check_all(files, order);
        std::ranges::reverse(order);
        check_all(files, order);
        std::ranges::shuffle(order, dice);
        check_all(files, order);
        order.resize(order.size() / 20 + 1);  // far apart
        check_all(files, order);
    }
}

TEST_CASE("ledger: a stream that ends before its last record waits for nothing") {
    const Places files(std::size_t{9} << 20);
    const auto order = files.all(40'000, 7);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, order.size() / 2}) {
        RecordStream stream(files.open(), order);
        REQUIRE(stream.start().has_value());
        for (std::size_t i = 0; i < count; i++) CHECK(files.has(order[i], stream.next()));
    }
    RecordStream none(files.open(), {});
    REQUIRE(none.start().has_value());
}

TEST_CASE("ledger: a block that cannot be read takes the records that have a part of it") {
    const Places files(std::size_t{1} << 20);
    const auto order = files.all(3000, 7);
    struct stat found{};
    REQUIRE(stat(files.path(1).c_str(), &found) == 0);
    constexpr std::uint64_t bad = 40'960;
    bad_block = {found.st_ino, bad};
    RecordStream stream(files.open(), order);
    REQUIRE(stream.start().has_value());
    int lost = 0;
    for (const RecordStream::Place& place : order) {
        const auto read = stream.next();
        const bool of_it = place.segment == 1 && place.offset < bad + ledger::block &&
                           place.offset + place.bytes > bad;
        CHECK(read.problem.empty() == !of_it);
        if (!of_it) CHECK(files.has(place, read));
        if (of_it) CHECK(read.problem.ends_with("byte 40960 cannot be read: Input/output error"));
        lost += of_it ? 1 : 0;
    }
    bad_block = {};
    CHECK(lost > 1);
}
