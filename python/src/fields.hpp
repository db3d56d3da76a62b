#pragma once
// The fields of a record in Python.

#include <array>
#include <optional>
#include <string_view>

#include "nb.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::python {

inline nb::str text(std::string_view utf8) {
    PyObject* made = nb::detail::text_of(utf8);
    if (made == nullptr) throw nb::python_error();
    return nb::steal<nb::str>(made);
}

template <class T>
nb::object or_none(const std::optional<T>& value) {
    return value ? nb::cast(*value) : nb::none();
}

// The fields of Meta, by the names of Producer.push().
struct Field {
    const char* name;
    nb::object (*of)(const TrajectoryView& view);
};
inline constexpr std::array record_fields{
    Field{"instance_id",
          [](const TrajectoryView& v) -> nb::object { return text(v.instance_id()); }},
    Field{"visit", [](const TrajectoryView& v) { return nb::cast(v.meta().visit); }},
    Field{"repetition_id",
          [](const TrajectoryView& v) -> nb::object {
              const RepetitionId number = v.meta().repetition_id;
              return number.has_value() ? nb::cast(std::uint32_t{number}) : nb::none();
          }},
    Field{"group_size", [](const TrajectoryView& v) { return nb::cast(v.meta().group_size); }},
    Field{"subsequence_index",
          [](const TrajectoryView& v) { return nb::cast(v.meta().subsequence_index); }},
    Field{"last_subsequence",
          [](const TrajectoryView& v) { return nb::cast(v.meta().last_subsequence); }},
    Field{"attempt", [](const TrajectoryView& v) { return nb::cast(v.meta().attempt); }},
    Field{"source_id", [](const TrajectoryView& v) { return or_none(v.meta().source_id); }},
    Field{"status",
          [](const TrajectoryView& v) -> nb::object { return text(name(v.meta().status)); }},
    Field{"n_tokens", [](const TrajectoryView& v) { return nb::cast(v.n_tokens()); }},
    Field{"n_prompt", [](const TrajectoryView& v) { return nb::cast(v.meta().n_prompt); }},
    Field{"policy_version_min",
          [](const TrajectoryView& v) { return nb::cast(v.meta().policy_version_min); }},
    Field{"policy_version_max",
          [](const TrajectoryView& v) { return nb::cast(v.meta().policy_version_max); }},
    Field{"reward", [](const TrajectoryView& v) { return or_none(v.meta().reward); }},
    Field{"created_ns", [](const TrajectoryView& v) { return nb::cast(v.meta().created_ns); }},
    Field{"finished_ns", [](const TrajectoryView& v) { return nb::cast(v.meta().finished_ns); }},
    Field{"origin", [](const TrajectoryView& v) { return nb::cast(v.meta().origin); }},
};

inline nb::dict fields_of(const TrajectoryView& view) {
    nb::dict made;
    for (const Field& field : record_fields) made[field.name] = field.of(view);
    return made;
}

}  // namespace rollring::python
