#pragma once
// The batches that are out: fills one when it is leased, and knows them all, so that they end with
// their stash.

#include <memory>
#include <vector>

#include "batch_plan.hpp"
#include "rollring/stash.hpp"
#include "rollring/stash_stat.hpp"
#include "slab.hpp"

namespace rollring {

class LeaseBook {
  public:
    // `records` and `lanes` outlive this.
    LeaseBook(const Slab<Record>& records, const MappedLanes& lanes,
              const AdvantageFormula& formula)
        : records_(&records), lanes_(&lanes), formula_(formula) {}

    // Fills the batch from the plan: views over the records where they lie. `stash` keeps them.
    void lease(Batch& batch, const BatchPlan& plan, std::shared_ptr<void> stash);
    // The figures that people are shown of the batch that was filled last.
    [[nodiscard]] const LatestBatch& latest() const { return latest_; }
    void end(const std::shared_ptr<Lease::State>& lease);
    // In a forked child the batches may be gone: then they are not `reachable`.
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
