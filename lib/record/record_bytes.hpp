#pragma once
// Changes to a record that its producer has written and not yet committed.

#include <cstddef>
#include <cstdint>
#include <span>

#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

// Stores the checksum that the header asks for; nothing with Checksum::none.
void seal_record(std::span<std::byte> record);
// For a record whose producer asked for no checksum, in memory that may not keep its bytes.
[[nodiscard]] bool has_checksum(std::span<const std::byte> record);
void seal_with_checksum(std::span<std::byte> record);

// The bytes of a column; empty if the record has none of that index and dtype.
std::span<std::byte> column_bytes(std::span<std::byte> record, std::uint16_t column, DType dtype);

// Cuts the per-token columns to n_tokens rows and moves all columns up. Returns the new length of
// the record; the old one if n_tokens is more than the record has, or its directory was damaged.
std::uint64_t shrink_record(std::span<std::byte> record, std::uint32_t n_tokens,
                            const Schema& schema);

// False, with nothing written, if it has fewer tokens than the prompt would have.
bool set_outcome(std::span<std::byte> record, const RolloutOutcome& outcome);

// Takes the range of the column policy_version as the record's. Returns the mistake in the column,
// if there is one.
std::string_view take_versions(std::span<std::byte> record);

}  // namespace rollring
