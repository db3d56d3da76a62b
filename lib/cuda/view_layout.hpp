#pragma once
// The GPU's copy of a view: in units as large as the alignment of both sides allows.

#include <string>

#include "backend.hpp"
#include "kernel_args.hpp"

namespace rollring::cuda {

// Rows of this length or more are copied by whole warps; shorter ones, and those up to the second
// length whose units are vectors, by lanes of several rows at once.
inline constexpr std::uint64_t long_row_bytes = 256;
inline constexpr std::uint64_t long_vector_row_bytes = 2048;

// Empty if the job is not a view, or if it can be copied as far as its own fields go.
std::string fault_of_view(const device::CopyJob& job);

// The layout of a view's job with a shape; sets its fields in `row`.
Layout lay_out_view(const device::CopyJob& job, DeviceJob& row);

}  // namespace rollring::cuda
