#pragma once
// Arrays of other packages, by DLPack.

#include "nb.hpp"

namespace rollring::python {

void bind_dlpack(nb::module_& module);

}  // namespace rollring::python
