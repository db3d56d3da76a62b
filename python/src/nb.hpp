#pragma once
// nanobind with all the casters that we use: a file that lacks one would cast the same type in
// another way, under the same name.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "text_casters.hpp"

namespace rollring::python {
namespace nb = nanobind;
}
