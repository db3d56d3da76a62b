// A build without CUDA.

#include "support/process.hpp"
#include "weights_model.hpp"

namespace rollring::test {

std::unique_ptr<Store> make_gpu_store(Device /*device*/) {
    throw Failure("--gpu: this build has no CUDA");
}

}  // namespace rollring::test
