#include "window.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace rollring::python {
namespace {

std::atomic<std::uint64_t> forks{0};

}  // namespace

std::uint64_t fork_number() {
    return forks;
}

// All windows of this process. Never destroyed: windows may go after everything else.
struct Windows {
    std::mutex mutex;
    Window* first = nullptr;

    static Windows& all() {
        static auto* windows = new Windows();
        return *windows;
    }

    // The child maps zeros over the window. The parent may have given that memory to another record
    // by then, but no Python code has run here since the fork.
    void close_in_child() const {
        const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
        for (const Window* window = first; window != nullptr; window = window->after_) {
            const auto begin = reinterpret_cast<std::uintptr_t>(window->memory_.data());
            const std::uintptr_t from = begin / page * page;
            const std::uintptr_t to = (begin + window->memory_.size() + page - 1) / page * page;
            if (to == from) continue;
            // If this fails, the child's array continues to show the ring.
            (void)::mmap(reinterpret_cast<void*>(from), to - from, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
    }
};

std::string Loan::windows_text() const {
    const Windows& all = Windows::all();
    for (const Window* window = all.first; window != nullptr; window = window->after_) {
        if (window->loan_.get() != this) continue;
        const std::string name = name_of(window->column_, window->item_);
        return windows_ == 1
                   ? "an array over " + name + " is"
                   : std::to_string(windows_) + " arrays, over " + name + " and others, are";
    }
    return "no array is";
}

Window::Window(std::shared_ptr<Loan> loan, const ColumnView& column, std::size_t item,
               std::span<std::byte> memory, bool writable)
    : loan_(std::move(loan)),
      column_(column.column),
      item_(item),
      dtype_(column.dtype),
      memory_(memory),
      dims_(column.dims),
      writable_(writable) {
    Py_ssize_t stride = dtype_.bytes();
    for (std::size_t i = dims_; i-- > 0;) {
        shape_[i] = column.shape[i];
        strides_[i] = stride;
        stride *= shape_[i];
    }
    Windows& all = Windows::all();
    const std::scoped_lock lock(all.mutex);
    after_ = std::exchange(all.first, this);
    if (after_ != nullptr) after_->before_ = this;
    loan_->windows_++;
    if (loan_->all_ != nullptr) ++*loan_->all_;
}

Window::~Window() {
    {
        Windows& all = Windows::all();
        const std::scoped_lock lock(all.mutex);
        (before_ == nullptr ? all.first : before_->after_) = after_;
        if (after_ != nullptr) after_->before_ = before_;
    }
    if (loan_->all_ != nullptr) --*loan_->all_;
    if (--loan_->windows_ == 0 && !loan_->inherited()) loan_->on_free();
}

const char* letter_of(DType dtype) {
    const auto* known = std::ranges::find(known_dtypes, dtype, &KnownDType::dtype);
    return known != std::end(known_dtypes) ? known->letter : "B";
}

int Window::get_buffer(PyObject* self, Py_buffer* view, int flags) {
    if ((flags & PyBUF_WRITABLE) != 0 && !writable_) {
        PyErr_SetString(PyExc_BufferError, "arrays over a batch are read-only: copy them");
        return -1;
    }
    *view = {};
    view->obj = Py_NewRef(self);
    view->buf = memory_.data();
    view->len = static_cast<Py_ssize_t>(memory_.size());
    view->readonly = !writable_;
    view->itemsize = dtype_.bytes();
    if ((flags & PyBUF_FORMAT) != 0) view->format = const_cast<char*>(letter_of(dtype_));
    view->ndim = static_cast<int>(dims_);
    if ((flags & PyBUF_ND) != 0) view->shape = shape_.data();
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = strides_.data();
    return 0;
}

void bind_window(nb::module_& module) {
    static PyType_Slot slots[] = {
        {Py_bf_getbuffer, reinterpret_cast<void*>(+[](PyObject* self, Py_buffer* view, int flags) {
             if (!nb::inst_ready(self)) {
                 PyErr_SetString(PyExc_BufferError, "this window was never made");
                 return -1;
             }
             return nb::inst_ptr<Window>(self)->get_buffer(self, view, flags);
         })},
        {0, nullptr},
    };
    nb::class_<Window>(module, "Window", nb::type_slots(slots));

    ::pthread_atfork([] { Windows::all().mutex.lock(); }, [] { Windows::all().mutex.unlock(); },
                     [] {
                         forks++;
                         Windows::all().close_in_child();
                         Windows::all().mutex.unlock();
                     });
}

}  // namespace rollring::python
