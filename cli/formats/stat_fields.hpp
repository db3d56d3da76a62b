#pragma once
// The definition of add_fields(), for the two files that compile it: one for the reports of a run,
// and one for those of a look from outside, which most programs do without.

#include "cli/formats/stat_report.hpp"

namespace rollring::cli {

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

inline void add_amount(Json& to, std::string_view name, const rollring::Amount& amount) {
    to[fmt::format("records_{}", name)] = amount.records;
    to[fmt::format("tokens_{}", name)] = amount.tokens;
}

// Not inlined: a stat has tens of fields of few types.
template <HasFields Stat>
void add_fields(Json& to, const Stat& stat) {
    for_each_field(stat, [&]<class T> [[gnu::noinline]] (const auto& field, const T& value) {
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

}  // namespace rollring::cli
