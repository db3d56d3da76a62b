#pragma once
// The trainer's boxes of each tensor, sorted, so that a box of an engine finds those that hold its
// elements without a look at the others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cover.hpp"
#include "rollring/weight_layout.hpp"

namespace rollring::shards {

bool can_become(DType from, DType to);

// Elements that an engine wants, and where.
struct WantedBox {
    std::uint32_t tensor = 0;  // the trainer's, and the one with values of its own of tied ones
    IndexBox box;
    DType dtype{};
    std::uint32_t rank = 0;
    std::uint32_t device = 0;
};

// Elements that no box of the trainer holds in a dtype that can become the wanted one.
struct MissingPart {
    IndexBox part;
    std::optional<std::size_t> other_dtype = {};  // a box of the trainer that holds some of them
};

class SourceBoxes {
  public:
    using Taken = std::function<void(std::size_t box, const IndexBox& part)>;

    // `devices`: by rank; empty: rank r is on device r. The layout must stay as it is.
    SourceBoxes(const WeightLayout& trainer, std::span<const std::uint32_t> devices);

    // Calls taken() for parts that together are the wanted box, each with a box of the trainer that
    // holds it: one on the same device if there is one, else one of the same dtype. The choice
    // between replicas on other devices depends on nothing but the rank that wants them, so the
    // ranks of an engine may plan on their own.
    std::optional<MissingPart> cover(const WantedBox& wanted, const Taken& taken);

    [[nodiscard]] std::uint32_t device_of(std::size_t box) const;
    // Boxes that cover() has looked at, and parts of boxes that it has compared with others.
    [[nodiscard]] std::uint64_t steps() const { return steps_; }

  private:
    // Boxes of the same elements in one dtype, on different ranks.
    struct Replicas {
        Range range;  // in the tensor's sorted dimension
        DType dtype{};
        std::size_t first = 0;  // in boxes_, by device
        std::size_t count = 0;
    };
    struct Tensor {
        std::size_t dim = 0;  // the sorted one
        std::size_t first = 0;
        std::size_t end = 0;  // in replicas_
    };
    struct Candidate {
        std::size_t replicas;
        std::optional<std::size_t> near;  // a box on the engine's device
    };

    void add_tensor(std::span<std::size_t> boxes);
    void add_replicas(std::span<const std::size_t> boxes, std::size_t dim);
    [[nodiscard]] IndexBox elements_of(std::size_t replicas) const;
    std::int64_t find_ends(std::size_t first, std::size_t end);
    void find(std::size_t first, std::size_t end, const Range& wanted);
    void find_candidates(const WantedBox& wanted);
    [[nodiscard]] std::optional<std::size_t> near(const Replicas& replicas,
                                                  std::uint32_t device) const;
    void cover_run(std::span<Candidate> run, const WantedBox& wanted, const Taken& taken);
    // Takes the candidates that belong to the first run of them.
    std::span<Candidate> next_run(std::span<Candidate> left, Range& run) const;
    [[nodiscard]] MissingPart missing(const IndexBox& part) const;

    const WeightLayout& trainer_;
    std::span<const std::uint32_t> devices_;
    std::vector<Tensor> tensors_;
    std::vector<Replicas> replicas_;  // by tensor, then by range.begin
    // A tree over the replicas of a tensor: the one in the middle of a part has the largest
    // range.end of that part.
    std::vector<std::int64_t> ends_;
    std::vector<std::size_t> boxes_;
    std::vector<std::size_t> found_;
    std::vector<std::size_t> unfit_;  // found, in another dtype
    std::vector<Candidate> candidates_;
    Uncovered uncovered_;
    std::uint64_t steps_ = 0;
};

}  // namespace rollring::shards
