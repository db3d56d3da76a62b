#pragma once
// What both ends of the weight channel are made of, in Python.

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

// Of each Described of rollring/_weights.py; the caller keeps what lies at their addresses.
std::vector<WeightTensor> tensors_of(nb::list given);

void bind_weight_publisher(nb::module_& module);
void bind_weight_subscriber(nb::module_& module);

}  // namespace rollring::python
