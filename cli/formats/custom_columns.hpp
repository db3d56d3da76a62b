#pragma once
// Columns that a ring's schema has beyond the standard ones: by their name, a key of the line.
//
// Nested lists of the column's dtype and shape, [n_tokens, dims...] or [rows, dims...]; or, for
// types without numbers in JSON, and if lists would not show the shape (no elements),
// {"dtype":"bf16","shape":[...],"base64":"..."}.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/formats/json_value.hpp"
#include "cli/formats/parsed_record.hpp"

namespace rollring::cli {

// The index of the column of this name, if there is one.
std::optional<std::uint16_t> custom_column(const Schema& schema, std::string_view name);

// Throws BadRecord with the column's name if the value does not have its dtype and shape.
// check_columns() checks the rows of columns per token.
void read_column(JsonValue value, const Schema& schema, std::uint16_t column, ParsedRecord& record);
// The object form, for any column.
void read_blob(std::string_view key, JsonValue value, const Schema& schema, std::uint16_t column,
               ParsedRecord& record);

// Text that read_column() reads back as the same column.
void append_custom(std::string& out, const ColumnView& column, const Column& declared);

}  // namespace rollring::cli
