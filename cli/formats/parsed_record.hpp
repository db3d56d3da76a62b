#pragma once
// A record that owns its memory: the parsers fill it, and a Draft is made from it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "rollring/trajectory.hpp"

namespace rollring::cli {

// Meta::origin of records: the format in which `consume --output` writes them back.
enum Origin : std::uint16_t { native = 0, rollring_json = 1, atropos = 2, atropos_item = 3 };

class ParsedRecord {
  public:
    Meta meta;
    std::optional<std::uint32_t> versions_of_tokens;  // a number per token: how many there were

    void clear();  // keeps the memory

    // A column of the given shape, to be filled by the caller. `column` is its index in the schema.
    std::span<std::byte> make(std::uint16_t column, DType dtype, std::array<std::uint32_t, 4> shape,
                              std::uint8_t dims);
    template <class T>
    std::span<T> make(Std column, std::array<std::uint32_t, 4> shape, std::uint8_t dims) {
        const auto bytes = make(static_cast<std::uint16_t>(column), dtype_of<T>(), shape, dims);
        return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
    template <class T>
    std::span<T> make(Std column, std::size_t count) {
        return make<T>(column, {static_cast<std::uint32_t>(count), 0, 0, 0}, 1);
    }
    void set_text(Std column, std::string_view text);
    // Adds this many rows of zeros in front of a column's own.
    void pad_front(Std column, std::uint32_t rows);
    void drop(Std column) { columns_[static_cast<std::size_t>(column)].present = false; }

    [[nodiscard]] bool has(Std column) const { return of(column).present; }
    [[nodiscard]] bool has(std::uint16_t column) const { return columns_[column].present; }
    [[nodiscard]] std::uint32_t rows(std::uint16_t column) const {
        return has(column) ? columns_[column].shape[0] : 0;
    }
    [[nodiscard]] std::uint32_t rows(Std column) const {
        return has(column) ? of(column).shape[0] : 0;
    }
    template <class T>
    [[nodiscard]] std::span<const T> values(Std column) const {
        const Values& found = of(column);
        if (!found.present || found.dtype != dtype_of<T>()) return {};
        return {reinterpret_cast<const T*>(found.data.data()), found.data.size() / sizeof(T)};
    }
    [[nodiscard]] std::string_view text(Std column) const;

    // The draft's spans point into this record.
    void fill(Draft& draft) const;

  private:
    struct Values {
        bool present = false;
        std::uint8_t dims = 0;
        DType dtype{};
        std::array<std::uint32_t, 4> shape{};
        std::vector<std::byte> data;
    };
    [[nodiscard]] const Values& of(Std column) const {
        return columns_[static_cast<std::size_t>(column)];
    }

    std::array<Values, 32> columns_;  // as many as a schema has columns
};

// The columns that our parsers fill are those of the standard schema, by their index in it.
bool has_standard_columns(const Schema& schema);

}  // namespace rollring::cli
