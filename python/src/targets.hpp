#pragma once
// numpy's arrays: new ones with copies, and those that a gather writes.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>

#include "memory.hpp"
#include "nb.hpp"
#include "rollring/gather.hpp"
#include "rollring/schema.hpp"

namespace rollring::python {

// empty: numpy.empty. kind: numpy.ndarray. dtypes: numpy's for each of ours, by our names.
// target(column, dtype, shape): an array in host memory for a GatherColumn, as the fields out,
// dtype, address and nbytes.
void set_numpy_helpers(nb::object empty, nb::object kind, nb::dict dtypes, nb::object target);

// With unspecified contents.
nb::object new_array(DType dtype, std::span<const std::uint64_t> shape);

// A one-dimensional array with a copy of the numbers that get() returns. It is called twice, for
// numpy may run Python code of others while it makes the array.
template <class To, class Get>
nb::object copied(DType dtype, const Get& get) {
    const std::uint64_t count = get().size();
    nb::object made = new_array(dtype, {&count, 1});
    const Bytes memory(made, PyBUF_WRITABLE);
    auto* const to = reinterpret_cast<To*>(memory.writable().data());
    std::ranges::transform(get(), to, [](auto one) { return static_cast<To>(one); });
    return made;
}

// The arrays that one gather writes. Their memory stays where it is as long as this lives.
class Targets {
  public:
    // `make`: as the helper `target`, which None stands for.
    explicit Targets(nb::handle make) : make_(make) {}
    Targets(const Targets&) = delete;
    Targets& operator=(const Targets&) = delete;
    ~Targets();

    // Has the gather write `column`, which is `given` in Python, to the caller's array or to a new
    // one, of this shape.
    void add(nb::handle given, const ArrayShape& shape, GatherColumn& column);
    [[nodiscard]] nb::list arrays() const { return arrays_; }

  private:
    bool add_plain(nb::handle given, const ArrayShape& shape, GatherColumn& column);

    nb::handle make_;
    nb::list arrays_;
    std::deque<Py_buffer> held_;
};

}  // namespace rollring::python
