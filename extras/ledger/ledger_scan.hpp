#pragma once
// Reads a ledger's directory into a Book.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "book.hpp"
#include "log_writer.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"

namespace rollring::ledger {

struct LedgerRing {
    std::uint64_t id = 0;
    std::string name;
    std::string sizes;  // `name number` a line
};

struct Contents {
    Book book;
    LedgerRing ring;  // of the newest segment
    Schema schema = Schema::standard();
    std::deque<SegmentSize> segments;
    std::unordered_map<std::uint64_t, std::uint64_t> file_ids;  // of those that could be read
    std::uint64_t next_segment = 1;
    bool empty = true;         // no segment could be read
    std::uint64_t newest = 0;  // segment that could be read
    std::uint64_t end = 0;     // of its last entry
    std::uint64_t used = 0;    // of the same, with the damage behind that entry
    // Parts that cannot be read, for people: damage, or the last commit of a dead writer.
    std::vector<std::string> damaged;
    std::uint64_t lost = 0;  // records among them that were kept

    // Numbers of records that are settled or dropped: these, and all below the second.
    std::unordered_set<std::uint64_t> gone;
    std::uint64_t gone_below = 0;
    std::unordered_set<std::uint64_t> broken;  // numbers of the lost ones
    std::string unread;  // the first block or file that the disk could not read; empty: none

    void note(std::string problem);
    // Whether it is kept, settled or dropped. False: its file, or its entry, is lost.
    [[nodiscard]] bool knows(std::uint64_t number) const {
        if (broken.contains(number)) return false;
        return number < gone_below || gone.contains(number) || book.record(number) != nullptr;
    }
};

// Checks each record, so that it reads all of the bytes, once and in order.
// Errors: not_found, not_a_ring, abi_mismatch (of another version of the format, or of other
// standard columns), permission_denied, system.
[[nodiscard]] Result<Contents> scan(const std::filesystem::path& directory);

// The path of a segment.
[[nodiscard]] std::filesystem::path segment_path(const std::filesystem::path& directory,
                                                 std::uint64_t number);

}  // namespace rollring::ledger
