#pragma once
// Columns as JSON text.

#include <span>
#include <string>

#include "cli/formats/json_text.hpp"
#include "cli/formats/json_value.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::cli {

template <class T>
void append_element(std::string& out, T value) {
    if constexpr (std::is_floating_point_v<T>) {
        append_number(out, value, Integral::with_point);
    } else if constexpr (std::is_signed_v<T>) {
        append_number(out, static_cast<std::int64_t>(value));
    } else {
        append_number(out, static_cast<std::uint64_t>(value));
    }
}

template <class T>
void append_list(std::string& out, std::span<const T> values) {
    out += '[';
    for (std::size_t i = 0; i < values.size(); i++) {
        if (i != 0) out += ',';
        append_element(out, values[i]);
    }
    out += ']';
}

// Nested lists of its shape; a blob if lists would not show the type or the shape.
void append_column(std::string& out, const ColumnView& column);
// {"dtype":"bf16","shape":[...],"base64":"..."}
void append_blob(std::string& out, const ColumnView& column);

// `text` unchanged if it is JSON, otherwise as a string: false then. For columns of UTF-8 JSON from
// any producer. `depth`: the depth at which it is appended.
bool append_json_text(std::string& out, std::string_view text, std::size_t depth);

// Appends the members of `extra` (an object) that are not among `written`, each after a comma.
// False if it is not an object: then it becomes a string with the key "extra".
bool append_extra(std::string& out, std::string_view extra,
                  std::span<const std::string_view> written);

// A sentence on the record's columns in question; `blamed` has their names, the first quote
// included. Empty if there are none.
std::string written_as_strings(const TrajectoryView& record, const std::string& blamed);

// Appends to the text of an unclosed object, which may be empty.
void append_member(std::string& object, std::string_view key, JsonValue value);

}  // namespace rollring::cli
