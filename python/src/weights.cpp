#include "bindings.hpp"

#include <string>
#include <utility>
#include <vector>

#include "weight_ends.hpp"

namespace rollring::python {
namespace {

DType dtype_called(nb::handle name) {
    const auto text = nb::cast<std::string>(name);
    const auto dtype = DType::parse(text);
    if (!dtype) raise("invalid_argument", "'" + text + "' is not a dtype");
    return *dtype;
}

}  // namespace

std::vector<WeightTensor> tensors_of(nb::list given) {
    std::vector<WeightTensor> made;
    for (const nb::handle one : given) {
        WeightTensor tensor;
        tensor.name = nb::cast<std::string>(one.attr("name"));
        tensor.dtype = dtype_called(one.attr("dtype"));
        for (const nb::handle length : one.attr("shape")) {
            tensor.shape.push_back(nb::cast<std::int64_t>(length));
        }
        for (const nb::handle stride : one.attr("strides")) {
            tensor.strides.push_back(nb::cast<std::int64_t>(stride));
        }
        tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(one.attr("address")));
        const nb::object published = one.attr("published_dtype");
        if (!published.is_none()) tensor.published_dtype = dtype_called(published);
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
    module.def("why_no_gpu", &why_no_gpu);
}

}  // namespace rollring::python
