#pragma once
// Casters for text between Python and C++, in place of nanobind's own, which reject a lone
// surrogate as a type error because it has no UTF-8. These casters encode it in the three bytes
// that ColumnInput writes for it: every call then knows a record by the name under which push()
// sent it, and C++ refuses a bad name with its own error.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <new>
#include <string>
#include <string_view>

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)

// Invalid bytes are replaced. Null, with a Python error, if memory is exhausted.
inline PyObject* text_of(std::string_view utf8) noexcept {
    const auto bytes = static_cast<Py_ssize_t>(utf8.size());
    PyObject* made = PyUnicode_DecodeUTF8(utf8.data(), bytes, "surrogatepass");
    if (made != nullptr || PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) == 0) return made;
    PyErr_Clear();
    return PyUnicode_DecodeUTF8(utf8.data(), bytes, "replace");
}

// `utf8` points into `from`, or into `kept` if `from` has a lone surrogate.
inline bool utf8_of(handle from, std::string_view& utf8, std::string& kept) noexcept {
    if (PyUnicode_Check(from.ptr()) == 0) return false;
    Py_ssize_t bytes = 0;
    if (const char* text = PyUnicode_AsUTF8AndSize(from.ptr(), &bytes); text != nullptr) {
        utf8 = {text, static_cast<std::size_t>(bytes)};
        return true;
    }
    PyErr_Clear();
    PyObject* encoded = PyUnicode_AsEncodedString(from.ptr(), "utf-8", "surrogatepass");
    if (encoded == nullptr) {
        PyErr_Clear();
        return false;
    }
    char* data = nullptr;
    bool got = PyBytes_AsStringAndSize(encoded, &data, &bytes) == 0;
    if (got) {
        try {
            kept.assign(data, static_cast<std::size_t>(bytes));
            utf8 = kept;
        } catch (const std::bad_alloc&) {
            got = false;
        }
    } else {
        PyErr_Clear();
    }
    Py_DECREF(encoded);
    return got;
}

template <>
struct type_caster<std::string> {
    NB_TYPE_CASTER(std::string, const_name("str"))

    bool from_python(handle from, std::uint32_t, cleanup_list*) noexcept {
        std::string_view utf8;
        if (!utf8_of(from, utf8, value)) return false;
        if (utf8.data() != value.data()) value = utf8;
        return true;
    }

    static handle from_cpp(const std::string& value, rv_policy, cleanup_list*) noexcept {
        return text_of(value);
    }
};

template <>
struct type_caster<std::string_view> {
    NB_TYPE_CASTER(std::string_view, const_name("str"))

    bool from_python(handle from, std::uint32_t, cleanup_list*) noexcept {
        return utf8_of(from, value, kept_);
    }

    static handle from_cpp(std::string_view value, rv_policy, cleanup_list*) noexcept {
        return text_of(value);
    }

  private:
    std::string kept_;
};

NAMESPACE_END(detail)
NAMESPACE_END(NB_NAMESPACE)
