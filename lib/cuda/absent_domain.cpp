// A build without CUDA.

#include "physical.hpp"

namespace rollring::cuda {

Result<std::unique_ptr<PhysicalMemory>> open_physical_memory(Device) {
    return std::unexpected(Error{Errc::no_gpu, 0,
                                 "this rollring was built without CUDA: build it where cuda.h is "
                                 "found, with -Dcuda=enabled"});
}

}  // namespace rollring::cuda
