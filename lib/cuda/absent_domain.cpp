// A build without CUDA.

#include "physical.hpp"

namespace rollring::cuda {

Result<std::unique_ptr<PhysicalMemory>> open_physical_memory(Device) {
    return std::unexpected(Error{Errc::no_gpu, 0, why_no_gpu()});
}

}  // namespace rollring::cuda
