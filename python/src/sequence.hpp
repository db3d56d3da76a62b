#pragma once
// One record of a leased batch, as Python has it: Python code that looks at thousands of them a
// second runs none of its own for a field or a column.

#include <memory>

#include "lent.hpp"
#include "nb.hpp"

namespace rollring::python {

// A list with an instance of `kind`, a class derived from SequenceView, for each of the batch's.
nb::list made_sequences(const std::shared_ptr<Lent>& lent, nb::handle kind);

// array(window): an array over it. decoded(column, bytes, user_is_text): the value that the bytes
// of a column of `texts` mean.
void set_view_helpers(nb::object array, nb::object decoded, nb::object texts);

void bind_sequence(nb::module_& module);

}  // namespace rollring::python
