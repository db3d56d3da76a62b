#include "cli/json_values.hpp"

#include <algorithm>

namespace rollring::cli {
namespace {

std::uint32_t rows_of(std::string_view key, const Json& value) {
    return static_cast<std::uint32_t>(array(key, value).size());
}

// The common length of the rows; nothing if they differ.
std::optional<std::uint32_t> row_length(std::string_view key, const Json& value) {
    std::optional<std::uint32_t> length;
    for (const auto& row : array(key, value)) {
        const std::uint32_t here = rows_of(key, row);
        if (length.value_or(here) != here) return std::nullopt;
        length = here;
    }
    return length.value_or(0);
}

template <class T, class Read>
bool read_rows(std::string_view key, const Json& value, std::span<T> out, const Read& read) {
    std::size_t at = 0;
    for (const auto& row : value) {
        for (const auto& element : row) out[at++] = read(key, element);
    }
    return true;
}

float read_float(std::string_view key, const Json& value) {
    return static_cast<float>(real(key, value));
}

template <class T>
void fill_experts(std::string_view key, const Json& value, std::span<T> out) {
    std::size_t at = 0;
    for (const auto& token : value) {
        for (const auto& layer : token) {
            for (const auto& id : layer) out[at++] = integer<T>(key, id);
        }
    }
}

}  // namespace

std::string excerpt(const Json& value) {
    std::string text = dump_json(value);
    if (text.size() > 40) text = text.substr(0, 37) + "...";
    return text;
}

double real(std::string_view key, const Json& value) {
    const auto number = to_number(value);
    if (!number) bad(key, fmt::format("must be a number, not {}", excerpt(value)));
    return *number;
}

const std::string& string(std::string_view key, const Json& value) {
    if (!value.is_string()) bad(key, fmt::format("must be a string, not {}", excerpt(value)));
    return value.get_ref<const std::string&>();
}

const Json& array(std::string_view key, const Json& value) {
    if (!value.is_array()) bad(key, fmt::format("must be a list, not {}", excerpt(value)));
    if (value.size() > std::numeric_limits<std::uint32_t>::max()) bad(key, "is too long");
    return value;  // NOLINT(bugprone-return-const-ref-from-parameter): of the caller's document
}

void read_i32(std::string_view key, const Json& value, ParsedRecord& record, Std column) {
    auto out = record.make<std::int32_t>(column, rows_of(key, value));
    std::size_t at = 0;
    for (const auto& element : value) out[at++] = integer<std::int32_t>(key, element);
}

void read_f32(std::string_view key, const Json& value, ParsedRecord& record, Std column) {
    auto out = record.make<float>(column, rows_of(key, value));
    std::size_t at = 0;
    for (const auto& element : value) out[at++] = read_float(key, element);
}

void read_mask(std::string_view key, const Json& value, ParsedRecord& record) {
    auto out = record.make<std::uint8_t>(Std::loss_mask, rows_of(key, value));
    std::size_t at = 0;
    for (const auto& element : value) {
        const auto bit = element.is_boolean() ? static_cast<std::uint8_t>(element.get<bool>())
                                              : integer<std::uint8_t>(key, element);
        if (bit > 1) bad(key, fmt::format("holds {}, which is neither 0 nor 1", bit));
        out[at++] = bit;
    }
}

bool read_topk_ids(std::string_view key, const Json& value, ParsedRecord& record) {
    const auto length = row_length(key, value);
    if (!length) return false;
    auto out = record.make<std::int32_t>(Std::topk_ids, {rows_of(key, value), *length, 0, 0}, 2);
    return read_rows(key, value, out, integer<std::int32_t>);
}

bool read_topk_logprobs(std::string_view key, const Json& value, ParsedRecord& record) {
    const auto length = row_length(key, value);
    if (!length) return false;
    auto out = record.make<float>(Std::topk_logprobs, {rows_of(key, value), *length, 0, 0}, 2);
    return read_rows(key, value, out, read_float);
}

void read_experts(std::string_view key, const Json& value, ParsedRecord& record) {
    const auto layers = row_length(key, value);
    if (!layers) bad(key, "must have the same number of layers for every token");
    std::optional<std::uint32_t> k;
    std::int32_t most = 0;
    bool negative = false;
    for (const auto& token : value) {
        const auto here = row_length(key, token);
        if (!here || (*layers != 0 && k.value_or(*here) != *here)) {
            bad(key, "must have the same number of experts for every token and layer");
        }
        k = here;
        for (const auto& layer : token) {
            for (const auto& id : layer) {
                const auto number = integer<std::int32_t>(key, id);
                most = std::max(most, number);
                negative |= number < 0;
            }
        }
    }
    const std::array<std::uint32_t, 4> shape{rows_of(key, value), *layers, k.value_or(0), 0};
    if (negative || most > std::numeric_limits<std::uint16_t>::max()) {
        fill_experts(key, value, record.make<std::int32_t>(Std::routed_experts, shape, 3));
    } else if (most > std::numeric_limits<std::uint8_t>::max()) {
        fill_experts(key, value, record.make<std::uint16_t>(Std::routed_experts, shape, 3));
    } else {
        fill_experts(key, value, record.make<std::uint8_t>(Std::routed_experts, shape, 3));
    }
}

void check_rows(const ParsedRecord& record) {
    const std::uint32_t n_tokens = record.rows(Std::token_ids);
    const auto columns = Schema::standard().columns();
    for (std::size_t i = 0; i < columns.size(); i++) {
        const auto column = static_cast<Std>(i);
        if (columns[i].per != Per::token || !record.has(column)) continue;
        if (record.rows(column) != n_tokens) {
            bad(columns[i].name,
                fmt::format("has {} entries for {} tokens", record.rows(column), n_tokens));
        }
    }
}

}  // namespace rollring::cli
