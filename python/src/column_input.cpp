#include "column_input.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "errors.hpp"
#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::python {
namespace {

struct InputHelpers {
    nb::object as_buffer;
    nb::object as_json;
    nb::object as_images;
    nb::object as_versions;

    static bool is_list(nb::handle object) {
        return PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0;
    }
};
InputHelpers& input_helpers() {
    static auto* made = new InputHelpers();  // never freed: used while the interpreter ends
    return *made;
}

// The dtype of a letter of struct; none for unsupported letters.
std::optional<DType> dtype_of_letter(const char* format, Py_ssize_t item_bytes) {
    if (format == nullptr) return dtype_u8;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
    const auto bits = static_cast<std::uint8_t>(item_bytes * 8);
    switch (format[0]) {
        case '?':
            return dtype_bool;
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q':
            return DType{0, bits};
        case 'B':
        case 'c':
        case 'H':
        case 'I':
        case 'L':
        case 'Q':
            return DType{1, bits};
        case 'e':
        case 'f':
        case 'd':
            return DType{2, bits};
        default:
            return std::nullopt;
    }
}

[[noreturn]] void mismatch(const Column& declared, const std::string& what) {
    raise("bad_record",
          "column '" + declared.name + "' is " + declared.dtype.to_string() + ": " + what);
}

// Clears the error of a failed conversion attempt. Any other exception, such as KeyboardInterrupt,
// propagates.
void clear_refusal() {
    if (PyErr_Occurred() == nullptr) return;
    for (PyObject* kind :
         {PyExc_BufferError, PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError}) {
        if (PyErr_ExceptionMatches(kind) == 0) continue;
        PyErr_Clear();
        return;
    }
    throw nb::python_error();
}

// Numbers keep their kind: token ids are never truncated from floats.
bool same_kind(DType from, DType to) {
    const auto floats = [](DType dtype) { return dtype.code == 2 || dtype.code == 4; };
    return floats(from) == floats(to) && can_convert(from, to);
}

bool is_json(std::uint16_t column) {
    switch (static_cast<Std>(column)) {
        case Std::messages:
        case Std::generation_params:
        case Std::overrides:
        case Std::group_overrides:
        case Std::extra:
            return true;
        default:
            return false;
    }
}

// Elements of a list into `to`, of type T. False if an element is not such a number; an exception
// may be set.
template <class T>
bool take_numbers(PyObject* list, Py_ssize_t count, std::byte* to) {
    auto* target = reinterpret_cast<T*>(to);
    const bool is_list = PyList_Check(list) != 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject* item = is_list ? PyList_GetItem(list, i) : PyTuple_GetItem(list, i);
        if (item == nullptr) return false;
        if constexpr (std::is_same_v<T, std::uint64_t>) {
            target[i] = PyLong_AsUnsignedLongLong(item);
            if (target[i] == static_cast<T>(-1) && PyErr_Occurred() != nullptr) return false;
        } else if constexpr (std::is_integral_v<T>) {
            const long long value = PyLong_AsLongLong(item);
            if (value == -1 && PyErr_Occurred() != nullptr) return false;
            if (!std::in_range<T>(value)) return false;
            target[i] = static_cast<T>(value);
        } else {
            const double value = PyFloat_AsDouble(item);
            if (value == -1 && PyErr_Occurred() != nullptr) return false;
            target[i] = static_cast<T>(value);
        }
    }
    return true;
}

bool take_numbers_as(DType dtype, PyObject* list, Py_ssize_t count, std::byte* to) {
    bool taken = false;
    const bool is_own = with_number(dtype, [&]<class T>(T) {
        taken = take_numbers<T>(list, count, to);
        return true;
    });
    if (is_own) return taken;
    std::vector<double> numbers(static_cast<std::size_t>(count));
    auto* first = reinterpret_cast<std::byte*>(numbers.data());
    return take_numbers<double>(list, count, first) &&
           convert(dtype_f64, first, dtype, to, numbers.size());
}

// Raises an error that names the first bad element.
[[noreturn]] void blame_element(const Column& declared, nb::handle list, Py_ssize_t count) {
    std::array<std::byte, 16> scratch{};
    for (Py_ssize_t i = 0; i < count; i++) {
        const nb::object element = nb::steal(PySequence_GetItem(list.ptr(), i));
        const nb::tuple alone = nb::make_tuple(element);
        if (take_numbers_as(declared.dtype, alone.ptr(), 1, scratch.data())) continue;
        clear_refusal();
        const bool nested =
            PySequence_Check(element.ptr()) != 0 && PyUnicode_Check(element.ptr()) == 0;
        const bool fraction = PyFloat_Check(element.ptr()) != 0;
        const bool whole = PyLong_Check(element.ptr()) != 0;
        mismatch(declared, "element " + std::to_string(i) + " is " + shown(element) +
                               (nested     ? ": give a flat list, of one dimension"
                                : fraction ? ": give whole numbers"
                                : whole    ? ", which is out of range"
                                           : ", which is not a number"));
    }
    mismatch(declared, "an element of the list is not a number of this kind");
}

}  // namespace

std::string shown(nb::handle value) {
    constexpr std::size_t most = 80;
    PyObject* made = value.ptr() == nullptr ? nullptr : PyObject_ASCII(value.ptr());
    if (made == nullptr) {
        PyErr_Clear();
        return "an object that cannot be shown";
    }
    auto text = nb::cast<std::string>(nb::steal(made));
    if (text.size() > most) text = text.substr(0, most - 3) + "...";
    return text;
}

void set_helpers(nb::object as_buffer, nb::object as_json, nb::object as_images,
                 nb::object as_versions) {
    InputHelpers& to = input_helpers();
    to.as_buffer = std::move(as_buffer);
    to.as_json = std::move(as_json);
    to.as_images = std::move(as_images);
    to.as_versions = std::move(as_versions);
}

// Text with a lone surrogate is not UTF-8: in JSON the half is escaped, elsewhere it becomes the
// three bytes that the program `rollring` escapes when it writes JSON.
std::string_view ColumnInput::utf8_of(nb::handle text, bool as_json) {
    Py_ssize_t bytes = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &bytes);
    if (utf8 != nullptr) return {utf8, static_cast<std::size_t>(bytes)};
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw nb::python_error();
    PyErr_Clear();
    PyObject* encoded = PyUnicode_AsEncodedString(text.ptr(), "utf-8",
                                                  as_json ? "backslashreplace" : "surrogatepass");
    if (encoded == nullptr) throw nb::python_error();
    texts_.push_back(nb::steal(encoded));
    char* data = nullptr;
    if (PyBytes_AsStringAndSize(encoded, &data, &bytes) != 0) throw nb::python_error();
    return {data, static_cast<std::size_t>(bytes)};
}

ColumnInput::~ColumnInput() {
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

void ColumnInput::add(Draft& draft, const Schema& schema, std::uint16_t column, nb::handle object) {
    const Column& declared = schema.columns()[column];
    PyObject* raw = object.ptr();
    const bool is_text = PyUnicode_Check(raw) != 0;
    if (static_cast<Std>(column) == Std::user) draft.meta.user_is_text = is_text;
    if (is_text && declared.dtype != dtype_u8) {
        mismatch(declared, "it was given text, " + shown(object) + ": give numbers");
    }
    if (is_text) return add_text(draft, column, utf8_of(object, is_json(column)));
    if (PyObject_CheckBuffer(raw) != 0) {
        Py_buffer& buffer = buffers_.emplace_back();
        if (PyObject_GetBuffer(raw, &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) == 0) {
            const auto dtype = dtype_of_letter(buffer.format, buffer.itemsize);
            if (dtype) return add_buffer(draft, declared, column, buffer, *dtype);
            PyBuffer_Release(&buffer);
        }
        buffers_.pop_back();  // not contiguous, or foreign: the helper converts it, or raises
        clear_refusal();
    } else if (static_cast<Std>(column) == Std::images && input_helpers().is_list(object)) {
        nb::object text = input_helpers().as_images(object);
        texts_.push_back(text);
        return add(draft, schema, column, text);
    } else if (is_json(column)) {
        nb::object text = input_helpers().as_json(object, declared.name);
        texts_.push_back(text);
        return add(draft, schema, column, text);
    } else if (PyList_Check(raw) || PyTuple_Check(raw)) {
        const bool flat = declared.dims.empty();
        if (flat) return add_numbers(draft, declared, column, object);
    }
    const nb::object made =
        input_helpers().as_buffer(object, declared.name, declared.dtype.to_string());
    texts_.push_back(made);
    Py_buffer& buffer = buffers_.emplace_back();
    const nb::object array = made[0];
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        buffers_.pop_back();
        throw nb::python_error();
    }
    const auto dtype = DType::parse(nb::cast<std::string>(made[1]));
    if (!dtype || dtype->bytes() != static_cast<std::uint32_t>(buffer.itemsize)) {
        mismatch(declared, "rollring does not support the dtype of this array");
    }
    add_buffer(draft, declared, column, buffer, *dtype);
}

std::optional<std::uint32_t> ColumnInput::add_versions(Draft& draft, const Schema& schema,
                                                       nb::handle object) {
    const auto column = static_cast<std::uint16_t>(Std::policy_version);
    const nb::object made = input_helpers().as_versions(object);
    texts_.push_back(made);
    Py_buffer& buffer = buffers_.emplace_back();
    if (PyObject_GetBuffer(made.ptr(), &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        buffers_.pop_back();
        throw nb::python_error();
    }
    if (buffer.ndim == 2) {
        add_buffer(draft, schema.columns()[column], column, buffer, dtype_i64);
        return std::nullopt;
    }
    const auto* const first = static_cast<const std::int64_t*>(buffer.buf);
    const auto count = static_cast<std::size_t>(buffer.len) / sizeof(std::int64_t);
    const std::vector<std::int64_t> rows = version_runs({first, count});
    auto& kept = converted_.emplace_back(rows.size() * sizeof(std::int64_t));
    if (!kept.empty()) std::memcpy(kept.data(), rows.data(), kept.size());
    draft.add({column,
               dtype_i64,
               {static_cast<std::uint32_t>(rows.size() / 2), 2, 0, 0},
               2,
               kept.empty() ? static_cast<const void*>("") : kept.data()});
    return static_cast<std::uint32_t>(count);
}

void ColumnInput::add_buffer(Draft& draft, const Column& declared, std::uint16_t column,
                             Py_buffer& buffer, DType dtype) {
    if (buffer.ndim > 4) mismatch(declared, "an array may have 4 dimensions at most");
    DraftColumn to{.column = column, .dtype = dtype, .shape = {1, 0, 0, 0}, .dims = 1, .data = ""};
    if (buffer.ndim > 0) to.dims = static_cast<std::uint8_t>(buffer.ndim);
    for (int i = 0; i < buffer.ndim; i++) {
        if (buffer.shape[i] > std::numeric_limits<std::uint32_t>::max())
            mismatch(declared, "an array may have 2^32 - 1 rows at most");
        to.shape[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(buffer.shape[i]);
    }
    const auto elements =
        static_cast<std::uint64_t>(buffer.len / std::max<Py_ssize_t>(buffer.itemsize, 1));
    const bool keeps = dtype == declared.dtype || declared.accepts == Accepts::any ||
                       (declared.accepts == Accepts::any_integer && dtype.is_integer());
    if (keeps) {
        if (buffer.len > 0) to.data = buffer.buf;
    } else {
        if (!same_kind(dtype, declared.dtype)) {
            mismatch(declared, "it was given " + dtype.to_string());
        }
        auto& made = converted_.emplace_back(elements * declared.dtype.bytes());
        if (!convert(dtype, static_cast<const std::byte*>(buffer.buf), declared.dtype, made.data(),
                     elements)) {
            mismatch(declared, "a number is out of range");
        }
        to.dtype = declared.dtype;
        if (!made.empty()) to.data = made.data();
    }
    draft.add(to);
}

void ColumnInput::add_numbers(Draft& draft, const Column& declared, std::uint16_t column,
                              nb::handle list) {
    const Py_ssize_t count = PySequence_Size(list.ptr());
    auto& made = converted_.emplace_back(static_cast<std::size_t>(count) * declared.dtype.bytes());
    if (!take_numbers_as(declared.dtype, list.ptr(), count, made.data())) {
        clear_refusal();
        blame_element(declared, list, count);
    }
    draft.add({column,
               declared.dtype,
               {static_cast<std::uint32_t>(count), 0, 0, 0},
               1,
               made.empty() ? static_cast<const void*>("") : made.data()});
}

void ColumnInput::add_text(Draft& draft, std::uint16_t column, std::string_view text) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max())
        raise("too_large", "a text of " + std::to_string(text.size()) + " B");
    draft.add(
        {column, dtype_u8, {static_cast<std::uint32_t>(text.size()), 0, 0, 0}, 1, text.data()});
}

}  // namespace rollring::python
