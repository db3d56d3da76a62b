#include "manifest.hpp"
#include "round_up.hpp"
#include "xxh3.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <unordered_set>

namespace rollring::weights {
namespace {

// The offsets of the tables, which follow from the counts alone.
struct Offsets {
    std::uint64_t tensors, dims, pieces, parts, text, layout, end;

    explicit Offsets(const ManifestHeader& header)
        : tensors(sizeof header),
          dims(tensors + std::uint64_t{header.tensors} * sizeof(ManifestTensor)),
          pieces(dims + std::uint64_t{header.dims} * 8),
          parts(pieces + std::uint64_t{header.pieces} * sizeof(ManifestPiece)),
          text(parts + std::uint64_t{header.parts} * sizeof(ManifestPart)),
          layout(text + round_up(header.text_bytes, 8)),
          end(layout + round_up(header.layout_bytes, 8)) {}
};

template <class T>
void put(std::vector<std::byte>& to, std::uint64_t offset, const T& value) {
    std::memcpy(to.data() + offset, &value, sizeof value);
}

template <class T>
T get(std::span<const std::byte> from, std::uint64_t offset) {
    T value;
    std::memcpy(&value, from.data() + offset, sizeof value);
    return value;
}

XXH128_hash_t hash_of(std::span<const std::byte> bytes) {
    auto header = get<ManifestHeader>(bytes, 0);
    header.hash[0] = header.hash[1] = 0;
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &header, sizeof header);
    XXH3_128bits_update(&state, bytes.data() + sizeof header, bytes.size() - sizeof header);
    return XXH3_128bits_digest(&state);
}

// Reads a manifest table by table; each step relies on the checks of those before it.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    Result<Manifest> read() {
        for (const auto step :
             {&Reader::header, &Reader::tensors, &Reader::parts, &Reader::pieces, &Reader::ties}) {
            if (auto done = (this->*step)(); !done) return std::unexpected(done.error());
        }
        return std::move(made_);
    }

  private:
    using Step = Result<void>;

    static std::unexpected<Error> bad(std::string_view what) {
        return refused(
            Errc::bad_manifest,
            fmt::format("the publisher's manifest is damaged or from another program: {}", what));
    }

    Step header() {
        if (bytes_.size() < sizeof header_) return bad("it is too short");
        header_ = get<ManifestHeader>(bytes_, 0);
        if (header_.magic != manifest_magic) return bad("wrong magic");
        if (header_.abi != manifest_abi || header_.header_bytes != sizeof header_) {
            return refused(
                Errc::abi_mismatch,
                fmt::format("the publisher's manifest has ABI {}, this program {}: run one "
                            "version of rollring on both sides",
                            header_.abi, manifest_abi));
        }
        if (header_.tensors > tensors_max || header_.text_bytes > bytes_.size() ||
            header_.layout_bytes > bytes_.size()) {
            return bad("counts");
        }
        at_ = Offsets(header_);
        if (header_.manifest_bytes != bytes_.size() || at_.end != bytes_.size()) {
            return bad("its tables do not match its length");
        }
        const XXH128_hash_t hash = hash_of(bytes_);
        if (hash.low64 != header_.hash[0] || hash.high64 != header_.hash[1]) return bad("its hash");
        if (header_.slots == 0 || header_.slots > slots_max) return bad("slots");
        if (header_.memory < std::uint32_t{1} || header_.memory > 4) return bad("memory");
        if (header_.checksums > 1 || header_.reserved != 0) return bad("flags");
        if (is_direct() && (header_.checksums != 0 || header_.slots != 1 || header_.parts != 1)) {
            return bad("the form of memory that is read where it lies");
        }
        if (header_.sums_offset == 0 || header_.sums_offset % piece_alignment != 0 ||
            header_.sums_offset > slot_bytes_max || header_.slot_bytes < header_.sums_offset ||
            header_.slot_bytes > 2 * slot_bytes_max) {
            return bad("slot bytes");
        }
        made_.slots = header_.slots;
        made_.memory = static_cast<PayloadMemory>(header_.memory);
        made_.checksums = header_.checksums != 0;
        made_.hash = {header_.hash[0], header_.hash[1]};
        std::memcpy(made_.gpu.bytes.data(), header_.gpu, sizeof header_.gpu);
        const auto layout = bytes_.subspan(at_.layout, header_.layout_bytes);
        made_.layout.assign(layout.begin(), layout.end());
        made_.packing.slot_bytes = header_.slot_bytes;
        made_.packing.sums_offset = header_.sums_offset;
        return {};
    }

    // Pieces are the trainer's tensors: in any order, where they may overlap, and as aligned as
    // their elements.
    [[nodiscard]] bool is_direct() const {
        return header_.memory == static_cast<std::uint32_t>(PayloadMemory::direct);
    }

    [[nodiscard]] std::string_view text(std::uint64_t offset, std::uint64_t bytes) const {
        return {reinterpret_cast<const char*>(bytes_.data()) + at_.text + offset, bytes};
    }

    Step tensor(const ManifestTensor& entry) {
        if (entry.name_bytes == 0 || entry.name_bytes > tensor_name_bytes_max ||
            entry.tag_bytes > tag_bytes_max ||
            std::uint64_t{entry.name_offset} + entry.name_bytes + entry.tag_bytes >
                header_.text_bytes) {
            return bad("a name");
        }
        const std::string_view name = text(entry.name_offset, entry.name_bytes);
        if (!names_.insert(name).second) return bad("a name is duplicated");
        if (entry.dims > tensor_dims_max ||
            std::uint64_t{entry.first_dim} + entry.dims > header_.dims) {
            return bad("dims");
        }
        WeightTensor shape{.name = std::string(name),
                           .dtype = {entry.dtype_code, entry.dtype_bits}};
        for (std::uint32_t i = 0; i < entry.dims; i++) {
            shape.shape.push_back(
                get<std::int64_t>(bytes_, at_.dims + (std::uint64_t{entry.first_dim} + i) * 8));
        }
        const auto elements = count_elements(shape);
        if (!elements || *elements != entry.elements) return bad("a shape");
        if (shape.dtype.to_string().empty() || entry.reserved != 0) return bad("a dtype");
        made_.packing.tensors.push_back(
            {.name = shape.name,
             .tag = std::string(
                 text(std::uint64_t{entry.name_offset} + entry.name_bytes, entry.tag_bytes)),
             .dtype = shape.dtype,
             .shape = std::move(shape.shape),
             .elements = entry.elements,
             .first_piece = entry.first_piece,
             .pieces = entry.pieces,
             .tied_to = entry.tied_to});
        return {};
    }

    Step tensors() {
        made_.packing.tensors.reserve(header_.tensors);
        for (std::uint64_t i = 0; i < header_.tensors; i++) {
            auto done =
                tensor(get<ManifestTensor>(bytes_, at_.tensors + i * sizeof(ManifestTensor)));
            if (!done) return done;
        }
        return {};
    }

    Step parts() {
        std::uint64_t next = 0;
        for (std::uint64_t i = 0; i < header_.parts; i++) {
            const auto part = get<ManifestPart>(bytes_, at_.parts + i * sizeof(ManifestPart));
            if (part.first_piece != next || part.pieces == 0) return bad("parts");
            next += part.pieces;
            if (next > header_.pieces) return bad("parts");
            if (!is_direct() &&
                std::uint64_t{part.pieces} * 8 > header_.slot_bytes - header_.sums_offset) {
                return bad("the checksums do not fit");
            }
            made_.packing.parts.push_back({part.first_piece, part.pieces});
        }
        if (next != header_.pieces) return bad("pieces exceed all parts");
        return {};
    }

    // Pieces of a part follow each other; pieces of a tensor cover it, in order.
    Step pieces() {
        Packing& packing = made_.packing;
        packing.pieces.reserve(header_.pieces);
        std::uint64_t tensor = 0;
        std::uint64_t covered = 0;
        std::size_t part = 0;
        std::uint64_t free_offset = 0;
        for (std::uint32_t i = 0; i < header_.pieces; i++) {
            if (part < packing.parts.size() && packing.parts[part].first_piece == i) {
                part++;
                free_offset = 0;
            }
            const auto piece =
                get<ManifestPiece>(bytes_, at_.pieces + std::uint64_t{i} * sizeof(ManifestPiece));
            if (auto done = skip_whole_tensors(tensor, covered, i); !done) return done;
            if (tensor >= packing.tensors.size() || piece.tensor != tensor ||
                piece.first_element != covered || piece.elements == 0 ||
                piece.elements > packing.tensors[tensor].elements - covered ||
                piece.reserved != 0) {
                return bad("pieces of a tensor");
            }
            const std::uint64_t bytes = piece.elements * packing.tensors[tensor].dtype.bytes();
            const std::uint64_t alignment =
                is_direct() ? packing.tensors[tensor].dtype.bytes() : piece_alignment;
            if (piece.slot_offset % alignment != 0 || piece.slot_offset < free_offset ||
                piece.slot_offset > header_.sums_offset ||
                bytes > header_.sums_offset - piece.slot_offset) {
                return bad("a piece exceeds its slot");
            }
            free_offset = is_direct() ? 0 : piece.slot_offset + bytes;
            covered += piece.elements;
            packing.payload_bytes += bytes;
            packing.pieces.push_back(
                {piece.tensor, piece.first_element, piece.elements, piece.slot_offset});
        }
        if (auto done = skip_whole_tensors(tensor, covered, header_.pieces); !done) return done;
        return tensor == packing.tensors.size() ? Step{} : bad("a tensor lacks pieces");
    }

    // Advances past tensors whose pieces are complete, and checks each tensor's first piece and
    // number of pieces.
    Step skip_whole_tensors(std::uint64_t& tensor, std::uint64_t& covered, std::uint32_t piece) {
        const auto& tensors = made_.packing.tensors;
        while (tensor < tensors.size()) {
            const PackedTensor& now = tensors[tensor];
            const std::uint64_t needed = now.tied_to >= 0 ? 0 : now.elements;
            if (covered == 0 && now.first_piece != piece) return bad("first piece of a tensor");
            if (covered < needed) return {};
            if (now.pieces != piece - now.first_piece) return bad("pieces of a tensor");
            tensor++;
            covered = 0;
        }
        return {};
    }

    Step ties() {
        const auto& tensors = made_.packing.tensors;
        for (std::size_t i = 0; i < tensors.size(); i++) {
            const std::int64_t to = tensors[i].tied_to;
            if (to == -1) continue;
            if (to < 0 || to >= static_cast<std::int64_t>(i)) return bad("a tie");
            const PackedTensor& first = tensors[static_cast<std::size_t>(to)];
            if (first.tied_to != -1 || first.dtype != tensors[i].dtype ||
                first.shape != tensors[i].shape) {
                return bad("a tie");
            }
        }
        return {};
    }

    std::span<const std::byte> bytes_;
    ManifestHeader header_{};
    Offsets at_{header_};
    std::unordered_set<std::string_view> names_;
    Manifest made_;
};

}  // namespace

std::string Manifest::hash_text() const {
    return fmt::format("{:016x}{:016x}", hash[1], hash[0]);
}

std::vector<std::byte> write_manifest(Manifest& manifest) {
    const Packing& packing = manifest.packing;
    ManifestHeader header{};
    header.magic = manifest_magic;
    header.abi = manifest_abi;
    header.header_bytes = sizeof header;
    header.tensors = static_cast<std::uint32_t>(packing.tensors.size());
    header.pieces = static_cast<std::uint32_t>(packing.pieces.size());
    header.parts = static_cast<std::uint32_t>(packing.parts.size());
    for (const PackedTensor& tensor : packing.tensors) {
        header.dims += static_cast<std::uint32_t>(tensor.shape.size());
        header.text_bytes += tensor.name.size() + tensor.tag.size();
    }
    header.slot_bytes = packing.slot_bytes;
    header.sums_offset = packing.sums_offset;
    header.slots = manifest.slots;
    header.memory = static_cast<std::uint32_t>(manifest.memory);
    header.checksums = manifest.checksums ? 1 : 0;
    std::memcpy(header.gpu, manifest.gpu.bytes.data(), sizeof header.gpu);
    header.layout_bytes = manifest.layout.size();
    const Offsets at(header);
    header.manifest_bytes = at.end;

    std::vector<std::byte> bytes(at.end);
    std::uint32_t dim = 0;
    std::uint32_t text = 0;
    for (std::uint64_t i = 0; i < packing.tensors.size(); i++) {
        const PackedTensor& tensor = packing.tensors[i];
        put(bytes, at.tensors + i * sizeof(ManifestTensor),
            ManifestTensor{.elements = tensor.elements,
                           .tied_to = tensor.tied_to,
                           .name_offset = text,
                           .name_bytes = static_cast<std::uint16_t>(tensor.name.size()),
                           .tag_bytes = static_cast<std::uint8_t>(tensor.tag.size()),
                           .dims = static_cast<std::uint8_t>(tensor.shape.size()),
                           .first_dim = dim,
                           .first_piece = tensor.first_piece,
                           .pieces = tensor.pieces,
                           .dtype_code = tensor.dtype.code,
                           .dtype_bits = tensor.dtype.bits,
                           .reserved = 0});
        for (const std::int64_t extent : tensor.shape) put(bytes, at.dims + 8UL * dim++, extent);
        for (const std::string& words : {tensor.name, tensor.tag}) {
            std::memcpy(bytes.data() + at.text + text, words.data(), words.size());
            text += static_cast<std::uint32_t>(words.size());
        }
    }
    for (std::uint64_t i = 0; i < packing.pieces.size(); i++) {
        const Piece& piece = packing.pieces[i];
        put(bytes, at.pieces + i * sizeof(ManifestPiece),
            ManifestPiece{piece.first_element, piece.elements, piece.slot_offset, piece.tensor, 0});
    }
    for (std::uint64_t i = 0; i < packing.parts.size(); i++) {
        put(bytes, at.parts + i * sizeof(ManifestPart),
            ManifestPart{packing.parts[i].first_piece, packing.parts[i].pieces});
    }
    std::ranges::copy(manifest.layout, bytes.begin() + static_cast<std::ptrdiff_t>(at.layout));
    put(bytes, 0, header);
    const XXH128_hash_t hash = hash_of(bytes);
    manifest.hash = {hash.low64, hash.high64};
    header.hash[0] = hash.low64;
    header.hash[1] = hash.high64;
    put(bytes, 0, header);
    return bytes;
}

Result<Manifest> read_manifest(std::span<const std::byte> bytes) {
    return Reader(bytes).read();
}

}  // namespace rollring::weights
