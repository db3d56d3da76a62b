// Any bytes as a manifest: refused with a reason, or every piece lies inside its slot and tensor.

#include <cstdlib>
#include <cstring>
#include <vector>

#include "manifest.hpp"
#include "xxh3.hpp"

using namespace rollring::weights;

namespace {

// The parts that the fuzzer cannot guess: the fields that follow from the others, and the hash.
void complete(std::vector<std::byte>& bytes, unsigned how) {
    ManifestHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.magic = manifest_magic;
    header.abi = manifest_abi;
    header.header_bytes = sizeof header;
    header.manifest_bytes = bytes.size();
    if ((how & 2) != 0) {  // whatever the tables leave is text
        const std::uint64_t tables =
            sizeof header + std::uint64_t{header.tensors} * sizeof(ManifestTensor) +
            std::uint64_t{header.dims} * 8 + std::uint64_t{header.pieces} * sizeof(ManifestPiece) +
            std::uint64_t{header.parts} * sizeof(ManifestPart);
        if (tables <= bytes.size()) header.text_bytes = bytes.size() - tables;
    }
    header.hash[0] = header.hash[1] = 0;
    std::memcpy(bytes.data(), &header, sizeof header);
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    header.hash[0] = hash.low64;
    header.hash[1] = hash.high64;
    std::memcpy(bytes.data(), &header, sizeof header);
}

void require(bool kept) {
    if (!kept) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t count) {
    if (count < 1) return 0;
    std::vector<std::byte> bytes(count - 1);
    if (count > 1) std::memcpy(bytes.data(), input + 1, bytes.size());
    if ((input[0] & 1) != 0 && bytes.size() >= sizeof(ManifestHeader)) complete(bytes, input[0]);
    auto manifest = read_manifest(bytes);
    if (!manifest) {
        require(!manifest.error().message.empty());
        return 0;
    }
    const Packing& packing = manifest->packing;
    std::vector<std::uint64_t> covered(packing.tensors.size());
    std::uint32_t next = 0;
    for (const Part& part : packing.parts) {
        require(part.first_piece == next && part.pieces > 0);
        require(packing.sums_offset + std::uint64_t{part.pieces} * 8 <= packing.slot_bytes);
        for (std::uint32_t i = 0; i < part.pieces; i++) {
            const Piece& piece = packing.pieces.at(next++);
            const PackedTensor& tensor = packing.tensors.at(piece.tensor);
            require(piece.first_element == covered[piece.tensor]);
            covered[piece.tensor] += piece.elements;
            require(covered[piece.tensor] <= tensor.elements);
            require(piece.slot_offset + piece.elements * tensor.dtype.bytes() <=
                    packing.sums_offset);
        }
    }
    require(next == packing.pieces.size());
    for (std::size_t i = 0; i < covered.size(); i++) {
        const PackedTensor& tensor = packing.tensors[i];
        require(covered[i] == (tensor.tied_to < 0 ? tensor.elements : 0));
        require(tensor.tied_to < static_cast<std::int64_t>(i));
    }
    const auto again = write_manifest(*manifest);
    require(read_manifest(again).has_value());
    return 0;
}
