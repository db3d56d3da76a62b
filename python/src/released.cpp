#include "released.hpp"

#include <unistd.h>

#include <atomic>
#include <thread>

namespace rollring::python {
namespace {

std::atomic<std::thread::id> ends_by{};
std::atomic<int> asking{0};  // threads that ask for the GIL, and will get it

}  // namespace

void Released::end() {
    ends_by = std::this_thread::get_id();
    // Let waiting threads take the GIL now; later CPython would unwind them.
    while (asking > 0) {
        PyThreadState* state = PyEval_SaveThread();
        std::this_thread::yield();
        PyEval_RestoreThread(state);
    }
}

Released::~Released() {
    asking++;
    const std::thread::id ending = ends_by;
    if (ending != std::thread::id{} && ending != std::this_thread::get_id()) {
        asking--;
        for (;;) ::pause();
    }
    PyEval_RestoreThread(state_);
    asking--;
}

}  // namespace rollring::python
