#pragma once
// Memory exposed to Python, and Python buffers used by C++.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "nb.hpp"

namespace rollring::python {

// Private memory that Python code may read and write, and that grows without being cleared.
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t bytes) { extend(bytes); }
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          capacity_(std::exchange(other.capacity_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        return *this;
    }
    ~Memory() { std::free(data_); }

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return size_; }

    // Appends `bytes` uninitialised bytes.
    std::byte* extend(std::size_t bytes) {
        if (size_ + bytes > capacity_) {
            const std::size_t wanted = capacity_ == 0 ? bytes : 2 * capacity_ + bytes;
            void* grown = std::realloc(data_, wanted);
            if (grown == nullptr) throw std::bad_alloc();
            data_ = static_cast<std::byte*>(grown);
            capacity_ = wanted;
        }
        return data_ + std::exchange(size_, size_ + bytes);
    }
    void append(const void* from, std::size_t bytes) {
        if (bytes != 0) std::memcpy(extend(bytes), from, bytes);
    }

  private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

// The contiguous buffer of any Python object, as long as this lives. Requires the GIL.
class Bytes {
  public:
    // `flags`: PyBUF_WRITABLE to write into it.
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
