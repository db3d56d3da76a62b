#pragma once
// Reads a ledger's directory into a Book.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "book.hpp"
#include "log_plan.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"

namespace rollring::ledger {

inline constexpr std::size_t damaged_max = 64;  // texts

struct LedgerRing {
    std::uint64_t id = 0;
    std::string name;
    std::string sizes;  // `name number` a line

    // The number behind a name of these.
    [[nodiscard]] std::optional<std::uint64_t> size(std::string_view of) const;
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
    // Of records that come more than once, the former places, the oldest first.
    std::unordered_map<std::uint64_t, std::vector<Kept>> older;
    std::unordered_set<std::uint64_t> indexed;  // segments whose records were not read
    std::string unread;  // the first block or file that the disk could not read; empty: none

    void note(std::string problem);
    // Whether it is kept, settled or dropped. False: its file, or its entry, is lost.
    [[nodiscard]] bool knows(std::uint64_t number) const {
        if (broken.contains(number)) return false;
        return number < gone_below || gone.contains(number) || book.record(number) != nullptr;
    }
};

struct ScanOptions {
    // Segments with an index are not read: damage in them shows when a record is read.
    bool by_index = false;
    // Called with a segment that has no index, and with a new one for it, unless it is damaged.
    std::function<void(std::uint64_t segment, std::span<const std::byte> index)> indexed = {};
};

// Reads all of the bytes, but for those of ScanOptions, once and in order, and checks each record.
// Errors: not_found, not_a_ring, abi_mismatch (of another version of the format, or of other
// standard columns), permission_denied, system.
[[nodiscard]] Result<Contents> scan(const std::filesystem::path& directory,
                                    const ScanOptions& options = {});

}  // namespace rollring::ledger
