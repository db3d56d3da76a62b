#pragma once
// The memory on both sides of a weight sync: one block on a GPU or the host, a list of tensors
// placed in it, contents that can be told apart, and the cost of copying it without rollring.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rollring/weight_tensor.hpp"
#include "weights/tensor_lists.hpp"

namespace bench {

// Ends the program (fail) where there is no room.
class Arena {
  public:
    static std::unique_ptr<Arena> make(rollring::Device device, std::uint64_t bytes);
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    virtual ~Arena() = default;

    [[nodiscard]] virtual std::byte* data() const = 0;
    virtual void read(std::byte* to, std::uint64_t offset, std::uint64_t bytes) = 0;
    virtual void write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes) = 0;
    // Time of two copies of the first `bytes` of it: out to a buffer, chunk by chunk, and back. The
    // least that packing and unpacking can cost. 512 MiB of scratch, kept.
    virtual std::int64_t two_copies_ns(std::uint64_t bytes) = 0;
    // The first `bytes` of another arena on the same device, and both ways at once. They are done
    // on return.
    virtual void copy_from(const Arena& other, std::uint64_t bytes) = 0;
    virtual void exchange(Arena& other, std::uint64_t bytes) = 0;
    // Of the device; 0 for the host.
    [[nodiscard]] virtual std::uint64_t free_bytes() const = 0;
};

inline constexpr std::uint64_t copy_chunk_bytes = std::uint64_t{512} << 20;

struct DeviceFacts {
    char name[64];
    std::uint64_t free_bytes;
    std::uint64_t total_bytes;
};

// With CUDA alone: see gpu_arena.cpp.
std::unique_ptr<Arena> make_gpu_arena(rollring::Device device, std::uint64_t bytes);
DeviceFacts gpu_facts(rollring::Device device);

// Where the tensors of a list lie in an arena: one after the other, 512 B aligned, as torch's
// allocator aligns them.
class Placement {
  public:
    // as_f32: the trainer's master weights, twice as large as the published ones.
    Placement(const TensorList& list, bool as_f32);

    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::vector<rollring::WeightTensor> tensors(std::byte* base) const;

    // Contents that follow from `seed` and the place.
    void fill(Arena& arena, std::uint64_t seed) const;
    // Changes about this share of the elements, of 2 bytes each or of the tensors' own as f32.
    void change(Arena& arena, double share, std::uint64_t seed) const;
    // Of all tensors' bytes as they are published, in their order, read back to the host.
    [[nodiscard]] std::uint64_t digest(Arena& arena) const;

  private:
    const TensorList* list_;
    bool as_f32_;
    std::vector<std::uint64_t> offsets_;
    std::uint64_t bytes_ = 0;
};

}  // namespace bench
