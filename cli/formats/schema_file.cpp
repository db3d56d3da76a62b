#include "cli/formats/schema_file.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "cli/formats/json_values.hpp"
#include "cli/formats/rollring_json.hpp"

namespace rollring::cli {
namespace {

template <std::size_t count>
std::size_t choice(std::string_view key, JsonValue value,
                   const std::array<const char*, count>& names) {
    const auto found = std::ranges::find(names, string(key, value));
    if (found == names.end()) {
        std::string all;
        for (const char* name : names) all += (all.empty() ? "" : ", ") + std::string(name);
        bad(key, fmt::format("is {}, not one of {}", excerpt(value), all));
    }
    return static_cast<std::size_t>(found - names.begin());
}

Column parse_column(JsonValue object) {
    if (!object.is_object()) throw BadRecord("a column must be an object");
    Column column;
    for (const auto& [key, value] : members(object)) {
        if (key == "name") {
            column.name = string(key, value);
            if (is_rollring_key(column.name)) {
                bad(key,
                    fmt::format("is '{}', which is a reserved key of records: choose another name",
                                column.name));
            }
        } else if (key == "dtype") {
            const auto dtype = DType::parse(string(key, value));
            if (!dtype) bad(key, fmt::format("is {}, which is not a dtype", excerpt(value)));
            column.dtype = *dtype;
        } else if (key == "per") {
            column.per = static_cast<Per>(choice<2>(key, value, {"token", "record"}));
        } else if (key == "accepts") {
            column.accepts =
                static_cast<Accepts>(choice<3>(key, value, {"exact", "any_integer", "any"}));
        } else if (key == "required") {
            column.required = boolean(key, value);
        } else if (key == "dims") {
            count(key, value);
            for (const JsonValue length : value.elements()) {
                column.dims.push_back(integer<std::uint32_t>(key, length));
            }
        } else {
            bad(key,
                "is not a property of a column: use name, dtype, per, accepts, required, dims");
        }
    }
    return column;
}

}  // namespace

Result<Schema> parse_schema(std::string_view text) {
    std::vector<Column> columns;
    try {
        const JsonValue list = parse_json(text);
        count("schema", list);
        for (const JsonValue object : list.elements()) columns.push_back(parse_column(object));
    } catch (const BadRecord& error) {
        return refused(Errc::invalid_argument,
                       fmt::format("schema, column {}: {}", columns.size(), error.what()));
    }
    return Schema::standard_with(std::move(columns));
}

Result<Schema> read_schema_file(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file || !text) {
        return refused(Errc::not_found,
                       path + ": cannot be read; --schema takes `standard` or a file");
    }
    auto schema = parse_schema(text.str());
    if (!schema) {
        // As for any file with wrong contents: the command line itself is valid.
        return refused(Errc::bad_record, path + ": " + schema.error().message);
    }
    return schema;
}

}  // namespace rollring::cli
