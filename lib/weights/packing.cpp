#include "packing.hpp"
#include "round_up.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "words.hpp"

namespace rollring::weights {
namespace {

constexpr std::uint64_t aligned(std::uint64_t bytes) {
    return round_up(bytes, piece_alignment);
}

}  // namespace

std::unexpected<Error> refused(Errc code, const WeightTensor& tensor, std::string_view why) {
    return refused(code, fmt::format("tensor '{}': {}", tensor.name, why));
}

Result<void> check_tensor(const WeightTensor& tensor) {
    if (tensor.name.empty() || tensor.name.size() > tensor_name_bytes_max ||
        !is_plain(tensor.name)) {
        return refused(Errc::invalid_argument, tensor,
                       "a name must have 1 to 1023 bytes without control characters");
    }
    if (tensor.tag.size() > tag_bytes_max || !is_plain(tensor.tag)) {
        return refused(Errc::invalid_argument, tensor, "a tag may have at most 63 bytes");
    }
    if (tensor.dtype.to_string().empty()) {
        return refused(Errc::unsupported, tensor,
                       fmt::format("dtype code {} with {} bits is not known", tensor.dtype.code,
                                   tensor.dtype.bits));
    }
    const DType out = tensor.published_dtype.value_or(tensor.dtype);
    if (out != tensor.dtype &&
        (tensor.dtype != dtype_f32 || (out != dtype_bf16 && out != dtype_f16))) {
        return refused(Errc::unsupported, tensor,
                       fmt::format("cannot publish {} as {}: casts are f32 to bf16 or f16",
                                   tensor.dtype.to_string(), out.to_string()));
    }
    if (tensor.strides.empty()) return {};
    if (tensor.strides.size() != tensor.shape.size()) {
        return refused(Errc::invalid_argument, tensor, "strides and shape differ in length");
    }
    if (std::ranges::any_of(tensor.strides, [](std::int64_t stride) { return stride < 0; })) {
        return refused(Errc::unsupported, tensor, "strides below zero");
    }
    if (coalesce(tensor.shape, tensor.strides).shape.size() > CopyJob::dims_max) {
        return refused(Errc::unsupported, tensor,
                       "more than 6 dimensions that are not contiguous: make it contiguous");
    }
    return {};
}

std::uint64_t reach_bytes(const WeightTensor& tensor, std::uint64_t elements) {
    if (elements == 0) return 0;
    std::uint64_t last = elements - 1;
    if (!tensor.strides.empty()) {
        last = 0;
        for (std::size_t dim = 0; dim < tensor.shape.size(); dim++) {
            last += static_cast<std::uint64_t>(tensor.shape[dim] - 1) *
                    static_cast<std::uint64_t>(tensor.strides[dim]);
        }
    }
    return (last + 1) * tensor.dtype.bytes();
}

namespace {

// Distributes tensors over parts.
class Dealer {
  public:
    Dealer(Packing& packing, std::uint64_t capacity_bytes)
        : packing_(packing), capacity_bytes_(capacity_bytes) {}

    void deal(std::uint32_t index) {
        PackedTensor& tensor = packing_.tensors[index];
        tensor.first_piece = static_cast<std::uint32_t>(packing_.pieces.size());
        if (tensor.tied_to >= 0) return;
        const std::uint64_t step = elements_at_once(tensor);
        for (std::uint64_t first = 0; first < tensor.elements; first += step) {
            add_piece(index, first, std::min(step, tensor.elements - first));
            tensor.pieces++;
        }
    }

  private:
    // The whole tensor if it fits into a slot; otherwise whole rows if one fits.
    [[nodiscard]] std::uint64_t elements_at_once(const PackedTensor& tensor) const {
        const std::uint64_t fits = capacity_bytes_ / tensor.dtype.bytes();
        if (tensor.elements <= fits || tensor.shape.empty())
            return std::max<std::uint64_t>(1, fits);
        const std::uint64_t row = tensor.elements / static_cast<std::uint64_t>(tensor.shape[0]);
        return row <= fits ? fits / row * row : fits;
    }

    void add_piece(std::uint32_t index, std::uint64_t first, std::uint64_t elements) {
        const std::uint64_t bytes = aligned(elements * packing_.tensors[index].dtype.bytes());
        if (packing_.parts.empty() || used_bytes_ + bytes > capacity_bytes_) {
            packing_.parts.push_back({static_cast<std::uint32_t>(packing_.pieces.size()), 0});
            used_bytes_ = 0;
        }
        packing_.pieces.push_back({index, first, elements, used_bytes_});
        packing_.parts.back().pieces++;
        used_bytes_ += bytes;
    }

    Packing& packing_;
    std::uint64_t capacity_bytes_;
    std::uint64_t used_bytes_ = 0;
};

}  // namespace

Result<std::uint64_t> count_elements(const WeightTensor& tensor) {
    if (tensor.shape.size() > tensor_dims_max) {
        return refused(Errc::unsupported, tensor, "more than 16 dimensions");
    }
    std::uint64_t elements = 1;
    bool empty = false;
    for (const std::int64_t extent : tensor.shape) {
        if (extent < 0) return refused(Errc::invalid_argument, tensor, "an extent below zero");
        empty = empty || extent == 0;
        if (extent != 0 &&
            __builtin_mul_overflow(elements, static_cast<std::uint64_t>(extent), &elements)) {
            return refused(Errc::invalid_argument, tensor, "its shape overflows");
        }
    }
    if (elements > slot_bytes_max) return refused(Errc::invalid_argument, tensor, "is too large");
    return empty ? 0 : elements;
}

Strided coalesce(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
    Strided out;
    for (std::size_t i = 0; i < strides.size(); i++) {
        if (shape[i] == 1) continue;
        if (!out.shape.empty() && out.strides.back() == strides[i] * shape[i]) {
            out.shape.back() *= shape[i];
            out.strides.back() = strides[i];
        } else {
            out.shape.push_back(shape[i]);
            out.strides.push_back(strides[i]);
        }
    }
    if (out.shape.size() <= 1 && (out.strides.empty() || out.strides[0] == 1)) return {};
    return out;
}

Result<Packing> pack_tensors(std::span<const WeightTensor> tensors, std::uint64_t slot_bytes) {
    Packing packing;
    if (tensors.size() > tensors_max || slot_bytes > slot_bytes_max) {
        return refused(Errc::invalid_argument, "more than 16 M tensors, or slot_bytes above 1 TiB");
    }
    using Storage = std::tuple<const void*, std::uint8_t, std::uint8_t, std::uint8_t, std::uint8_t,
                               std::vector<std::int64_t>, std::vector<std::int64_t>>;
    std::map<Storage, std::int64_t> storages;
    std::unordered_set<std::string_view> names;
    std::uint64_t all_bytes = 0;
    std::uint64_t text_bytes = 0;
    for (const WeightTensor& tensor : tensors) {
        const auto elements = count_elements(tensor);
        if (!elements) return std::unexpected(elements.error());
        if (auto checked = check_tensor(tensor); !checked) return std::unexpected(checked.error());
        if (!names.insert(tensor.name).second) {
            return refused(Errc::invalid_argument, tensor, "its name is duplicated");
        }
        if (tensor.view) {
            return refused(Errc::invalid_argument, tensor,
                           "it has a view, which only engines may use: publish the whole tensor");
        }
        text_bytes += tensor.name.size() + tensor.tag.size();
        const DType out = tensor.published_dtype.value_or(tensor.dtype);
        PackedTensor& packed = packing.tensors.emplace_back();
        packed = {.name = tensor.name,
                  .tag = tensor.tag,
                  .dtype = out,
                  .shape = tensor.shape,
                  .elements = *elements};
        if (tensor.data != nullptr && *elements > 0) {
            const Storage storage{tensor.data, tensor.dtype.code, tensor.dtype.bits, out.code,
                                  out.bits,    tensor.shape,      tensor.strides};
            const auto [at, fresh] = storages.try_emplace(
                storage, static_cast<std::int64_t>(packing.tensors.size() - 1));
            if (!fresh && tensor.tied) packed.tied_to = at->second;
        }
        if (tensor.tied && packed.tied_to < 0 && *elements > 0) {
            return refused(Errc::invalid_argument, tensor,
                           "it is declared as tied, and no earlier tensor has its address, dtypes, "
                           "shape and strides");
        }
        if (packed.tied_to < 0) {
            all_bytes += aligned(packed.bytes());
            packing.payload_bytes += packed.bytes();
        }
    }
    const std::uint64_t wanted = slot_bytes == 0 ? slot_bytes_default : slot_bytes;
    packing.sums_offset =
        std::max(piece_alignment, std::min(wanted / piece_alignment * piece_alignment, all_bytes));
    constexpr std::uint64_t counts_max = std::uint64_t{1} << 31;
    if (all_bytes / packing.sums_offset + tensors.size() > counts_max || text_bytes > counts_max) {
        return refused(
            Errc::unsupported,
            "too many pieces or names that are too long: raise slot_bytes, or shorten the names");
    }
    Dealer dealer(packing, packing.sums_offset);
    for (std::uint32_t i = 0; i < packing.tensors.size(); i++) dealer.deal(i);
    std::uint32_t most_pieces = 0;
    for (const Part& part : packing.parts) most_pieces = std::max(most_pieces, part.pieces);
    packing.slot_bytes = packing.sums_offset + aligned(std::uint64_t{most_pieces} * 8);
    return packing;
}

Packing in_one_part(const Packing& packing, std::span<const std::uint64_t> offsets,
                    std::uint64_t bytes) {
    Packing made{.tensors = packing.tensors,
                 .pieces = {},
                 .parts = {},
                 .sums_offset = bytes,
                 .slot_bytes = bytes,
                 .payload_bytes = packing.payload_bytes};
    for (std::uint32_t i = 0; i < made.tensors.size(); i++) {
        PackedTensor& tensor = made.tensors[i];
        tensor.first_piece = static_cast<std::uint32_t>(made.pieces.size());
        tensor.pieces = tensor.elements == 0 || tensor.tied_to >= 0 ? 0 : 1;
        if (tensor.pieces == 0) continue;
        made.pieces.push_back({i, 0, tensor.elements, offsets[made.pieces.size()]});
    }
    made.parts.push_back({0, static_cast<std::uint32_t>(made.pieces.size())});
    return made;
}

std::vector<CopyJob> pack_jobs(const Packing& packing, const Part& part,
                               std::span<const WeightTensor> tensors) {
    std::vector<CopyJob> jobs;
    jobs.reserve(part.pieces);
    for (const Piece& piece : std::span(packing.pieces).subspan(part.first_piece, part.pieces)) {
        const WeightTensor& tensor = tensors[piece.tensor];
        const DType out = packing.tensors[piece.tensor].dtype;
        Strided strided = coalesce(tensor.shape, tensor.strides);
        jobs.push_back({.tensor = static_cast<std::byte*>(tensor.data),
                        .first_element = piece.first_element,
                        .elements = piece.elements,
                        .slot_offset = piece.slot_offset,
                        .element_bytes = tensor.dtype.bytes(),
                        .cast = out == tensor.dtype ? Cast::none
                                : out == dtype_bf16 ? Cast::f32_to_bf16
                                                    : Cast::f32_to_f16,
                        .shape = std::move(strided.shape),
                        .strides = std::move(strided.strides)});
    }
    return jobs;
}

}  // namespace rollring::weights
