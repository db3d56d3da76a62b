#pragma once
// A trainer that lives and shares its batches with a reader that is stepped.

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "rollring/producer.hpp"
#include "share_survivor.hpp"

namespace rollring::test {

class SharingTrainer {
  public:
    // `options` are of its ring.
    SharingTrainer(const RingOptions& options, Dice& dice);

    struct Leased {
        Batch batch;
        SharedBatch shared;
        bool is_read = false;  // the stepped reader has a share of it
    };
    [[nodiscard]] const std::string& ring() const { return ring_.name(); }
    // The ring's records, and their fate.
    [[nodiscard]] const Promise& promise() const { return promise_; }
    [[nodiscard]] std::vector<SharedBatch> shared() const;
    [[nodiscard]] std::list<Leased>& leased() { return leased_; }

    // Pushes some pairs, and leases and shares the available batches.
    void go_on();
    // False: a reader holds it, and nothing has changed.
    bool acknowledge(Leased& leased);
    void give_back(Leased& leased);
    [[nodiscard]] std::uint64_t acked() const { return static_cast<std::uint64_t>(step_ + 1); }

  private:
    void push_some();
    bool lease();
    void forget(const Leased& leased);

    Dice& dice_;
    ScratchRing ring_;
    std::vector<Producer> producers_;
    std::vector<std::uint64_t> next_;  // number, by stream
    std::unique_ptr<Stash> stash_;
    SmallLoad load_;
    Promise promise_;
    std::list<Leased> leased_;
    std::int64_t step_ = -1;
};

}  // namespace rollring::test
