#pragma once
// Memory of a fake GPU that other processes open where it lies: memfds with handles and numbers, as
// CUDA has them. An engine maps them elsewhere, read-only, also in the same process.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "direct_memory.hpp"
#include "mapping.hpp"
#include "sealed.hpp"

namespace rollring::test {

class FakeAllocation {
  public:
    explicit FakeAllocation(std::uint64_t bytes, bool shareable = true);
    FakeAllocation(const FakeAllocation&) = delete;
    FakeAllocation& operator=(const FakeAllocation&) = delete;
    ~FakeAllocation();

    [[nodiscard]] std::byte* data() const { return mapping_.data(); }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Frees it, and allocates as much anew at the same address: other memory, for its owner.
    void make_anew();
    void free_it();

  private:
    std::uint64_t bytes_;
    bool shareable_;
    Sealed memory_;
    Mapping mapping_;
};

// Of this process; the state is shared by all.
std::shared_ptr<device::Allocations> fake_allocations();
// Allocations that engines of this process have open now.
int open_allocations();

}  // namespace rollring::test
