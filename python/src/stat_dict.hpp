#pragma once
// A stat struct as a dict, by the table of its fields. All spans are in seconds.

#include <string>
#include <type_traits>
#include <vector>

#include "fields.hpp"
#include "nb.hpp"
#include "rollring/stat.hpp"

namespace rollring::python {

inline nb::dict amount(const Amount& value) {
    nb::dict made;
    made["records"] = value.records;
    made["tokens"] = value.tokens;
    return made;
}

template <class Stat>
nb::dict stat_dict(const Stat& stat) {
    nb::dict made;
    for_each_field(stat, [&](const auto& field, const auto& value) {
        using T = std::remove_cvref_t<decltype(value)>;
        const nb::str key(field.name.data(), field.name.size());
        if constexpr (std::is_enum_v<T>) {
            const std::string_view text = name(value);
            made[key] = nb::str(text.data(), text.size());
        } else if constexpr (std::is_same_v<T, Amount>) {
            made[key] = amount(value);
        } else if constexpr (std::is_same_v<T, decltype(StashAccount::dropped)>) {
            nb::dict dropped;
            for (std::size_t i = 0; i < value.size(); i++)
                dropped[std::string(name(static_cast<DropReason>(i))).c_str()] = amount(value[i]);
            made[key] = dropped;
        } else if constexpr (std::is_same_v<T, GroupKey>) {
            made[key] = nb::make_tuple(value.low, value.high);
        } else if constexpr (std::is_same_v<T, std::string>) {
            made[key] = text(value);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            nb::list texts;
            for (const std::string& one : value) texts.append(text(one));
            made[key] = texts;
        } else if (field.unit == FieldUnit::seconds || field.unit == FieldUnit::milliseconds) {
            if constexpr (std::is_same_v<T, std::int64_t>) {  // negative: unknown
                made[key] = value < 0 ? nb::object(nb::none())
                                      : nb::object(nb::float_(static_cast<double>(value) * 1e-9));
            }
        } else {
            made[key] = nb::cast(value);
        }
    });
    return made;
}

}  // namespace rollring::python
