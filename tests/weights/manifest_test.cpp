// A manifest keeps its content in its bytes, and any damage to them is refused.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "manifest.hpp"
#include "xxh3.hpp"

namespace rollring::test {
namespace {

using namespace weights;

// Sets the hash that the bytes ought to have.
void seal(std::vector<std::byte>& bytes) {
    ManifestHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.hash[0] = header.hash[1] = 0;
    std::memcpy(bytes.data(), &header, sizeof header);
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    header.hash[0] = hash.low64;
    header.hash[1] = hash.high64;
    std::memcpy(bytes.data(), &header, sizeof header);
}

std::vector<WeightTensor> random_tensors(std::mt19937_64& dice, std::vector<std::byte>& memory) {
    static const DType dtypes[] = {dtype_f32, dtype_bf16, dtype_f16,
                                   dtype_f64, dtype_i64,  dtype_f8_e4m3};
    std::vector<WeightTensor> tensors;
    const std::size_t count = dice() % 30;
    for (std::size_t i = 0; i < count; i++) {
        if (i > 0 && dice() % 5 == 0) {  // tied
            tensors.push_back(tensors[dice() % i]);
            tensors.back().tied = tensors.back().data != nullptr;
        } else {
            WeightTensor& made = tensors.emplace_back();
            made.dtype = dtypes[dice() % std::size(dtypes)];
            for (std::size_t dims = dice() % 4; dims > 0; dims--) {
                made.shape.push_back(dice() % 12 == 0 ? 0 : static_cast<std::int64_t>(dice() % 40));
            }
            made.data = dice() % 6 == 0 ? nullptr : memory.data() + i * 64;
            if (made.dtype == dtype_f32 && dice() % 3 == 0) made.published_dtype = dtype_bf16;
        }
        tensors.back().name = "tensor." + std::to_string(i);
        tensors.back().tag = dice() % 2 == 0 ? "weights" : "";
    }
    return tensors;
}

void check_same(const Manifest& a, const Manifest& b) {
    CHECK(a.slots == b.slots);
    CHECK(a.memory == b.memory);
    CHECK(a.checksums == b.checksums);
    CHECK(a.gpu == b.gpu);
    CHECK(a.packing.slot_bytes == b.packing.slot_bytes);
    CHECK(a.packing.sums_offset == b.packing.sums_offset);
    CHECK(a.packing.payload_bytes == b.packing.payload_bytes);
    REQUIRE(a.packing.tensors.size() == b.packing.tensors.size());
    for (std::size_t i = 0; i < a.packing.tensors.size(); i++) {
        const PackedTensor& one = a.packing.tensors[i];
        const PackedTensor& two = b.packing.tensors[i];
        const bool same = one.name == two.name && one.tag == two.tag && one.dtype == two.dtype &&
                          one.shape == two.shape && one.elements == two.elements &&
                          one.first_piece == two.first_piece && one.pieces == two.pieces &&
                          one.tied_to == two.tied_to;
        CHECK(same);
    }
    REQUIRE(a.packing.pieces.size() == b.packing.pieces.size());
    CHECK(std::ranges::equal(a.packing.pieces, b.packing.pieces, [](auto& one, auto& two) {
        return one.tensor == two.tensor && one.first_element == two.first_element &&
               one.elements == two.elements && one.slot_offset == two.slot_offset;
    }));
    REQUIRE(a.packing.parts.size() == b.packing.parts.size());
    CHECK(std::ranges::equal(a.packing.parts, b.packing.parts, [](auto& one, auto& two) {
        return one.first_piece == two.first_piece && one.pieces == two.pieces;
    }));
}

// Every element of every tensor that has its own bytes lies in exactly one piece, and no two pieces
// of a part overlap, nor the checksums.
void check_cover(const Packing& packing) {
    std::vector<std::uint64_t> covered(packing.tensors.size());
    std::uint32_t next = 0;
    for (const Part& part : packing.parts) {
        CHECK(part.first_piece == next);
        REQUIRE(part.pieces > 0);
        std::uint64_t free_offset = 0;
        for (std::uint32_t i = 0; i < part.pieces; i++) {
            const Piece& piece = packing.pieces.at(next++);
            CHECK(piece.first_element == covered.at(piece.tensor));
            CHECK(piece.slot_offset % piece_alignment == 0);
            CHECK(piece.slot_offset >= free_offset);
            covered[piece.tensor] += piece.elements;
            free_offset =
                piece.slot_offset + piece.elements * packing.tensors[piece.tensor].dtype.bytes();
        }
        CHECK(free_offset <= packing.sums_offset);
        CHECK(packing.sums_offset + part.pieces * std::uint64_t{8} <= packing.slot_bytes);
    }
    CHECK(next == packing.pieces.size());
    for (std::size_t i = 0; i < covered.size(); i++) {
        const PackedTensor& tensor = packing.tensors[i];
        CHECK(covered[i] == (tensor.tied_to < 0 ? tensor.elements : 0));
    }
}

Manifest small_manifest() {
    static std::byte memory[4096];
    std::vector<WeightTensor> tensors;
    tensors.push_back({.name = "embed", .dtype = dtype_f32, .shape = {7, 100}, .data = memory});
    tensors.push_back({.name = "scale", .dtype = dtype_f64, .shape = {}, .data = memory + 8});
    tensors.push_back({.name = "none", .dtype = dtype_f16, .shape = {0, 3}});
    tensors.push_back({.name = "head", .dtype = dtype_f32, .shape = {7, 100}, .data = memory});
    tensors.push_back({.name = "q", .dtype = dtype_bf16, .shape = {9}, .data = memory + 16});
    Manifest manifest;
    auto packing = pack_tensors(tensors, 1024);
    REQUIRE(packing.has_value());
    manifest.packing = std::move(*packing);
    manifest.slots = 2;
    manifest.checksums = true;
    return manifest;
}

}  // namespace

TEST_CASE("manifests of random tensors say what was packed") {
    std::mt19937_64 dice(4);
    std::vector<std::byte> memory(1 << 16);
    std::uint64_t tied = 0;
    std::uint64_t split = 0;
    std::uint64_t empty = 0;
    for (int round = 0; round < 300; round++) {
        const auto tensors = random_tensors(dice, memory);
        const std::uint64_t slot_bytes = dice() % 4 == 0 ? 0 : 512 << dice() % 8;
        auto packing = pack_tensors(tensors, slot_bytes);
        REQUIRE(packing.has_value());
        check_cover(*packing);
        for (const PackedTensor& tensor : packing->tensors) {
            tied += tensor.tied_to >= 0 ? 1 : 0;
            split += tensor.pieces > 1 ? 1 : 0;
            empty += tensor.elements == 0 ? 1 : 0;
        }
        Manifest manifest{.packing = std::move(*packing),
                          .slots = static_cast<std::uint32_t>(1 + dice() % 16),
                          .memory = static_cast<PayloadMemory>(1 + dice() % 3),
                          .checksums = dice() % 2 == 0};
        manifest.gpu.bytes[3] = static_cast<std::uint8_t>(dice());
        const auto bytes = write_manifest(manifest);
        const auto read = read_manifest(bytes);
        REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().to_string()));
        CHECK(read->hash == manifest.hash);
        check_same(manifest, *read);
        auto again = *read;
        CHECK(write_manifest(again) == bytes);
    }
    MESSAGE("tied ", tied, " split ", split, " empty ", empty);
    CHECK(std::min({tied, split, empty}) > 100);
}

TEST_CASE("every byte of a manifest counts") {
    Manifest manifest = small_manifest();
    const auto bytes = write_manifest(manifest);
    std::uint64_t refused = 0;
    std::uint64_t taken = 0;
    for (std::size_t at = 0; at < bytes.size(); at++) {
        for (int bit = 0; bit < 256; bit++) {
            auto damaged = bytes;
            damaged[at] ^= static_cast<std::byte>(bit);
            if (bit == 0) continue;
            // tidy-ok: the hash finds every one of them
            if (bit % 51 == 0) CHECK(!read_manifest(damaged));
            seal(damaged);
            auto read = read_manifest(damaged);
            if (!read) {
                const Errc code = read.error().code;
                REQUIRE((code == Errc::bad_manifest || code == Errc::abi_mismatch));
                refused++;
                continue;
            }
            // Another manifest, then: consistent, and the same when written again.
            taken++;
            check_cover(read->packing);
        }
    }
    MESSAGE("refused ", refused, " taken ", taken, " of ", bytes.size(), " bytes");
    CHECK(refused > taken);
    for (std::size_t count = 0; count < bytes.size(); count++) {
        CHECK(!read_manifest(std::span(bytes).first(count)));
        std::vector<std::byte> shorter(bytes.begin(), bytes.begin() + static_cast<long>(count));
        if (count >= sizeof(ManifestHeader)) seal(shorter);
        CHECK(!read_manifest(shorter));
    }
}

}  // namespace rollring::test
