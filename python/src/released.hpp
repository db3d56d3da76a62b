#pragma once
// The GIL let go for as long as this lives.
//
// A daemon thread that asks for it while the interpreter ends would be unwound by CPython through
// frames that cannot be: it sleeps until the process is gone.

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
