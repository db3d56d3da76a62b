#pragma once
// Which members of a group ship, and whether there is anything to learn from them.

#include <cstdint>

#include "group.hpp"
#include "record_book.hpp"

namespace rollring {

class MemberSelection {
  public:
    // Both outlive this.
    MemberSelection(const StashOptions& options, RecordBook& book)
        : options_(&options), book_(&book), random_(options.seed) {}

    // The rest leaves.
    void select(Group& group);
    // Its rewards are flat, and the policy drops such a group now.
    [[nodiscard]] bool drops_flat(const Group& group);

  private:
    [[nodiscard]] bool flat(const Group& group) const;

    const StashOptions* options_;
    RecordBook* book_;
    std::uint64_t random_;
    std::uint32_t flat_run_ = 0;  // dropped in a row
};

}  // namespace rollring
