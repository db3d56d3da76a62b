#pragma once
// The receipt of a batch: names its records, so that they can be acknowledged after a restart.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "consumer_core.hpp"

namespace rollring {

// One record of the batch: its position, and its identity in case it is moved.
struct ReceiptEntry {
    std::uint64_t position;
    std::uint64_t sequence;
    std::uint32_t lane;
    std::uint32_t producer_lane;
    std::uint32_t producer_epoch;
    std::uint32_t reserved;
};

std::string write_receipt(std::span<const ReceiptEntry> entries, std::uint64_t ring_id);
struct Receipt {
    std::uint64_t ring_id;
    std::vector<ReceiptEntry> entries;
};
// Errc::invalid_argument: the bytes are not a receipt.
Result<Receipt> read_receipt(std::string_view receipt);
// The unreleased records of a receipt. Call it before any of them is delivered again.
std::vector<RecordRef> find_unreleased(std::span<const ReceiptEntry> entries,
                                       const ProducerRoster& roster);

}  // namespace rollring
