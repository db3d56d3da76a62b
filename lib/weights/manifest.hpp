#pragma once
// The manifest: names, dtypes, shapes and offsets of all tensors, as bytes in a memfd whose
// contents are sealed before it is passed on. Written once per publisher; a version changes nothing
// in it.
//
//   header | tensors[] | dims i64[] | pieces[] | parts[] | text | layout
//
// The layout is the table of a WeightLayout, or empty.
//
// Little endian, every table 8-byte aligned. `hash` is XXH3-128 of all bytes with the hash as zero.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "packing.hpp"

namespace rollring::weights {

inline constexpr std::uint64_t manifest_magic = 0x3153544847574c52;  // "RLWGHTS1"
inline constexpr std::uint32_t manifest_abi = 2;
inline constexpr std::uint32_t slots_max = 16;  // the most that a publisher can ask for

struct ManifestHeader {
    std::uint64_t magic;
    std::uint32_t abi;
    std::uint32_t header_bytes;
    std::uint64_t manifest_bytes;
    std::uint64_t hash[2];
    std::uint32_t tensors;
    std::uint32_t dims;
    std::uint32_t pieces;
    std::uint32_t parts;
    std::uint64_t text_bytes;
    std::uint64_t slot_bytes;
    std::uint64_t sums_offset;
    std::uint32_t slots;
    std::uint32_t memory;  // a PayloadMemory
    std::uint32_t checksums;
    std::uint32_t reserved;
    std::uint8_t gpu[16];
    std::uint64_t layout_bytes;
};
static_assert(sizeof(ManifestHeader) == 120);
static_assert(std::has_unique_object_representations_v<ManifestHeader>);

struct ManifestTensor {
    std::uint64_t elements;
    std::int64_t tied_to;
    std::uint32_t name_offset;  // in the text
    std::uint16_t name_bytes;
    std::uint8_t tag_bytes;  // right behind the name
    std::uint8_t dims;
    std::uint32_t first_dim;
    std::uint32_t first_piece;
    std::uint32_t pieces;
    std::uint8_t dtype_code;
    std::uint8_t dtype_bits;
    std::uint16_t reserved;
};
static_assert(sizeof(ManifestTensor) == 40);
static_assert(std::has_unique_object_representations_v<ManifestTensor>);

struct ManifestPiece {
    std::uint64_t first_element;
    std::uint64_t elements;
    std::uint64_t slot_offset;
    std::uint32_t tensor;
    std::uint32_t reserved;
};
static_assert(sizeof(ManifestPiece) == 32);

struct ManifestPart {
    std::uint32_t first_piece;
    std::uint32_t pieces;
};
static_assert(sizeof(ManifestPart) == 8);

struct Manifest {
    Packing packing;
    std::uint32_t slots = 0;
    PayloadMemory memory = PayloadMemory::host;
    bool checksums = false;
    GpuUuid gpu;
    std::array<std::uint64_t, 2> hash{};
    std::vector<std::byte> layout;  // its own reader checks it

    [[nodiscard]] std::string hash_text() const;
};

// Bytes of a manifest; sets its hash.
std::vector<std::byte> write_manifest(Manifest& manifest);

// Accepts any bytes: checks every field; bad_manifest names the field. `bytes` must not change
// meanwhile (sealed).
Result<Manifest> read_manifest(std::span<const std::byte> bytes);

}  // namespace rollring::weights
