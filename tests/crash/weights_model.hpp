#pragma once
// Tensors for the programs that kill: every byte follows from the version, so that a process can
// tell a whole version from anything else. Their memory is the host's, or a GPU's.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rollring/weights.hpp"

namespace rollring::test {

// Memory of one device, and how its bytes are reached. Calls complete before they return.
class Store {
  public:
    virtual ~Store() = default;
    [[nodiscard]] virtual Device device() const = 0;
    virtual std::byte* make(std::size_t bytes) = 0;  // lives as long as the store
    virtual void write(std::byte* to, std::span<const std::byte> bytes) = 0;
    virtual void read(const std::byte* from, std::span<std::byte> bytes) = 0;
    virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
};
// Throws Failure where there is no such device.
std::unique_ptr<Store> make_store(Device device);
// Defined where the build has CUDA (weights_gpu.cpp), and where it has not (weights_no_gpu.cpp).
std::unique_ptr<Store> make_gpu_store(Device device);

// The elements that change from one version to the next.
enum class Changes { all, few, shares };  // shares: 0 to 60 % of them, another share each time

// The tensors of a small model: one larger than a slot of 4 KiB, one without elements, one scalar.
class Model {
  public:
    explicit Model(Store& store, Changes changes = Changes::all);
    void fill(std::int64_t version);
    [[nodiscard]] bool holds(std::int64_t version) const;
    void copy_from(const Model& other);
    // The bytes of one piece: whether they are the version's, and into our tensor with them.
    [[nodiscard]] bool is_of(const TensorPiece& piece, std::int64_t version) const;
    void take(const TensorPiece& piece);
    [[nodiscard]] std::vector<WeightTensor>& list() { return list_; }

  private:
    struct Place {
        std::byte* at;
        std::size_t bytes;
        std::size_t element_bytes;
    };
    [[nodiscard]] std::uint64_t element(std::size_t tensor, std::size_t place) const;
    [[nodiscard]] std::byte value(std::int64_t version, std::size_t tensor,
                                  std::size_t place) const;
    [[nodiscard]] bool same(const std::byte* at, std::size_t tensor, std::size_t first,
                            std::size_t bytes, std::int64_t version) const;

    Store* store_;
    Changes changes_;
    std::vector<Place> places_;
    std::vector<WeightTensor> list_;
    mutable std::vector<std::byte> buffer_;
};

}  // namespace rollring::test
