#pragma once
// Whether work gives back all the GPU memory that it takes. The free bytes of a GPU count for every
// process on it, and others take and return memory while a test looks; per-process figures are not
// available in a container's PID namespace.

#include <cstdint>

namespace rollring::test {

// True once the GPU has at least as much memory free after `work` as before: in the first round,
// unless another process took some meanwhile. A leak in each round never comes to that.
template <class FreeBytes, class Work>
bool gives_back(const FreeBytes& free_bytes, const Work& work) {
    constexpr int rounds = 8;
    for (int round = 0; round < rounds; round++) {
        const std::uint64_t before = free_bytes();
        work();
        if (free_bytes() >= before) return true;
    }
    return false;
}

}  // namespace rollring::test
