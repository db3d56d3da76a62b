#include "gpus.hpp"

#include "backends.hpp"

namespace rollring {

const device::Gpus& device::gpus() {
    static constexpr Gpus all{.visible = visible_gpus,
                              .open = cuda::make_backend,
                              .open_physical_memory = cuda::open_physical_memory,
                              .open_gather = cuda::open_gather};
    return all;
}

}  // namespace rollring
