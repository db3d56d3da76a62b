#pragma once
// Contiguous bytes of any object that shows them, for as long as this lives. With the GIL.

#include <cstddef>
#include <span>

#include "nb.hpp"

namespace rollring::python {

class Bytes {
  public:
    // `flags`: PyBUF_WRITABLE where they are to be written.
    explicit Bytes(nb::handle of, int flags = PyBUF_SIMPLE) {
        if (PyObject_GetBuffer(of.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes() { PyBuffer_Release(&buffer_); }

    [[nodiscard]] std::span<const std::byte> get() const { return writable(); }
    [[nodiscard]] std::span<std::byte> writable() const {
        return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
    }

  private:
    Py_buffer buffer_{};
};

}  // namespace rollring::python
