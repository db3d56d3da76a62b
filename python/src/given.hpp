#pragma once
// The fields that Python gives for one record, as a draft.

#include <cstdint>
#include <optional>
#include <string_view>

#include "column_input.hpp"
#include "errors.hpp"
#include "nb.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::python {

std::string_view text_of(nb::handle name);

template <class T>
T number(nb::handle value, const char* field) {
    try {
        return nb::cast<T>(value);
    } catch (const nb::cast_error&) {
        raise("bad_record",
              std::string(field) + " must be " + kind_of<T>() + ", not " + shown(value));
    }
}

// numpy's bool is not Python's.
template <>
inline bool number<bool>(nb::handle value, const char* field) {
    if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
    if (nb::cast<std::string>(value.type().attr("__module__")) == "numpy" &&
        nb::cast<std::string>(value.type().attr("__name__")).starts_with("bool")) {
        return PyObject_IsTrue(value.ptr()) == 1;
    }
    raise("bad_record", std::string(field) + ": " + shown(value) + " is neither True nor False");
}

// The draft points into `input`: both must live until it was pushed. None stands for a field that
// is not set. Raises BadRecordError with the reason.
struct Given {
    ColumnInput input;
    Draft draft;

    Given(const Schema& schema, nb::handle instance_id, nb::dict fields);
    // Room for `tokens` rows of each column, whose value is its inner shape.
    void add_holes(const Schema& schema, nb::dict columns, std::uint32_t tokens);
    // Call it once all columns are given.
    void check_versions() const;

  private:
    std::optional<std::uint32_t> versions_of_tokens_;  // a number per token: how many there were
};

// Fields of RolloutOutcome, by name.
RolloutOutcome outcome_of(nb::dict given);

}  // namespace rollring::python
