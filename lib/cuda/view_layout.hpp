#pragma once
// How a view is copied by the GPU: in units as large as both sides are aligned for.

#include <string>

#include "backend.hpp"
#include "kernel_args.hpp"

namespace rollring::cuda {

// Rows from here on are copied by whole warps; shorter ones, and those in between whose units are
// vectors, by lanes of several rows at once.
inline constexpr std::uint64_t long_row_bytes = 256;
inline constexpr std::uint64_t long_vector_row_bytes = 2048;

// Empty if the job is not a view, or if its own fields are valid.
std::string fault_of_view(const device::CopyJob& job);

// The layout of a view's job with a shape; sets its own fields in `row`.
Layout lay_out_view(const device::CopyJob& job, DeviceJob& row);

}  // namespace rollring::cuda
