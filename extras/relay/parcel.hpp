#pragma once
// Records on their way from one ring to another, in another process: a parcel is an index, an entry
// for each record, and the spans of memory of the records.

#include <cstdint>
#include <type_traits>

namespace rollring::relay {

struct ParcelEntry {
    std::uint64_t position;  // in its lane: larger than any earlier one, in every epoch
    std::uint64_t sequence;
    std::uint64_t offset;  // in its span
    std::uint64_t bytes;
    std::uint32_t lane;
    std::uint32_t epoch;
    std::uint32_t span;
    std::uint32_t reserved;
};
static_assert(sizeof(ParcelEntry) == 48);
static_assert(std::has_unique_object_representations_v<ParcelEntry>);

}  // namespace rollring::relay
