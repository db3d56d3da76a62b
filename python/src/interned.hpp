#pragma once
// Attributes of Python objects by names that are known when this is compiled.

#include <algorithm>
#include <cstddef>

#include "nb.hpp"

namespace rollring::python {

template <std::size_t length>
struct Name {
    char text[length];
    consteval Name(const char (&given)[length])  // NOLINT(google-explicit-constructor): a literal
        : text{} {
        std::ranges::copy(given, text);
    }
};

// The name is interned once: Python finds such a name in its cache of a type's attributes.
template <Name name, class T>
T field(nb::handle of) {
    static PyObject* const interned = PyUnicode_InternFromString(name.text);
    if (interned == nullptr) throw nb::python_error();
    PyObject* const found = PyObject_GetAttr(of.ptr(), interned);
    if (found == nullptr) throw nb::python_error();
    return nb::cast<T>(nb::steal(found));
}

}  // namespace rollring::python
