#include "cli/formats/parsed_record.hpp"

#include <algorithm>

namespace rollring::cli {

void ParsedRecord::clear() {
    meta = {};
    versions_of_tokens.reset();
    for (auto& its : columns_) its.present = false;
}

std::span<std::byte> ParsedRecord::make(std::uint16_t column, DType dtype,
                                        std::array<std::uint32_t, 4> shape, std::uint8_t dims) {
    Values& its = columns_[column];
    std::size_t bytes = dtype.bytes();
    for (std::uint8_t i = 0; i < dims; i++) bytes *= shape[i];
    its.data.resize(bytes);
    its.shape = shape;
    its.dims = dims;
    its.dtype = dtype;
    its.present = true;
    return its.data;
}

void ParsedRecord::set_text(Std column, std::string_view text) {
    std::ranges::copy(text, make<std::uint8_t>(column, text.size()).begin());
}

void ParsedRecord::pad_front(Std column, std::uint32_t rows) {
    Values& its = columns_[static_cast<std::size_t>(column)];
    its.data.insert(its.data.begin(), std::size_t{rows} * its.dtype.bytes(), std::byte{0});
    its.shape[0] += rows;
}

std::string_view ParsedRecord::text(Std column) const {
    const auto bytes = values<std::uint8_t>(column);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void ParsedRecord::fill(Draft& draft) const {
    draft.clear();
    draft.meta = meta;
    for (std::size_t i = 0; i < columns_.size(); i++) {
        const Values& its = columns_[i];
        if (!its.present) continue;
        draft.add({static_cast<std::uint16_t>(i), its.dtype, its.shape, its.dims, its.data.data()});
    }
}

bool has_standard_columns(const Schema& schema) {
    const auto standard = Schema::standard().columns();
    const auto given = schema.columns();
    return given.size() >= standard.size() &&
           std::ranges::equal(standard, given.first(standard.size()),
                              [](const Column& a, const Column& b) {
                                  return a.name == b.name && a.dtype == b.dtype;
                              });
}

}  // namespace rollring::cli
