#pragma once
// Differences of tensors in host memory, found and exchanged by the CPU.

#include <memory>
#include <vector>

#include "backend.hpp"
#include "difference.hpp"

namespace rollring::device {

// `parts`: the copies of each part. Their tensors' elements do not overlap.
std::unique_ptr<Difference> make_host_difference(std::vector<std::vector<CopyJob>> parts);

}  // namespace rollring::device
