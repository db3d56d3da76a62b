#pragma once
// One record of a leased batch in Python: a field or a column runs no Python code, because trainers
// read thousands of records a second.

#include <memory>

#include "lent.hpp"
#include "nb.hpp"

namespace rollring::python {

// A list with an instance of `kind`, a class derived from SequenceView, for each sequence of the
// batch.
nb::list made_sequences(const std::shared_ptr<Lent>& lent, nb::handle kind);

// array(window): an array over it. decoded(column, bytes, user_is_text): the value of the bytes of
// a column of `texts`.
void set_view_helpers(nb::object array, nb::object decoded, nb::object texts);

void bind_sequence(nb::module_& module);

}  // namespace rollring::python
