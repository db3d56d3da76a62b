#pragma once
// Stat structs as JSON and as cells of a table, by their fields (rollring/stat.hpp).

#include <fmt/core.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "cli/formats/json_tree.hpp"
#include "cli/terminal/quantity.hpp"
#include "rollring/stat.hpp"

namespace rollring::cli {

inline std::string key_text(const GroupKey& key) {
    return fmt::format("{:016x}{:016x}", key.high, key.low);
}

inline rollring::Amount sum_of(const DropAmounts& dropped) {
    rollring::Amount sum;
    for (const rollring::Amount& amount : dropped) sum += amount;
    return sum;
}

// The records of each reason.
Json json_of(const DropAmounts& dropped);

// The stats that have a table of their fields. Their templates are compiled once, in
// run_report.cpp and look_report.cpp: each command would compile the code of every field again.
template <class Stat>
concept HasFields = requires(const Stat& stat) { each_field(&stat, [](const auto&) {}); };

// Adds all fields of `stat`.
template <HasFields Stat>
void add_fields(Json& to, const Stat& stat);

template <HasFields Stat>
Json json_of(const Stat& stat) {
    Json json = Json::object();
    add_fields(json, stat);
    return json;
}

// All fields of a stash's account, and whether it is balanced.
void add_account(Json& to, const StashAccount& account);

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
