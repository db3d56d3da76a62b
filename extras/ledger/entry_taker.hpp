#pragma once
// Takes the entries of a ledger into its Contents, in the order of the files.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "ledger_layout.hpp"
#include "ledger_scan.hpp"

namespace rollring::ledger {

// Records of which no whole copy has come yet, with the damage of the last one.
using Broken = std::map<std::uint64_t, std::string>;

// Of the segment Contents::newest.
class EntryTaker {
  public:
    EntryTaker(Contents& found, Broken& broken) : found_(&found), broken_(&broken) {}

    // `payload`: of a record, at least the RecordOrigin; of others all.
    void take(std::uint64_t offset, const EntryHeader& entry, std::span<const std::byte> payload);
    // Its payload is not whole.
    void take_damaged(const EntryHeader& entry, std::string problem);

  private:
    void take_record(std::uint64_t offset, const EntryHeader& entry,
                     std::span<const std::byte> payload);
    void take_numbers(const EntryHeader& entry, std::span<const std::byte> payload);
    void take_ring(std::span<const std::byte> payload);

    Contents* found_;
    Broken* broken_;
};

}  // namespace rollring::ledger
