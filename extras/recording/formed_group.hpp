#pragma once
// Records of one group, in the form in which a batch has them.

#include <cstdint>
#include <span>

#include "rollring/batch.hpp"
#include "rollring/error.hpp"

namespace rollring::recording {

// Points into the views, which must outlive it.
class FormedGroup : public Sequences {
  public:
    static Result<FormedGroup> of(std::span<const TrajectoryView* const> records,
                                  std::uint32_t size, const AdvantageFormula& formula);

  private:
    FormedGroup() = default;
};

}  // namespace rollring::recording
