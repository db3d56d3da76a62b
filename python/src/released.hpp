#pragma once
// Releases the GIL as long as this lives.
//
// CPython would unwind a daemon thread that asks for the GIL while the interpreter ends, through
// frames that cannot be unwound. Such a thread sleeps instead, until the process is gone.

#include "nb.hpp"

namespace rollring::python {

class Released {
  public:
    Released() : state_(PyEval_SaveThread()) {}
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;
    ~Released();

    // Called by the thread that ends the interpreter, before it does.
    static void end();

  private:
    PyThreadState* state_;
};

}  // namespace rollring::python
