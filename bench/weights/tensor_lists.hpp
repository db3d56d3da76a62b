#pragma once
// The tensors that a weight sync is measured with: those of real models, by name, dtype and shape,
// and a list that is nothing but small ones.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/weight_tensor.hpp"

namespace bench {

struct ListedTensor {
    std::string name;
    rollring::DType dtype{};  // as published
    std::vector<std::int64_t> shape;

    [[nodiscard]] std::uint64_t elements() const;
    [[nodiscard]] std::uint64_t bytes() const { return elements() * dtype.bytes(); }
};

using TensorList = std::vector<ListedTensor>;

std::uint64_t payload_bytes(const TensorList& list);

// "llama8b", "qwen30b", "tiny" or "empty". `share`, above 0 and up to 1: about so many of its
// bytes. The models keep every tensor and get narrower; "tiny" keeps the sizes and gets shorter.
TensorList make_list(std::string_view name, double share);

// The largest share whose list has at most `bytes` bytes; 1 if the whole list fits.
double share_for(std::string_view name, std::uint64_t bytes);

// One JSON object a line: name, dtype, shape; for bench/weights/torch_sync.py.
void write_list(const TensorList& list, const std::string& path);

}  // namespace bench
