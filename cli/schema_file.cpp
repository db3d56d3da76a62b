#include "cli/schema_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "cli/json_values.hpp"

namespace rollring::cli {
namespace {

template <std::size_t count>
std::size_t choice(std::string_view key, const Json& value,
                   const std::array<const char*, count>& names) {
    const auto found = std::ranges::find(names, string(key, value));
    if (found == names.end()) {
        std::string known;
        for (const char* name : names) known += (known.empty() ? "" : ", ") + std::string(name);
        bad(key, fmt::format("is {}, not one of {}", excerpt(value), known));
    }
    return static_cast<std::size_t>(found - names.begin());
}

Column parse_column(const Json& object) {
    if (!object.is_object()) throw BadRecord("a column is an object");
    Column column;
    for (const auto& [key, value] : object.items()) {
        if (key == "name") {
            column.name = string(key, value);
        } else if (key == "dtype") {
            const auto dtype = DType::parse(string(key, value));
            if (!dtype) bad(key, fmt::format("is {}, which is no dtype", excerpt(value)));
            column.dtype = *dtype;
        } else if (key == "per") {
            column.per = static_cast<Per>(choice<2>(key, value, {"token", "record"}));
        } else if (key == "accepts") {
            column.accepts =
                static_cast<Accepts>(choice<3>(key, value, {"exact", "any_integer", "any"}));
        } else if (key == "required") {
            if (!value.is_boolean()) bad(key, "must be true or false");
            column.required = value.get<bool>();
        } else if (key == "dims") {
            for (const auto& length : array(key, value)) {
                column.dims.push_back(integer<std::uint32_t>(key, length));
            }
        } else {
            bad(key, "is no property of a column: name, dtype, per, accepts, required, dims");
        }
    }
    return column;
}

}  // namespace

Result<Schema> parse_schema(std::string_view text) {
    std::vector<Column> columns;
    try {
        const Json list = parse_json(text);
        for (const auto& object : array("schema", list)) columns.push_back(parse_column(object));
    } catch (const BadRecord& error) {
        return std::unexpected(
            Error{Errc::invalid_argument, 0,
                  fmt::format("schema, column {}: {}", columns.size(), error.what())});
    }
    return Schema::standard_with(std::move(columns));
}

Result<Schema> read_schema_file(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file || !text) {
        return std::unexpected(Error{
            Errc::not_found, 0, path + ": cannot be read; --schema takes `standard` or a file"});
    }
    auto schema = parse_schema(text.str());
    if (!schema) schema.error().message = path + ": " + schema.error().message;
    return schema;
}

}  // namespace rollring::cli
