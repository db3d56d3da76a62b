#pragma once
// The leased batches: fills one when it is leased, and knows all of them, so that they end with
// their stash.

#include <memory>
#include <vector>

#include "batch_plan.hpp"
#include "rollring/stash.hpp"
#include "slab.hpp"

namespace rollring {

class LeaseBook {
  public:
    // `records` and `lanes` must outlive this object.
    LeaseBook(const Slab<Record>& records, const MappedLanes& lanes,
              const AdvantageFormula& formula)
        : records_(&records), lanes_(&lanes), formula_(formula) {}

    // Fills the batch from the plan, with views over the records in place. `stash` keeps the
    // records.
    void lease(Batch& batch, const BatchPlan& plan, std::shared_ptr<void> stash);
    // The figures of the batch that was filled last, for display.
    [[nodiscard]] const LatestBatch& latest() const { return latest_; }
    void end(const std::shared_ptr<Lease::State>& lease);
    // In a forked child the batches may be gone, and are not `reachable`.
    void end_all(bool reachable);

  private:
    void fetch_behind(const BatchPlan& plan, const Subsequence& one) const;

    const Slab<Record>* records_;
    const MappedLanes* lanes_;
    AdvantageFormula formula_;
    LatestBatch latest_;
    std::vector<std::shared_ptr<Lease::State>> out_;
};

}  // namespace rollring
