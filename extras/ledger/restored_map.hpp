#pragma once
// Which record of a ring is which record of the ledger, for records that a restore has sent into
// the ring. The file is on the disk before the first of them is in the ring.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "book.hpp"
#include "ledger_scan.hpp"
#include "rollring/error.hpp"

namespace rollring::ledger {

struct RestoredMap {
    std::uint64_t ring_id = 0;
    std::uint32_t lane = 0;
    std::uint32_t epoch = 0;
    std::vector<std::uint64_t> numbers;
};

[[nodiscard]] Result<void> write_map(const std::filesystem::path& directory,
                                     const RestoredMap& map);
// Those of the directory. A damaged one belongs to a restore that did not begin, and is left out.
[[nodiscard]] Result<std::vector<RestoredMap>> read_maps(const std::filesystem::path& directory);
// Names its records in the book, but for those that the ledger has lost: it takes them from the
// ring again.
void name_all(const RestoredMap& map, Contents& found);
// Removes the maps of other rings that name no kept record.
void remove_old_maps(const std::filesystem::path& directory, std::span<const RestoredMap> maps,
                     const Book& book, std::uint64_t ring_id);

}  // namespace rollring::ledger
