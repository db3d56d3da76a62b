// WeightLayout and its plans for rollring/_weight_layout.py.

#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "rollring/weight_plan.hpp"
#include "weight_ends.hpp"

namespace rollring::python {
namespace {

using Numbers = std::vector<std::int64_t>;

std::uint32_t add_memory(WeightLayout& layout, std::uint32_t rank, const std::string& name,
                         const std::string& dtype, std::uint64_t elements) {
    return value_or_raise(layout.add_memory(
        {.rank = rank, .name = name, .dtype = dtype_called(dtype), .elements = elements}));
}

// A box as (tensor, memory, offset, start, length, strides).
using BoxTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, Numbers, Numbers, Numbers>;

void add_box(WeightLayout& layout, const BoxTuple& given) {
    const auto& [tensor, memory, offset, start, length, strides] = given;
    value_or_raise(layout.add_box({.tensor = tensor,
                                   .memory = memory,
                                   .offset = offset,
                                   .start = start,
                                   .length = length,
                                   .strides = strides}));
}

Numbers numbers_of(std::span<const std::int64_t> given) {
    return {given.begin(), given.end()};
}

std::vector<BoxTuple> boxes_of(const WeightLayout& layout) {
    std::vector<BoxTuple> made;
    for (std::size_t i = 0; i < layout.boxes(); i++) {
        const LayoutBox box = layout.box(i);
        made.emplace_back(box.tensor, box.memory, box.offset, numbers_of(box.start),
                          numbers_of(box.length), numbers_of(box.strides));
    }
    return made;
}

nb::list tensors_in(const WeightLayout& layout) {
    nb::list made;
    for (const LayoutTensor& one : layout.tensors()) {
        made.append(nb::make_tuple(one.name, nb::tuple(nb::cast(one.shape)), one.tied_to));
    }
    return made;
}

nb::list memories_in(const WeightLayout& layout) {
    nb::list made;
    for (const LayoutMemory& one : layout.memories()) {
        made.append(nb::make_tuple(one.rank, one.name, one.dtype.to_string(), one.elements));
    }
    return made;
}

WeightLayout read(const nb::bytes& bytes) {
    return value_or_raise(
        WeightLayout::from_bytes({static_cast<const std::byte*>(bytes.data()), bytes.size()}));
}

nb::bytes written(const WeightLayout& layout) {
    const std::vector<std::byte> bytes = layout.to_bytes();
    return nb::bytes(bytes.data(), bytes.size());
}

// (padding elements, copies, [(from, to, local, bytes, copies)], [(tensor, local, remote bytes)])
nb::tuple plan(const WeightLayout& from, const WeightLayout& to,
               std::vector<std::uint32_t> from_devices, std::vector<std::uint32_t> to_devices) {
    const auto made = value_or_raise(WeightPlan::make(
        from, to, {.from_devices = std::move(from_devices), .to_devices = std::move(to_devices)}));
    nb::list traffic;
    for (const PlanTraffic& one : made.traffic()) {
        traffic.append(
            nb::make_tuple(one.from_rank, one.to_rank, one.local, one.bytes, one.copies));
    }
    nb::list tensors;
    for (const PlanTensor& one : made.tensors()) {
        tensors.append(
            nb::make_tuple(to.tensors()[one.tensor].name, one.local_bytes, one.remote_bytes));
    }
    return nb::make_tuple(made.padding_elements(), made.copies(), traffic, tensors);
}

}  // namespace

void bind_weight_layout(nb::module_& module) {
    nb::class_<WeightLayout>(module, "WeightLayout")
        .def(nb::init<>())
        .def("add_tensor",
             [](WeightLayout& layout, const std::string& name, const Numbers& shape,
                std::int64_t tied_to) {
                 return value_or_raise(layout.add_tensor(name, shape, tied_to));
             })
        .def("add_memory", &add_memory)
        .def("add_box", &add_box)
        .def("add", [](WeightLayout& layout,
                       const WeightLayout& other) { value_or_raise(layout.add(other)); })
        .def("tensors", &tensors_in)
        .def("memories", &memories_in)
        .def("boxes", &boxes_of)
        .def("to_bytes", &written)
        .def_static("from_bytes", &read)
        .def("hash", &WeightLayout::hash)
        .def("plan", &plan);
}

}  // namespace rollring::python
