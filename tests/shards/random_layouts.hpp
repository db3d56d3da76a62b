#pragma once
// Random layouts of a trainer and of an engine, and the right result, worked out element by
// element: the reference of the planner, which works with boxes.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rollring/weight_plan.hpp"

namespace rollring::test {

// A pair of layouts. Some have a fault: a box that is missing, two that share memory, ...
struct LayoutCase {
    WeightLayout from;
    WeightLayout to;
    PlanOptions options;
};
// `from_ranks` and `to_ranks`: of the trainer and of the engine; 0: any.
LayoutCase random_layouts(std::mt19937_64& dice, std::uint64_t from_ranks = 0,
                          std::uint64_t to_ranks = 0);

// An element of a tensor: tied tensors have the same elements.
struct Element {
    std::int64_t values = -1;  // -1: none
    std::uint64_t index = 0;   // in row-major order
    friend bool operator==(const Element&, const Element&) = default;
};
using Memories = std::vector<std::vector<Element>>;  // by memory, then by element

struct Truth {
    bool fits = true;
    std::vector<std::string> culprits;  // tensors of which one must be named in the error
    Memories has;                       // the trainer's memories
    Memories wants;                     // the engine's
};
Truth truth_of(const LayoutCase& given);

// Runs the plan's copies over the trainer's memories; nullopt if one exceeds its memory, or an
// element is written twice.
std::optional<Memories> run_plan(const WeightPlan& plan, const LayoutCase& given,
                                 const Memories& has);

}  // namespace rollring::test
