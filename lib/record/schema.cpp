#include "rollring/schema.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "schema_page.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace {

std::vector<Column> standard_columns() {
    const auto token = [](const char* name, DType dtype) {
        return Column{.name = name, .dtype = dtype};
    };
    const auto blob = [](const char* name) {
        return Column{.name = name, .dtype = dtype_u8, .per = Per::record};
    };
    std::vector<Column> columns{
        token("token_ids", dtype_i32),
        token("loss_mask", dtype_u8),
        token("logprobs", dtype_f32),
        token("advantages", dtype_f32),
        token("ref_logprobs", dtype_f32),
        token("token_rewards", dtype_f32),
        {.name = "routed_experts",
         .dtype = dtype_u8,
         .accepts = Accepts::any_integer,
         .dims = {0, 0}},
        {.name = "topk_ids", .dtype = dtype_i32, .dims = {0}},
        {.name = "topk_logprobs", .dtype = dtype_f32, .dims = {0}},
        token("labels", dtype_i32),
        {.name = "policy_version", .dtype = dtype_i64, .per = Per::record, .dims = {2}},
        blob("instance_id"),
        blob("source"),
        blob("messages"),
        blob("generation_params"),
        blob("overrides"),
        blob("group_overrides"),
        {.name = "images", .dtype = dtype_u8, .per = Per::record, .accepts = Accepts::any},
        blob("extra"),
        blob("user"),
    };
    columns[0].required = true;
    return columns;
}

std::string problem_of(const Column& column, std::size_t index) {
    const bool plain = std::ranges::all_of(column.name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    });
    if (column.name.empty() || column.name.size() >= sizeof(SchemaColumn::name) || !plain) {
        return fmt::format("column {} has the name '{}': use 1 to 39 of a-z 0-9 _ .", index,
                           column.name);
    }
    if (column.dtype.to_string().empty()) {
        return fmt::format("column '{}' has an unknown dtype {{{}, {}}}", column.name,
                           column.dtype.code, column.dtype.bits);
    }
    if (column.dims.size() > 3) {
        return fmt::format("column '{}' has {} inner dims, at most 3 are allowed", column.name,
                           column.dims.size());
    }
    return {};
}

}  // namespace

std::string DType::to_string() const {
    for (const KnownDType& known : known_dtypes) {
        if (known.dtype == *this) return std::string(known.name);
    }
    return {};
}

std::optional<DType> DType::parse(std::string_view text) {
    for (const KnownDType& known : known_dtypes) {
        if (known.name == text) return known.dtype;
    }
    return std::nullopt;
}

const Schema& Schema::standard() {
    static const Schema schema = of(standard_columns());
    return schema;
}

Schema Schema::of(std::vector<Column> columns) {
    Schema made;
    made.columns_ = std::move(columns);
    for (std::size_t i = 0; i < made.columns_.size(); i++) {
        const Column& column = made.columns_[i];
        made.required_ |= static_cast<std::uint32_t>(column.required) << i;
        const bool plain = column.accepts == Accepts::exact && column.dims.empty();
        made.rules_[i] = {column.dtype, column.per, plain};
    }
    const SchemaPage page = to_page(made);
    made.id_ = XXH3_64bits(&page, sizeof page);
    return made;
}

Result<Schema> Schema::make(std::vector<Column> columns) {
    const auto refuse = [](std::string why) {
        return refused(Errc::invalid_argument, "schema: " + std::move(why));
    };
    if (columns.size() > columns_max) {
        return refuse(
            fmt::format("{} columns, at most {} are allowed", columns.size(), columns_max));
    }
    if (columns.empty() || columns[0].name != "token_ids" || columns[0].dtype != dtype_i32 ||
        columns[0].per != Per::token || !columns[0].dims.empty()) {
        return refuse("the first column must be token_ids, i32, per token");
    }
    for (std::size_t i = 0; i < columns.size(); i++) {
        if (auto problem = problem_of(columns[i], i); !problem.empty()) return refuse(problem);
        for (std::size_t j = 0; j < i; j++) {
            if (columns[j].name == columns[i].name) {
                return refuse(fmt::format("column '{}' is declared twice", columns[i].name));
            }
        }
    }
    return of(std::move(columns));
}

Result<Schema> Schema::standard_with(std::vector<Column> more) {
    std::vector<Column> columns = standard_columns();
    for (auto& column : more) columns.push_back(std::move(column));
    return make(std::move(columns));
}

std::optional<std::uint16_t> Schema::find(std::string_view name) const {
    for (std::size_t i = 0; i < columns_.size(); i++) {
        if (columns_[i].name == name) return static_cast<std::uint16_t>(i);
    }
    return std::nullopt;
}

SchemaPage to_page(const Schema& schema) {
    SchemaPage page{};
    page.column_count = static_cast<std::uint32_t>(schema.columns().size());
    for (std::size_t i = 0; i < schema.columns().size(); i++) {
        const Column& column = schema.columns()[i];
        SchemaColumn& entry = page.columns[i];
        std::memcpy(entry.name, column.name.data(), column.name.size());
        entry.dtype_code = column.dtype.code;
        entry.dtype_bits = column.dtype.bits;
        entry.per = static_cast<std::uint8_t>(column.per);
        entry.required = column.required ? 1 : 0;
        entry.accepts = static_cast<std::uint8_t>(column.accepts);
        entry.inner_dims = static_cast<std::uint8_t>(column.dims.size());
        std::ranges::copy(column.dims, entry.dims);
    }
    return page;
}

Result<Schema> from_page(const SchemaPage& page) {
    const auto damaged = [] {
        return refused(Errc::not_a_ring, "the ring's schema page is damaged");
    };
    if (page.column_count > columns_max) return damaged();
    std::vector<Column> columns;
    for (std::uint32_t i = 0; i < page.column_count; i++) {
        const SchemaColumn& entry = page.columns[i];
        const auto* end = std::find(std::begin(entry.name), std::end(entry.name), '\0');
        if (end == std::end(entry.name) || entry.inner_dims > 3 || entry.per > 1 ||
            entry.accepts > 2) {
            return damaged();
        }
        columns.push_back({.name = std::string(entry.name, end),
                           .dtype = {entry.dtype_code, entry.dtype_bits},
                           .per = static_cast<Per>(entry.per),
                           .required = entry.required != 0,
                           .accepts = static_cast<Accepts>(entry.accepts),
                           .dims = {entry.dims, entry.dims + entry.inner_dims}});
    }
    return Schema::make(std::move(columns));
}

}  // namespace rollring
