#pragma once
// Columns as JSON text.

#include <span>
#include <string>

#include "cli/json_text.hpp"
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

// Nested lists of its shape; types that JSON has no numbers for come as
// {"dtype":"bf16","shape":[...],"base64":"..."}.
void append_column(std::string& out, const ColumnView& column);

// The text as it is if it is JSON, else as a string. For columns that hold UTF-8 JSON.
void append_json_text(std::string& out, std::string_view text);

// Appends the members of `extra` (an object) that are not among `written`, each with a comma
// before.
void append_extra(std::string& out, std::string_view extra,
                  std::span<const std::string_view> written);

}  // namespace rollring::cli
