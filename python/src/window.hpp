#pragma once
// Memory of a ring that Python code may read, and its owner.
//
// A Loan is a leased batch or a reserved record. Its Windows are the arrays that Python has over
// it: they are counted, keep it alive, and prevent its return while one of them exists. In a forked
// child the parent continues to write to a window's memory: the child sees zeros there from the
// fork on, and its writes are visible to no other process.

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "forks.hpp"
#include "nb.hpp"
#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::python {

class Loan {
  public:
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    virtual ~Loan() = default;

    [[nodiscard]] bool inherited() const { return forks_ != fork_number(); }
    // "an array over token_ids of 'gsm8k/17', repetition 3 is" for one of the windows, with their
    // number.
    [[nodiscard]] std::string windows_text() const;
    [[nodiscard]] std::size_t windows() const { return windows_; }

  protected:
    // `all`: counts the windows of several loans; it must outlive this loan.
    explicit Loan(std::atomic<std::size_t>* all = nullptr) : all_(all) {}
    // Called when the last window is gone, with the GIL. Must not run Python code.
    virtual void on_free() {}
    // The contents of a window, only for an error's text.
    [[nodiscard]] virtual std::string name_of(std::uint16_t column, std::size_t item) const = 0;

  private:
    friend class Window;
    std::atomic<std::size_t> windows_ = 0;
    std::atomic<std::size_t>* all_;
    std::uint64_t forks_ = fork_number();
};

class Window {
  public:
    // `item`: the loan's number of a record.
    Window(std::shared_ptr<Loan> loan, const ColumnView& column, std::size_t item,
           std::span<std::byte> memory, bool writable);
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    ~Window();

    int get_buffer(PyObject* self, Py_buffer* view, int flags);

  private:
    friend class Loan;
    friend struct Windows;
    std::shared_ptr<Loan> loan_;
    std::uint16_t column_;
    std::size_t item_;
    DType dtype_;
    std::span<std::byte> memory_;
    std::size_t dims_;
    std::array<Py_ssize_t, 4> shape_{};
    std::array<Py_ssize_t, 4> strides_{};
    bool writable_;
    Window* before_ = nullptr;  // of all windows of this process
    Window* after_ = nullptr;
};

// struct's letter for a dtype, as KnownDType has it.
const char* letter_of(DType dtype);

void bind_window(nb::module_& module);

}  // namespace rollring::python
