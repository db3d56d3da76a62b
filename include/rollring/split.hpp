#pragma once
// Which rank of a training job reads which sequences of a batch.
//
// The same batch, split in the same way over as many ranks, gives the same shares in any process.
// Ranks are numbered as Megatron and torch's DeviceMesh("pipeline", "data", "tensor") do: those of
// one tensor parallel group stand side by side, and a pipeline's stages lie furthest apart.

#include <cstdint>
#include <string_view>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/error.hpp"
#include "rollring/export.hpp"

namespace rollring {

enum class SplitBy : std::uint8_t {
    tokens,        // sequences, so that ranks have about as many tokens: the longest first, each to
                   // the rank that has the fewest
    group_tokens,  // the same with whole groups
    sequences,     // runs of sequences in the batch's order, as many to each rank
    groups,        // runs of whole groups, as many to each rank
    same,          // all of it to each rank
};
ROLLRING_API std::string_view name(SplitBy by);

struct RankShare {
    std::uint32_t rank = 0;
    std::uint32_t world = 1;  // ranks of the job
    SplitBy by = SplitBy::tokens;
    // So many ranks side by side read the same, and so do the ranks of all stages: a stage reads
    // those columns that it needs, and what is not read costs nothing.
    std::uint32_t tensor = 1;
    std::uint32_t pipeline = 1;  // stages

    // Among `parts()` different shares. The numbers must have been checked (Batch::ticket does).
    [[nodiscard]] std::uint32_t part() const { return rank / tensor % parts(); }
    [[nodiscard]] std::uint32_t parts() const { return world / tensor / pipeline; }
};

struct Split {
    std::vector<std::vector<std::uint32_t>> parts;  // indices of sequences(), in its order
    std::vector<std::uint64_t> tokens;              // of each part

    // The most tokens of a part, over what each would have if all had as many; 1: even.
    [[nodiscard]] ROLLRING_API double imbalance() const;
};

// A part may be empty. Errc::invalid_argument: no parts, or more than 65,536.
ROLLRING_API Result<Split> split(const Sequences& batch, SplitBy by, std::uint32_t parts);

}  // namespace rollring
