#pragma once
// The task of a LogWriter: the directory, and the beginning of each file in it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "chunk.hpp"
#include "rollring/ring.hpp"

namespace rollring::ledger {

struct LogPlan {
    std::filesystem::path directory;
    std::string columns;  // columns_text() of the schema
    std::uint64_t schema_id = 0;
    std::string ring;                     // the payload of the first entry of each segment,
    std::function<std::string()> so_far;  // and the end of that, at its time; may be null
    std::uint64_t max_bytes = 0;
    Durable durable = Durable::group;

    [[nodiscard]] std::uint64_t segment_bytes() const;
};

// Writes FAILED into the directory, and returns its text.
std::string note_failure(const std::filesystem::path& directory, std::string_view did, int error);

// The head of a new segment: the headers of the file, without the entry `ring`.
void put_head(BlockBuffer& buffer, const LogPlan& plan, std::uint64_t segment, std::uint64_t id,
              std::int64_t created_ns);
[[nodiscard]] std::uint64_t head_bytes(const LogPlan& plan);

struct SegmentSize {
    std::uint64_t number;
    std::uint64_t bytes;
    std::uint64_t index_bytes = 0;
};

struct Place {
    std::uint64_t segment;
    std::uint64_t offset;
    std::uint64_t bytes;
};

}  // namespace rollring::ledger
