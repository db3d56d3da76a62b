#include "bindings.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>

#include "errors.hpp"
#include "rollring/schema.hpp"

namespace rollring::python {
namespace {

template <class Array>
nb::object described(nb::handle given) {
    Array array;
    if (!nb::try_cast(given, array)) return nb::none();
    const auto code = array.dtype().code;
    const DType dtype{static_cast<std::uint8_t>(code), array.dtype().bits};
    const std::string named = array.dtype().lanes == 1 ? dtype.to_string() : std::string();
    const int type = array.device_type();
    const bool on_gpu = type == nb::device::cuda::value;
    const bool on_host = type == nb::device::cpu::value || type == nb::device::cuda_host::value;
    if (named.empty() || (!on_gpu && !on_host)) return nb::none();
    nb::list shape;
    nb::list strides;
    for (std::size_t i = 0; i < array.ndim(); i++) {
        shape.append(array.shape(i));
        strides.append(array.stride(i));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(array.data());
    nb::capsule kept(new Array(array), [](void* one) noexcept { delete static_cast<Array*>(one); });
    return nb::make_tuple(named, nb::tuple(shape), nb::tuple(strides), address,
                          on_gpu ? array.device_id() : -1, kept);
}

// (dtype, shape, strides in elements, address, GPU or -1, owner of the memory), or None: it is not
// an array that we can read, or write.
nb::object describe_array(nb::handle given, bool written) {
    return written ? described<nb::ndarray<>>(given) : described<nb::ndarray<nb::ro>>(given);
}

// Memory as a tensor of torch, which does not own it; host memory if gpu is -1.
nb::object lend_bytes(std::uintptr_t address, std::size_t bytes, int gpu) {
    using Tensor = nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<1>>;
    Tensor tensor(reinterpret_cast<std::uint8_t*>(address), {bytes}, nb::handle(), {},
                  nb::dtype<std::uint8_t>(),
                  gpu < 0 ? nb::device::cpu::value : nb::device::cuda::value, std::max(gpu, 0));
    return tensor.cast(nb::rv_policy::reference);
}

}  // namespace

void bind_dlpack(nb::module_& module) {
    module.def("describe_array", &describe_array);
    module.def("lend_bytes", &lend_bytes);
}

}  // namespace rollring::python
