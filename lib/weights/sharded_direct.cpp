// An engine of a sharded trainer whose tensors it reads where they lie (PayloadMemory::direct).
// Each rank of the trainer keeps its tensors unchanged until its commit returns, which waits for
// the engines that copy from there. Parts that an engine has beside its tensors or in its list when
// it votes, it needs from no rank any more; the rest it copies after the decision, and a rank that
// dies, or goes on without the engine, in between leaves it poisoned if it has begun to copy.

#include <fmt/core.h>

#include "sharded_engine.hpp"

namespace rollring::weights {

Result<void> ShardedEngine::check_alike() const {
    for (std::size_t rank = 1; rank < ends_.size(); rank++) {
        const PayloadMemory memory = ends_[rank]->manifest().memory;
        if (ends_[rank]->is_direct() == is_direct()) continue;
        return refused(Errc::unsupported,
                       fmt::format("rank 0 of the trainer publishes with memory {} and rank {} "
                                   "with {}: give all ranks direct, or none",
                                   name(manifest().memory), rank, name(memory)));
    }
    return {};
}

Result<void> ShardedEngine::end_reads() {
    for (const auto& end : ends_) {
        if (auto kept = end->check_kept(); !kept) return kept;
        if (end->outcome() == Outcome::aborted) return std::unexpected(aborted());
    }
    for (const auto& end : ends_) {
        if (has_all_of(*end)) end->say_read();
    }
    return {};
}

Result<void> ShardedEngine::check_kept() const {
    for (const auto& end : ends_) {
        if (has_all_of(*end)) continue;
        if (auto kept = end->check_kept(); !kept) return kept;
    }
    return {};
}

}  // namespace rollring::weights
