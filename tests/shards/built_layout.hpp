#pragma once
// A layout for tests, built a line a box.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "rollring/weight_layout.hpp"

namespace rollring::test {

struct BuiltLayout {
    using Numbers = std::vector<std::int64_t>;

    WeightLayout layout;
    DType dtype = dtype_bf16;

    std::uint32_t memory(std::uint32_t rank, const std::string& name, std::int64_t elements) {
        const auto made = layout.add_memory({.rank = rank,
                                             .name = name,
                                             .dtype = dtype,
                                             .elements = static_cast<std::uint64_t>(elements)});
        REQUIRE(made.has_value());
        return *made;
    }

    // NOLINTNEXTLINE(readability-function-size): a line of a table
    void box(std::uint32_t memory, const std::string& name, const Numbers& shape,
             const Numbers& start, const Numbers& length, std::int64_t offset,
             Numbers strides = {}) {
        if (strides.empty()) strides = row_major(length);
        const auto known = tied_.empty() || tied_ != name ? -1 : tied_to_;
        const auto tensor = layout.add_tensor(name, shape, known);
        REQUIRE(tensor.has_value());
        const auto added = layout.add_box({.tensor = *tensor,
                                           .memory = memory,
                                           .offset = static_cast<std::uint64_t>(offset),
                                           .start = start,
                                           .length = length,
                                           .strides = strides});
        REQUIRE(added.has_value());
    }

    // In a memory of its own, with the tensor's name.
    void whole_box(std::uint32_t rank, const std::string& name, const Numbers& shape,
                   const Numbers& start, const Numbers& length) {
        std::int64_t elements = 1;
        for (const std::int64_t extent : length) elements *= extent;
        box(memory(rank, name, elements), name, shape, start, length, 0);
    }

    // The tensor `name`, whose boxes come later, is tied to another one.
    void tie(const std::string& name, const std::string& to) {
        for (std::size_t i = 0; i < layout.tensors().size(); i++) {
            if (layout.tensors()[i].name == to) tied_to_ = static_cast<std::int64_t>(i);
        }
        tied_ = name;
    }

    static Numbers row_major(const Numbers& length) {
        Numbers strides(length.size());
        std::int64_t stride = 1;
        for (std::size_t i = length.size(); i-- > 0;) {
            strides[i] = stride;
            stride *= length[i];
        }
        return strides;
    }

  private:
    std::string tied_;
    std::int64_t tied_to_ = -1;
};

}  // namespace rollring::test
