#include "errors.hpp"

namespace rollring::python {
namespace {

// Never freed: an exception may be raised while the interpreter ends.
nb::dict& error_classes() {
    static auto* classes = new nb::dict();
    return *classes;
}

}  // namespace

void set_error_classes(nb::dict classes) {
    error_classes() = std::move(classes);
}

void raise(std::string_view code, const std::string& message) {
    nb::dict& classes = error_classes();
    const nb::str key(code.data(), code.size());
    const nb::object error = classes[classes.contains(key) ? key : nb::str("")];
    // Names may contain invalid UTF-8, and a message has to be printable.
    const nb::object text = nb::steal(PyUnicode_DecodeUTF8(
        message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
    if (!text.is_valid()) throw nb::python_error();
    PyErr_SetObject(error.ptr(), error(text, key).ptr());
    throw nb::python_error();
}

void raise(const Error& error) {
    const std::string told = error.to_string();  // with the text of the errno
    raise(name(error.code), told.substr(name(error.code).size() + 2));
}

std::string did_you_mean(std::string_view given, const nb::list& known) {
    const nb::object close = nb::module_::import_("difflib").attr("get_close_matches");
    const nb::list found(close(nb::str(given.data(), given.size()), known, 1));
    if (nb::len(found) == 0) return {};
    return ": did you mean " + nb::cast<std::string>(found[0]) + "?";
}

}  // namespace rollring::python
