#pragma once
// Selects the members of a group that ship, and decides whether their rewards are of any use.

#include <cstdint>

#include "group.hpp"
#include "record_book.hpp"

namespace rollring {

class MemberSelection {
  public:
    // Both must outlive this object.
    MemberSelection(const StashOptions& options, RecordBook& book)
        : options_(&options), book_(&book), random_(options.advanced.seed) {}

    // Drops the members that do not ship.
    void select(Group& group);
    // Whether the group's rewards are flat, and the policy drops such a group now.
    [[nodiscard]] bool drops_flat(const Group& group);

  private:
    [[nodiscard]] bool flat(const Group& group) const;

    const StashOptions* options_;
    RecordBook* book_;
    std::uint64_t random_;
    std::uint32_t flat_run_ = 0;  // groups dropped in a row
};

}  // namespace rollring
