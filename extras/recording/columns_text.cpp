#include "columns_text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

namespace rollring::recording {
namespace {

constexpr std::string_view per_names[] = {"token", "record"};
constexpr std::string_view required_names[] = {"optional", "required"};
constexpr std::string_view accepts_names[] = {"exact", "any_integer", "any"};

std::string dims_text(const std::vector<std::uint32_t>& dims) {
    if (dims.empty()) return "-";
    std::string text;
    for (const std::uint32_t dim : dims) text += (text.empty() ? "" : ",") + std::to_string(dim);
    return text;
}

template <class T>
bool read_name(std::string_view text, std::span<const std::string_view> names, T& to) {
    const auto found = std::ranges::find(names, text);
    if (found == names.end()) return false;
    to = static_cast<T>(found - names.begin());
    return true;
}

bool read_dims(std::string_view text, std::vector<std::uint32_t>& dims) {
    if (text == "-") return true;
    for (const auto part : std::views::split(text, ',')) {
        std::uint32_t dim = 0;
        const char* const end = part.data() + part.size();
        const auto [stop, wrong] = std::from_chars(part.data(), end, dim);
        if (wrong != std::errc() || stop != end) return false;
        dims.push_back(dim);
    }
    return true;
}

std::optional<Column> column_of(std::string_view written) {
    std::vector<std::string_view> words;
    for (const auto word : std::views::split(written, ' ')) words.emplace_back(word);
    if (words.size() != 6) return std::nullopt;
    Column column{.name = std::string(words[0]), .dtype = {}};
    const auto dtype = DType::parse(words[1]);
    if (!dtype) return std::nullopt;
    column.dtype = *dtype;
    const bool read = read_name(words[2], per_names, column.per) &&
                      read_name(words[3], required_names, column.required) &&
                      read_name(words[4], accepts_names, column.accepts) &&
                      read_dims(words[5], column.dims);
    return read ? std::optional(std::move(column)) : std::nullopt;
}

}  // namespace

std::string columns_text(const Schema& schema) {
    std::string text;
    for (const Column& column : schema.columns().subspan(static_cast<std::size_t>(Std::count))) {
        text += fmt::format("{} {} {} {} {} {}\n", column.name, column.dtype.to_string(),
                            per_names[static_cast<std::size_t>(column.per)],
                            required_names[column.required ? 1 : 0],
                            accepts_names[static_cast<std::size_t>(column.accepts)],
                            dims_text(column.dims));
    }
    return text;
}

Result<Schema> schema_of(std::string_view text) {
    std::vector<Column> more;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        const std::string_view written = text.substr(0, end);
        auto column = column_of(written);
        if (!column) {
            return refused(Errc::not_a_ring,
                           fmt::format("the line '{}' of its columns is none", written));
        }
        more.push_back(std::move(*column));
        text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
    auto schema = Schema::standard_with(std::move(more));
    if (!schema) return refused(Errc::not_a_ring, schema.error().message);
    return schema;
}

}  // namespace rollring::recording
