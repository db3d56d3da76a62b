#pragma once
// The records that a ledger keeps, for its restore and for readers that take no part.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "book.hpp"
#include "file_scan.hpp"
#include "ledger_layout.hpp"
#include "ledger_scan.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::ledger {

// As scan(). Errc::not_found: no file of a ledger is there.
[[nodiscard]] Result<Contents> scan_ledger(const std::filesystem::path& directory,
                                           const ScanOptions& options = {});

// Why its disk has failed; empty: it has not.
[[nodiscard]] std::string failure_of(const std::filesystem::path& directory);

// The number of groups of its records.
[[nodiscard]] std::uint64_t groups_of(const Book& book);

struct Line {
    alignas(line) std::byte bytes[line];
};
using RecordMemory = std::vector<Line>;

// The record in the payload of an entry whose checksums are right. Errc::checksum_mismatch names
// the file and the offset.
[[nodiscard]] Result<TrajectoryView> view_in(std::span<const std::byte> payload,
                                             const std::filesystem::path& path, const Kept& record,
                                             const Schema& schema);

// Reads a record into that memory, and checks it. `file`: its segment.
// Errors: checksum_mismatch (names the file and the offset), system.
[[nodiscard]] Result<TrajectoryView> load(const recording::FileReader& file, const Kept& record,
                                          const Schema& schema, RecordMemory& memory);

}  // namespace rollring::ledger
