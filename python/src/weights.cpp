#include "bindings.hpp"

#include <string>
#include <utility>
#include <vector>

#include "weight_ends.hpp"

namespace rollring::python {

DType dtype_called(const std::string& name) {
    const auto dtype = DType::parse(name);
    if (!dtype) raise("invalid_argument", "'" + name + "' is not a dtype");
    return *dtype;
}

std::vector<WeightTensor> tensors_of(nb::list given) {
    std::vector<WeightTensor> made;
    for (const nb::handle one : given) {
        WeightTensor tensor;
        tensor.name = nb::cast<std::string>(one.attr("name"));
        tensor.dtype = dtype_called(nb::cast<std::string>(one.attr("dtype")));
        for (const nb::handle length : one.attr("shape")) {
            tensor.shape.push_back(nb::cast<std::int64_t>(length));
        }
        for (const nb::handle stride : one.attr("strides")) {
            tensor.strides.push_back(nb::cast<std::int64_t>(stride));
        }
        tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(one.attr("address")));
        const nb::object published = one.attr("published_dtype");
        if (!published.is_none()) {
            tensor.published_dtype = dtype_called(nb::cast<std::string>(published));
        }
        const nb::object viewed = one.attr("view");
        if (!viewed.is_none()) {
            TensorView& view = tensor.view.emplace();
            view.offset = nb::cast<std::uint64_t>(viewed.attr("offset"));
            for (const nb::handle stride : viewed.attr("strides")) {
                view.strides.push_back(nb::cast<std::int64_t>(stride));
            }
        }
        tensor.tied = nb::cast<bool>(one.attr("tied"));
        made.push_back(std::move(tensor));
    }
    return made;
}

void bind_weights(nb::module_& module) {
    bind_weight_publisher(module);
    bind_weight_subscriber(module);
    bind_weight_layout(module);
    module.def("why_no_gpu", &why_no_gpu);
}

}  // namespace rollring::python
