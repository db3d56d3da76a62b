#include "targets.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "interned.hpp"

namespace rollring::python {
namespace {

struct NumpyHelpers {
    nb::object empty;
    nb::object kind;
    nb::object target;
    std::array<nb::object, std::size(known_dtypes)> dtypes;  // as known_dtypes
};
NumpyHelpers& numpy_helpers() {
    static auto* made = new NumpyHelpers();  // never freed: used while the interpreter ends
    return *made;
}

nb::handle numpy_dtype(DType dtype) {
    const auto* const known = std::ranges::find(known_dtypes, dtype, &KnownDType::dtype);
    if (known == std::end(known_dtypes)) return {};
    return numpy_helpers().dtypes[static_cast<std::size_t>(known - std::begin(known_dtypes))];
}

nb::tuple tuple_of(std::span<const std::uint64_t> lengths) {
    nb::list made;
    for (const std::uint64_t length : lengths) made.append(length);
    return nb::tuple(made);
}

std::span<const std::uint64_t> lengths_of(const ArrayShape& shape) {
    return std::span(shape.shape).first(shape.dims);
}

// Whether a gather may write into the array as it is: a C-contiguous, aligned one of this shape.
bool fits(const Py_buffer& array, const ArrayShape& shape) {
    const auto lengths = lengths_of(shape);
    return std::ranges::equal(std::span(array.shape, static_cast<std::size_t>(array.ndim)), lengths,
                              [](Py_ssize_t a, std::uint64_t b) { return std::cmp_equal(a, b); }) &&
           reinterpret_cast<std::uintptr_t>(array.buf) % shape.dtype.bytes() == 0;
}

}  // namespace

void set_numpy_helpers(nb::object empty, nb::object kind, nb::dict dtypes, nb::object target) {
    NumpyHelpers& to = numpy_helpers();
    to.empty = std::move(empty);
    to.kind = std::move(kind);
    to.target = std::move(target);
    for (std::size_t i = 0; i < to.dtypes.size(); i++) {
        const std::string_view name = known_dtypes[i].name;
        to.dtypes[i] = dtypes[nb::str(name.data(), name.size())];
    }
}

nb::object new_array(DType dtype, std::span<const std::uint64_t> shape) {
    return numpy_helpers().empty(tuple_of(shape), numpy_dtype(dtype));
}

// Without the checks in Python: those take longer than to copy the column of a few short records.
// False: not an array that needs none of them.
bool Targets::add_plain(nb::handle given, const ArrayShape& shape, GatherColumn& column) {
    const nb::handle own = numpy_dtype(shape.dtype);
    if (!own.is_valid() || !field<"dtype", nb::object>(given).is_none()) return false;
    nb::object out = field<"out", nb::object>(given);
    if (out.is_none()) {
        out = new_array(shape.dtype, lengths_of(shape));
    } else if (!out.type().is(numpy_helpers().kind) || !field<"dtype", nb::object>(out).is(own)) {
        return false;
    }
    Py_buffer& memory = held_.emplace_back();
    if (PyObject_GetBuffer(out.ptr(), &memory, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
        PyErr_Clear();
        held_.pop_back();
        return false;
    }
    if (!fits(memory, shape)) return false;
    column.to = {static_cast<std::byte*>(memory.buf), static_cast<std::size_t>(memory.len)};
    arrays_.append(std::move(out));
    return true;
}

Targets::~Targets() {
    for (Py_buffer& memory : held_) PyBuffer_Release(&memory);
}

void Targets::add(nb::handle given, const ArrayShape& shape, GatherColumn& column) {
    if (make_.is_none() && add_plain(given, shape, column)) return;
    const nb::handle make = make_.is_none() ? nb::handle(numpy_helpers().target) : make_;
    const nb::object made = make(given, shape.dtype.to_string(), tuple_of(lengths_of(shape)));
    column.dtype = DType::parse(field<"dtype", std::string>(made));
    column.to = {reinterpret_cast<std::byte*>(field<"address", std::uintptr_t>(made)),
                 field<"nbytes", std::uint64_t>(made)};
    arrays_.append(field<"out", nb::object>(made));
}

}  // namespace rollring::python
