#pragma once
// Stat structs as JSON and as cells of a table, by their fields (rollring/stat_fields.hpp).

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "cli/formats/json_tree.hpp"
#include "cli/terminal/quantity.hpp"
#include "rollring/stat_fields.hpp"

namespace rollring::cli {

inline std::string key_text(const GroupKey& key) {
    return fmt::format("{:016x}{:016x}", key.high, key.low);
}

template <class T>
Json json_of(FieldUnit unit, const T& value) {
    if constexpr (std::is_enum_v<T>) {
        return name(value);
    } else if constexpr (std::same_as<T, GroupKey>) {
        return key_text(value);
    } else if constexpr (std::signed_integral<T>) {
        if (unit == FieldUnit::milliseconds) return static_cast<double>(value) * 1e-6;
        if (unit != FieldUnit::seconds) return value;
        return value < 0 ? Json() : Json(static_cast<double>(value) * 1e-9);
    } else {
        return value;
    }
}

inline rollring::Amount sum_of(const DropAmounts& dropped) {
    rollring::Amount sum;
    for (const rollring::Amount& amount : dropped) sum += amount;
    return sum;
}

// The records of each reason.
inline Json json_of(const DropAmounts& dropped) {
    Json json = Json::object();
    for (std::size_t i = 0; i < dropped.size(); i++) {
        json[std::string(name(static_cast<DropReason>(i)))] = dropped[i].records;
    }
    return json;
}

inline void add_amount(Json& to, std::string_view name, const rollring::Amount& amount) {
    to[fmt::format("records_{}", name)] = amount.records;
    to[fmt::format("tokens_{}", name)] = amount.tokens;
}

// Adds all fields of `stat`.
template <class Stat>
void add_fields(Json& to, const Stat& stat) {
    for_each_field(stat, [&]<class T>(const auto& field, const T& value) {
        if constexpr (std::same_as<T, rollring::Amount>) {
            add_amount(to, field.name, value);
        } else if constexpr (std::same_as<T, DropAmounts>) {
            to[field.name] = json_of(value);
            add_amount(to, field.name, sum_of(value));
        } else {
            to[field.name] = json_of(field.unit, value);
        }
    });
}

template <class Stat>
Json json_of(const Stat& stat) {
    Json json = Json::object();
    add_fields(json, stat);
    return json;
}

template <class T>
std::string cell_of(FieldUnit unit, const T& value) {
    if constexpr (std::same_as<T, bool>) {
        return value ? "yes" : "no";
    } else if constexpr (std::is_enum_v<T>) {
        return std::string(name(value));
    } else if constexpr (std::same_as<T, rollring::Amount>) {
        return count_text(value.records);
    } else if constexpr (std::same_as<T, DropAmounts>) {
        return count_text(sum_of(value).records);
    } else if constexpr (std::integral<T>) {
        if (unit == FieldUnit::bytes) return bytes_text(static_cast<std::uint64_t>(value));
        if (unit == FieldUnit::count) return count_text(static_cast<std::uint64_t>(value));
        if (unit != FieldUnit::seconds) return std::to_string(value);
        return std::cmp_less(value, 0) ? "-" : duration_text(static_cast<double>(value) * 1e-9);
    } else {
        return value;
    }
}

// One field of `stat` as text.
template <class Stat, class T>
std::string cell_of(const Stat& stat, T Stat::* member) {
    FieldUnit unit = FieldUnit::none;
    for_each_field(stat, [&](const auto& field, const auto&) {
        if constexpr (std::same_as<decltype(field.member), T Stat::*>) {
            if (field.member == member) unit = field.unit;
        }
    });
    return cell_of(unit, stat.*member);
}

}  // namespace rollring::cli
