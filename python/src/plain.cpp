// PlainCodec: trees of plain data as bytes, and back. It runs no code that the bytes name.
//
//   value  N T F | i 8 bytes | I hex digits | d 8 bytes | s UTF-8 | b bytes | B bytearray
//          l values | t values | m keys and values | a array
//   array  its kind (1), its dtype, dims (1), 8 bytes for each, then its bytes, aligned
//   texts, bytes and containers begin with their length, in 8 bytes

#include "bindings.hpp"

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "memory.hpp"

namespace rollring::python {
namespace {

constexpr std::size_t array_alignment = 16;  // malloc's alignment

// From rollring/extras/codecs.py: pack(value) -> (kind, dtype, shape, buffer), or raises TypeError;
// unpack(memory, offset, bytes, kind, dtype, shape).
struct ArrayHelpers {
    nb::object array_type;  // numpy.ndarray
    nb::object pack;
    nb::object unpack;
};
// The kinds of arrays in rollring/extras/codecs.py.
constexpr std::uint8_t kind_array = 0;
ArrayHelpers& array_helpers() {
    static auto* made = new ArrayHelpers();  // never freed: used while the interpreter ends
    return *made;
}

// A buffer as long as this lives; none if the object has none of this kind.
class Shown {
  public:
    Shown(PyObject* of, int flags) : there_(PyObject_GetBuffer(of, &buffer_, flags) == 0) {
        if (!there_) PyErr_Clear();
    }
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;
    ~Shown() {
        if (there_) PyBuffer_Release(&buffer_);
    }
    explicit operator bool() const { return there_; }
    const Py_buffer* operator->() const { return &buffer_; }
    [[nodiscard]] std::string_view bytes() const {
        return {static_cast<const char*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
    }

  private:
    Py_buffer buffer_{};
    bool there_;
};

// numpy's name for a letter of struct; empty for all but plain numbers.
std::string dtype_of(const Shown& shown) {
    const std::string_view format = shown->format != nullptr ? shown->format : "";
    if (format.size() != 1) return {};
    const auto named = [&](char kind) {
        return (shown->itemsize == 1 ? "|" : "<") + (kind + std::to_string(shown->itemsize));
    };
    if (format == "?") return named('b');
    if (std::string_view("bhilq").contains(format)) return named('i');
    if (std::string_view("BHILQ").contains(format)) return named('u');
    if (std::string_view("efd").contains(format)) return named('f');
    return {};
}

// Deep trees raise RecursionError instead of exhausting the stack.
class Depth {
  public:
    Depth() {
        if (Py_EnterRecursiveCall(" in a RingQueue's item") != 0) throw nb::python_error();
    }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ~Depth() { Py_LeaveRecursiveCall(); }
};

nb::object owned(PyObject* made) {
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

class PlainWriter {
  public:
    Memory made;

    void value(PyObject* it) {
        if (it == Py_None) return tag('N');
        if (it == Py_True) return tag('T');
        if (it == Py_False) return tag('F');
        if (PyLong_CheckExact(it)) return integer(it);
        if (PyFloat_CheckExact(it)) return number('d', PyFloat_AsDouble(it));
        if (PyUnicode_CheckExact(it)) return unicode(it);
        if (PyBytes_CheckExact(it)) {
            return bytes('b', {PyBytes_AsString(it), static_cast<std::size_t>(PyBytes_Size(it))});
        }
        if (PyByteArray_CheckExact(it)) {
            return bytes(
                'B', {PyByteArray_AsString(it), static_cast<std::size_t>(PyByteArray_Size(it))});
        }
        const Depth depth;
        // Lists and dicts are copied first: packing an array may run any code.
        if (PyList_CheckExact(it)) return several('l', owned(PyList_AsTuple(it)));
        if (PyTuple_CheckExact(it)) return several('t', nb::borrow(it));
        if (PyDict_CheckExact(it)) return mapping(owned(PyDict_Copy(it)));
        array(it);
    }

  private:
    void tag(char letter) { made.append(&letter, 1); }
    template <class T>
    void number(char letter, T of) {
        tag(letter);
        made.append(&of, sizeof of);
    }
    void bytes(char letter, std::string_view of) {
        number(letter, static_cast<std::uint64_t>(of.size()));
        made.append(of.data(), of.size());
    }
    void integer(PyObject* it) {
        int overflow = 0;
        const long long small = PyLong_AsLongLongAndOverflow(it, &overflow);
        if (overflow == 0) return number('i', static_cast<std::int64_t>(small));
        bytes('I', nb::cast<std::string>(owned(PyNumber_ToBase(it, 16))));
    }
    void unicode(PyObject* it) {
        const nb::object utf8 = owned(PyUnicode_AsEncodedString(it, "utf-8", "surrogatepass"));
        bytes('s',
              {PyBytes_AsString(utf8.ptr()), static_cast<std::size_t>(PyBytes_Size(utf8.ptr()))});
    }
    void several(char letter, const nb::object& tuple) {
        const Py_ssize_t count = PyTuple_Size(tuple.ptr());
        number(letter, static_cast<std::uint64_t>(count));
        for (Py_ssize_t i = 0; i < count; i++) value(PyTuple_GetItem(tuple.ptr(), i));
    }
    void mapping(const nb::object& dict) {
        number('m', static_cast<std::uint64_t>(PyDict_Size(dict.ptr())));
        PyObject* key = nullptr;
        PyObject* of = nullptr;
        for (Py_ssize_t at = 0; PyDict_Next(dict.ptr(), &at, &key, &of) != 0;) {
            value(key);
            value(of);
        }
    }
    void array(PyObject* it) {
        if (reinterpret_cast<PyObject*>(Py_TYPE(it)) == array_helpers().array_type.ptr()) {
            const Shown shown(it, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS);
            if (const std::string dtype = shown ? dtype_of(shown) : ""; !dtype.empty()) {
                const std::vector<std::int64_t> shape(shown->shape, shown->shape + shown->ndim);
                return array(kind_array, dtype, shape, shown.bytes());
            }
        }
        const nb::object packed = array_helpers().pack(nb::handle(it));
        const nb::object from = packed[3];
        const Shown shown(from.ptr(), PyBUF_SIMPLE);
        if (!shown) raise("bad_record", "an array without a buffer");
        array(nb::cast<std::uint8_t>(packed[0]), nb::cast<std::string>(packed[1]),
              nb::cast<std::vector<std::int64_t>>(packed[2]), shown.bytes());
    }
    void array(std::uint8_t kind, std::string_view dtype, const std::vector<std::int64_t>& shape,
               std::string_view of) {
        number('a', kind);
        bytes('s', dtype);
        number('a', static_cast<std::uint8_t>(shape.size()));
        made.append(shape.data(), shape.size() * sizeof(std::int64_t));
        number('a', static_cast<std::uint64_t>(of.size()));
        while (made.size() % array_alignment != 0) tag(0);
        made.append(of.data(), of.size());
    }
};

class PlainReader {
  public:
    // `from` of the memory, which arrays keep alive.
    PlainReader(nb::object memory, std::span<const std::byte> from, std::size_t offset)
        : memory_(std::move(memory)), from_(from), offset_(offset) {}

    nb::object whole() {
        nb::object made = value();
        if (at_ != from_.size()) bad();
        return made;
    }

  private:
    [[noreturn]] static void bad() {
        raise("bad_record",
              "this record was not made by PlainCodec: use the same codec in all processes that "
              "put and get");
    }
    const char* take(std::size_t bytes) {
        if (from_.size() - at_ < bytes) bad();
        return reinterpret_cast<const char*>(from_.data()) + std::exchange(at_, at_ + bytes);
    }
    template <class T>
    T number() {
        T made{};
        std::memcpy(&made, take(sizeof made), sizeof made);
        return made;
    }
    std::string_view bytes() {
        const auto length = number<std::uint64_t>();
        return {take(length), length};
    }
    // Each value has one byte at least, so no more values are made than there can be.
    Py_ssize_t count(std::size_t bytes_each) {
        const auto values = number<std::uint64_t>();
        if (values > (from_.size() - at_) / bytes_each) bad();
        return static_cast<Py_ssize_t>(values);
    }
    static Py_ssize_t length(std::string_view of) { return static_cast<Py_ssize_t>(of.size()); }

    nb::object value() {
        switch (*take(1)) {
            case 'N':
                return nb::none();
            case 'T':
                return nb::bool_(true);
            case 'F':
                return nb::bool_(false);
            case 'i':
                return owned(PyLong_FromLongLong(number<std::int64_t>()));
            case 'I':
                return owned(PyLong_FromString(std::string(bytes()).c_str(), nullptr, 16));
            case 'd':
                return owned(PyFloat_FromDouble(number<double>()));
            case 's': {
                const std::string_view utf8 = bytes();
                return owned(PyUnicode_DecodeUTF8(utf8.data(), length(utf8), "surrogatepass"));
            }
            case 'b': {
                const std::string_view of = bytes();
                return owned(PyBytes_FromStringAndSize(of.data(), length(of)));
            }
            case 'B': {
                const std::string_view of = bytes();
                return owned(PyByteArray_FromStringAndSize(of.data(), length(of)));
            }
            case 'l':
                return list();
            case 't':
                return owned(PyList_AsTuple(list().ptr()));
            case 'm':
                return mapping();
            case 'a':
                return array();
            default:
                bad();
        }
    }
    nb::object list() {
        const Depth depth;
        const Py_ssize_t values = count(1);
        nb::list made;
        for (Py_ssize_t i = 0; i < values; i++) made.append(value());
        return made;
    }
    nb::object mapping() {
        const Depth depth;
        const Py_ssize_t pairs = count(2);
        nb::object made = owned(PyDict_New());
        for (Py_ssize_t i = 0; i < pairs; i++) {
            const nb::object key = value();
            if (PyDict_SetItem(made.ptr(), key.ptr(), value().ptr()) != 0) throw nb::python_error();
        }
        return made;
    }
    nb::object array() {
        const auto kind = number<std::uint8_t>();
        if (*take(1) != 's') bad();
        const std::string_view dtype = bytes();
        if (*take(1) != 'a') bad();
        const auto dims = number<std::uint8_t>();
        nb::list shape;
        for (std::uint8_t i = 0; i < dims; i++) shape.append(number<std::int64_t>());
        if (*take(1) != 'a') bad();
        const auto length = number<std::uint64_t>();
        take((array_alignment - at_ % array_alignment) % array_alignment);
        const std::size_t at = offset_ + at_;
        take(length);
        return array_helpers().unpack(memory_, at, length, kind, std::string(dtype),
                                      nb::tuple(shape));
    }

    nb::object memory_;
    std::span<const std::byte> from_;
    std::size_t offset_;
    std::size_t at_ = 0;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    if (!nb::inst_ready(self)) {
        PyErr_SetString(PyExc_BufferError, "this memory was never allocated");
        return -1;
    }
    const auto* memory = nb::inst_ptr<Memory>(self);
    return PyBuffer_FillInfo(view, self, memory->data(), static_cast<Py_ssize_t>(memory->size()), 0,
                             flags);
}

}  // namespace

void bind_plain(nb::module_& module) {
    static PyType_Slot slots[] = {
        {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
        {0, nullptr},
    };
    nb::class_<Memory>(module, "Memory", nb::type_slots(slots));
    module.def(
        "encode_plain",
        [](nb::handle item) {
            PlainWriter writer;
            writer.value(item.ptr());
            return std::move(writer.made);
        },
        nb::arg("item").none());
    module.def("decode_plain", [](nb::object memory, std::size_t offset, std::size_t bytes) {
        const auto& all = nb::cast<const Memory&>(memory);
        if (offset > all.size() || bytes > all.size() - offset) {
            raise("invalid_argument", "there are not that many bytes");
        }
        return PlainReader(memory, std::span(all.data(), all.size()).subspan(offset, bytes), offset)
            .whole();
    });
    module.def("set_array_helpers", [](nb::object array_type, nb::object pack, nb::object unpack) {
        array_helpers() = {std::move(array_type), std::move(pack), std::move(unpack)};
    });
}

}  // namespace rollring::python
