#include "cli/json_columns.hpp"

#include <algorithm>

namespace rollring::cli {
namespace {

template <class T>
void append_nested(std::string& out, std::span<const T> values,
                   std::span<const std::uint32_t> shape) {
    if (shape.size() <= 1) return append_list(out, values);
    const std::size_t step = shape[0] == 0 ? 0 : values.size() / shape[0];
    out += '[';
    for (std::uint32_t i = 0; i < shape[0]; i++) {
        if (i != 0) out += ',';
        append_nested(out, values.subspan(i * step, step), shape.subspan(1));
    }
    out += ']';
}

template <class T>
bool append_as(std::string& out, const ColumnView& column) {
    if (column.dtype != DType{std::is_floating_point_v<T> ? std::uint8_t{2}
                              : std::is_signed_v<T>       ? std::uint8_t{0}
                                                          : std::uint8_t{1},
                              sizeof(T) * 8}) {
        return false;
    }
    const std::span values(reinterpret_cast<const T*>(column.data.data()),
                           column.data.size() / sizeof(T));
    append_nested<T>(out, values, std::span(column.shape).first(column.dims));
    return true;
}

template <class... T>
bool append_as_any(std::string& out, const ColumnView& column) {
    return (append_as<T>(out, column) || ...);
}

}  // namespace

void append_column(std::string& out, const ColumnView& column) {
    if (append_as_any<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                      std::uint16_t, std::uint32_t, std::uint64_t, float, double>(out, column)) {
        return;
    }
    out += "{\"dtype\":";
    append_string(out, column.dtype.to_string());
    out += ",\"shape\":";
    append_list(out, std::span<const std::uint32_t>(column.shape).first(column.dims));
    out += ",\"base64\":\"" + base64(column.data) + "\"}";
}

void append_json_text(std::string& out, std::string_view text) {
    try {
        out += dump_json(parse_json(text));
    } catch (const BadRecord&) {
        append_string(out, text);
    }
}

void append_extra(std::string& out, std::string_view extra,
                  std::span<const std::string_view> written) {
    Json object;
    try {
        object = parse_json(extra);
    } catch (const BadRecord&) {
        object = Json{{"extra", extra}};
    }
    if (!object.is_object()) object = Json{{"extra", object}};
    for (const auto& [key, value] : object.items()) {
        if (std::ranges::find(written, std::string_view(key)) != written.end()) continue;
        out += ',';
        append_string(out, key);
        out += ':';
        out += dump_json(value);
    }
}

}  // namespace rollring::cli
