#include "backends.hpp"

namespace rollring {

const device::Gpus& cuda::gpus() {
    static constexpr device::Gpus all{.visible = visible_gpus, .open = make_backend};
    return all;
}

}  // namespace rollring
