// The names of a stash's inputs and answers, as in the public headers.

#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "rollring/stash.hpp"

namespace rollring {
namespace {

// `names` are in the order of the enum.
template <class Enum>
std::string_view name_of(Enum value, std::initializer_list<std::string_view> names) {
    const auto index = static_cast<std::size_t>(value);
    return index < names.size() ? names.begin()[index] : "unknown";
}

}  // namespace

std::string_view name(AtDeadline policy) {
    return name_of(policy, {"ship", "drop", "hold"});
}
std::string_view name(OnFailed policy) {
    return name_of(policy, {"shrink", "void_group", "hold"});
}
std::string_view name(BadReward policy) {
    return name_of(policy, {"fail", "void_group", "absent"});
}
std::string_view name(Select policy) {
    return name_of(policy, {"first", "uniform"});
}
std::string_view name(ZeroVariance policy) {
    return name_of(policy, {"keep", "drop"});
}
std::string_view name(Stale policy) {
    return name_of(policy, {"drop", "withhold"});
}
std::string_view name(Order order) {
    return name_of(order, {"windowed", "fifo", "freshest"});
}
std::string_view name(BatchTarget::Unit unit) {
    return name_of(unit, {"groups", "sequences", "tokens"});
}
std::string_view name(Advantages kind) {
    return name_of(kind, {"none", "grpo", "mean", "loo"});
}
std::string_view name(Deviation kind) {
    return name_of(kind, {"sample", "population"});
}
std::string_view name(NextBatch answer) {
    return name_of(answer, {"batch", "timed_out", "closed"});
}

}  // namespace rollring
