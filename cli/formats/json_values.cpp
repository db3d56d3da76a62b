#include "cli/formats/json_values.hpp"

#include <algorithm>

#include "cli/formats/custom_columns.hpp"

namespace rollring::cli {
namespace {

// The common length of the rows; empty if they differ.
std::optional<std::uint32_t> row_length(std::string_view key, JsonValue value) {
    std::optional<std::uint32_t> length;
    count(key, value);
    for (const JsonValue row : value.elements()) {
        const std::uint32_t here = count(key, row);
        if (length.value_or(here) != here) return std::nullopt;
        length = here;
    }
    return length.value_or(0);
}

template <class T, class Read>
bool read_rows(std::string_view key, JsonValue value, std::span<T> out, const Read& read) {
    std::size_t at = 0;
    for (const JsonValue row : value.elements()) {
        for (const JsonValue element : row.elements()) out[at++] = read(key, element);
    }
    return true;
}

template <class T>
void fill_experts(std::string_view key, JsonValue value, std::span<T> out) {
    std::size_t at = 0;
    for (const JsonValue token : value.elements()) {
        for (const JsonValue layer : token.elements()) {
            for (const JsonValue id : layer.elements()) out[at++] = integer<T>(key, id);
        }
    }
}

}  // namespace

std::string excerpt(JsonValue value) {
    // A prefix is enough, but without reading every byte of a long value.
    if (value.text().size() <= 40) return compact(value);
    std::string_view text = value.text().substr(0, 37);
    while (!text.empty() && (text.back() & 0xc0) == 0x80) text.remove_suffix(1);
    if (!text.empty() && (text.back() & 0x80) != 0) text.remove_suffix(1);
    return std::string(text) + "...";
}

template <class T>
T real(std::string_view key, JsonValue value) {
    if (const auto number = value.number<T>()) return *number;
    if (value.is_number()) {
        bad(key,
            fmt::format("is {}, which does not fit into {} bits", excerpt(value), sizeof(T) * 8));
    }
    bad(key, fmt::format("must be a number, not {}", excerpt(value)));
}
template float real(std::string_view key, JsonValue value);
template double real(std::string_view key, JsonValue value);

std::string string(std::string_view key, JsonValue value) {
    if (!value.is_string()) bad(key, fmt::format("must be a string, not {}", excerpt(value)));
    return value.string();
}

bool boolean(std::string_view key, JsonValue value) {
    if (!value.is_boolean()) {
        bad(key, fmt::format("must be true or false, not {}", excerpt(value)));
    }
    return value.boolean();
}

std::uint32_t count(std::string_view key, JsonValue list) {
    if (!list.is_array()) bad(key, fmt::format("must be a list, not {}", excerpt(list)));
    const std::size_t found = list.count();
    if (found > std::numeric_limits<std::uint32_t>::max()) bad(key, "is too long");
    return static_cast<std::uint32_t>(found);
}

std::vector<JsonMember> members(JsonValue object) {
    std::vector<JsonMember> found = object.members();
    std::vector<std::string_view> keys;
    keys.reserve(found.size());
    for (const JsonMember& member : found) keys.emplace_back(member.key);
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    if (twice != keys.end()) bad(*twice, "is duplicated");
    return found;
}

std::string compact(JsonValue value) {
    std::string text;
    append_compact(text, value);
    return text;
}

void read_i32(std::string_view key, JsonValue value, ParsedRecord& record, Std column) {
    auto out = record.make<std::int32_t>(column, count(key, value));
    std::size_t at = 0;
    for (const JsonValue element : value.elements()) {
        out[at++] = integer<std::int32_t>(key, element);
    }
}

void read_f32(std::string_view key, JsonValue value, ParsedRecord& record, Std column) {
    auto out = record.make<float>(column, count(key, value));
    std::size_t at = 0;
    for (const JsonValue element : value.elements()) out[at++] = real<float>(key, element);
}

void read_mask(std::string_view key, JsonValue value, ParsedRecord& record) {
    auto out = record.make<std::uint8_t>(Std::loss_mask, count(key, value));
    std::size_t at = 0;
    for (const JsonValue element : value.elements()) {
        const auto bit = element.is_boolean() ? static_cast<std::uint8_t>(element.boolean())
                                              : integer<std::uint8_t>(key, element);
        if (bit > 1) bad(key, fmt::format("holds {}, which is neither 0 nor 1", bit));
        out[at++] = bit;
    }
}

bool read_topk_ids(std::string_view key, JsonValue value, ParsedRecord& record) {
    const auto length = row_length(key, value);
    if (!length) return false;
    auto out = record.make<std::int32_t>(Std::topk_ids, {count(key, value), *length, 0, 0}, 2);
    return read_rows(key, value, out, integer<std::int32_t>);
}

bool read_topk_logprobs(std::string_view key, JsonValue value, ParsedRecord& record) {
    const auto length = row_length(key, value);
    if (!length) return false;
    auto out = record.make<float>(Std::topk_logprobs, {count(key, value), *length, 0, 0}, 2);
    return read_rows(key, value, out, real<float>);
}

void read_experts(std::string_view key, JsonValue value, ParsedRecord& record) {
    if (value.is_object()) {
        return read_blob(key, value, Schema::standard(),
                         static_cast<std::uint16_t>(Std::routed_experts), record);
    }
    const auto layers = row_length(key, value);
    if (!layers) bad(key, "must have the same number of layers for every token");
    std::optional<std::uint32_t> k;
    std::int32_t most = 0;
    bool negative = false;
    for (const JsonValue token : value.elements()) {
        const auto here = row_length(key, token);
        if (!here || (*layers != 0 && k.value_or(*here) != *here)) {
            bad(key, "must have the same number of experts for every token and layer");
        }
        k = here;
        for (const JsonValue layer : token.elements()) {
            for (const JsonValue id : layer.elements()) {
                const auto number = integer<std::int32_t>(key, id);
                most = std::max(most, number);
                negative |= number < 0;
            }
        }
    }
    const std::array<std::uint32_t, 4> shape{count(key, value), *layers, k.value_or(0), 0};
    if (negative || most > std::numeric_limits<std::uint16_t>::max()) {
        fill_experts(key, value, record.make<std::int32_t>(Std::routed_experts, shape, 3));
    } else if (most > std::numeric_limits<std::uint8_t>::max()) {
        fill_experts(key, value, record.make<std::uint16_t>(Std::routed_experts, shape, 3));
    } else {
        fill_experts(key, value, record.make<std::uint8_t>(Std::routed_experts, shape, 3));
    }
}

void check_columns(const ParsedRecord& record, const Schema& schema) {
    const std::uint32_t n_tokens = record.rows(Std::token_ids);
    const auto columns = schema.columns();
    const Status status = record.meta.status;
    const bool promises = status == Status::completed || status == Status::truncated;
    for (std::size_t i = 0; i < columns.size(); i++) {
        const auto column = static_cast<std::uint16_t>(i);
        if (!record.has(column)) {
            // Only the tokens are required among the standard ones: check() reports them.
            if (columns[i].required && promises &&
                column >= static_cast<std::uint16_t>(Std::count)) {
                bad(columns[i].name, "is missing: the ring's schema requires it");
            }
            continue;
        }
        if (columns[i].per == Per::token && record.rows(column) != n_tokens) {
            bad(columns[i].name,
                fmt::format("has {} entries for {} tokens", record.rows(column), n_tokens));
        }
    }
}

}  // namespace rollring::cli
