#pragma once
// An engine of a sharded trainer: an end at each rank, and a version that is one over all of them.

#include <atomic>
#include <expected>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine_end.hpp"
#include "gpus.hpp"
#include "greeting.hpp"
#include "manifest.hpp"
#include "rollring/weight_layout.hpp"
#include "subscriber_impl.hpp"

namespace rollring::weights {

// A version stays in the slots of all ranks until it is committed; nothing is written before. The
// decision of the ranks, one word in the control memory of rank 0, is the commit for every engine:
// only rank 0 can commit there, so an undecided version of a rank 0 that is proven dead never will
// be. With one rank, the ring's version is the commit.
class ROLLRING_LOCAL ShardedEngine final : public EngineEnd {
  public:
    static Result<std::unique_ptr<ShardedEngine>> attach(std::string_view ring,
                                                         std::span<const WeightTensor> into,
                                                         const SubscriberOptions& options,
                                                         const device::Gpus& gpus,
                                                         Deadline deadline);
    static Result<WeightLayout> published_layout(std::string_view ring,
                                                 const SubscriberOptions& options,
                                                 Deadline deadline);
    bool shut_down() override;
    void interrupt() override;
    [[nodiscard]] Result<void> check_process() const override {
        return ends_.front()->check_process();
    }

    Result<void> next(Deadline deadline) override;
    Result<std::span<const TensorPiece>> part(std::uint32_t part, Deadline deadline) override;
    Result<void> done_reading(std::uint32_t part, Stream stream) override;
    Result<void> load(Deadline deadline, Stream stream) override;
    Result<void> stage(Deadline deadline) override;
    Result<void> wait_committed(Deadline deadline) override;
    Result<void> adopt(Deadline deadline) override;
    Result<void> rollback() override;
    void reject(std::string_view why, std::string_view tensor) override;
    void refuse(std::string_view why) override;
    Result<void> check_memory(std::span<const WeightTensor> tensors) override;

    [[nodiscard]] const UpdateState& update() const override { return update_; }
    [[nodiscard]] const Holding& holding() const override { return holding_; }
    [[nodiscard]] bool stages_by_difference() const override { return false; }
    [[nodiscard]] DeltaReport delta() const override { return {}; }
    [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_; }
    [[nodiscard]] const Manifest& manifest() const override { return ends_.front()->manifest(); }
    [[nodiscard]] std::uint64_t imports() const override;
    [[nodiscard]] std::int64_t publisher_id() const override {
        return ends_.front()->publisher_id();
    }

  private:
    struct Own {
        const SubscriberOptions& options;
        const device::Gpus& gpus;
    };
    ShardedEngine(RingLink link, std::int64_t held_version)
        : link_(std::move(link)), holding_(held_version) {}

    // Meets all ranks of these manifests, and takes a seat at each, or at none that counts.
    Result<void> join(std::string_view ring, std::span<const Manifest> ranks,
                      std::span<const std::vector<WeightTensor>> into, const Own& own,
                      Patience& patience);
    // Waits at the end of one rank in slices, and looks at the others in between if `all_live`:
    // peer_gone. timed_out at the deadline, or after interrupt().
    template <class Step>
    Result<void> in_slices(SubscriberImpl& end, bool all_live, Deadline deadline, const Step& step);
    [[nodiscard]] std::expected<std::int64_t, SubscriberImpl*> offered() const;
    Result<std::int64_t> wait_offers(Deadline deadline);
    [[nodiscard]] bool take_offers(std::int64_t version);
    [[nodiscard]] Outcome outcome() const;
    // The update cannot continue at any rank, and why.
    std::unexpected<Error> give_up(Error why);
    std::unexpected<Error> poison(Error why);

    RingLink link_;  // writable: an engine that knows of a commit completes it
    std::vector<std::unique_ptr<SubscriberImpl>> ends_;  // by rank
    std::vector<TensorInfo> tensors_;
    Holding holding_;
    UpdateState update_;
    Stream stream_;  // of load
    bool held_ = false;
    bool copies_ = false;  // into the tensors; the version is committed
    std::atomic<SubscriberImpl*> waits_at_ = nullptr;
    std::atomic<bool> interrupted_ = false;
};

}  // namespace rollring::weights
