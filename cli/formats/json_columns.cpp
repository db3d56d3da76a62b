#include "cli/formats/json_columns.hpp"

#include <fmt/core.h>

#include <set>

#include "rollring/ring.hpp"

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
    const std::span values(reinterpret_cast<const T*>(column.data.data()),
                           column.data.size() / sizeof(T));
    append_nested<T>(out, values, std::span(column.shape).first(column.dims));
    return true;
}

// Dims behind an empty one cost no bytes, so a short record may claim any number of lists.
bool few_lists(const ColumnView& column) {
    constexpr std::uint64_t empty_lists_max = 1 << 20;
    if (!column.data.empty()) return true;
    std::uint64_t lists = 1;
    for (std::uint8_t i = 0; i < column.dims && lists != 0 && lists <= empty_lists_max; i++) {
        lists *= column.shape[i];
    }
    return lists <= empty_lists_max;
}

}  // namespace

void append_column(std::string& out, const ColumnView& column) {
    const DType dtype = column.dtype == dtype_bool ? dtype_u8 : column.dtype;  // as its bits
    if (few_lists(column) &&
        with_number(dtype, [&]<class T>(T) { return append_as<T>(out, column); })) {
        return;
    }
    append_blob(out, column);
}

void append_blob(std::string& out, const ColumnView& column) {
    out += "{\"dtype\":";
    append_string(out, column.dtype.to_string());
    out += ",\"shape\":";
    append_list(out, std::span<const std::uint32_t>(column.shape).first(column.dims));
    out += ",\"base64\":\"" + base64(column.data) + "\"}";
}

bool append_json_text(std::string& out, std::string_view text, std::size_t depth) {
    // A copy, because its producer may still change the memory.
    const std::string copy(text);
    try {
        append_compact(out, parse_json(copy, depth));
        return true;
    } catch (const BadRecord&) {
        append_string(out, copy);
        return false;
    }
}

bool append_extra(std::string& out, std::string_view extra,
                  std::span<const std::string_view> written) {
    const std::string copy(extra);
    std::vector<JsonMember> members;
    bool good = false;
    try {
        const JsonValue object = parse_json(copy);
        good = object.is_object();
        if (good) members = object.members();
    } catch (const BadRecord&) {
        good = false;
    }
    if (!good) {
        out += ",\"extra\":";
        append_string(out, copy);
        return false;
    }
    std::set<std::string_view> keys(written.begin(), written.end());
    for (const auto& [key, value] : members) {
        if (!keys.insert(key).second) continue;
        out += ',';
        append_string(out, key);
        out += ':';
        append_compact(out, value);
    }
    return true;
}

std::string written_as_strings(const TrajectoryView& record, const std::string& blamed) {
    if (blamed.empty()) return {};
    const auto repetition = record.meta().repetition_id;
    return fmt::format("{}{}: {}' is not JSON, or nested deeper than {}: written as a string",
                       printable(record.instance_id().substr(0, 60)),
                       repetition.has_value() ? fmt::format(" #{}", std::uint32_t{repetition}) : "",
                       blamed, json_depth_max);
}

void append_member(std::string& object, std::string_view key, JsonValue value) {
    object += object.empty() ? '{' : ',';
    append_string(object, key);
    object += ':';
    append_compact(object, value);
}

}  // namespace rollring::cli
