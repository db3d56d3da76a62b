#pragma once
// Shared by both ends of the weight channel in Python.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "owned.hpp"
#include "rollring/weights.hpp"

namespace rollring::python {

using Timeout = std::optional<double>;

inline Stream stream_at(std::uintptr_t address) {
    return {reinterpret_cast<void*>(address)};
}

// From each Described of rollring/_weights.py; the caller keeps the memory at their addresses.
std::vector<WeightTensor> tensors_of(nb::list given);

// A dtype by its name; raises for another text.
DType dtype_called(const std::string& name);

void bind_weight_layout(nb::module_& module);
void bind_weight_publisher(nb::module_& module);
void bind_weight_subscriber(nb::module_& module);

}  // namespace rollring::python
