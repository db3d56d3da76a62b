#pragma once
// An engine of a sharded trainer: an end at each rank, and a version that is one over all of them.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "delta_staging.hpp"
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
//
// With Staging::delta the parts of all ranks are compared with the tensors while they stay there,
// and their differences are one list (sharded_delta.cpp). A version that is not in the list as a
// whole is copied from the slots, after the commit, as without it.
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
    [[nodiscard]] bool stages_by_difference() const override { return delta_.has_value(); }
    [[nodiscard]] DeltaReport delta() const override {
        return delta_ ? delta_->report() : DeltaReport{};
    }
    [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_; }
    [[nodiscard]] const Manifest& manifest() const override { return ends_.front()->manifest(); }
    [[nodiscard]] std::uint64_t imports() const override;
    [[nodiscard]] std::uint64_t staging_bytes() const override;
    [[nodiscard]] std::string_view why_not_staged() const override;
    [[nodiscard]] std::int64_t publisher_id() const override {
        return ends_.front()->publisher_id();
    }

  private:
    struct Own {
        const SubscriberOptions& options;
        const device::Gpus& gpus;
    };
    ShardedEngine(RingLink link, const SubscriberOptions& options)
        : link_(std::move(link)),
          name_(options.name),
          takes_requests_(options.rollback_when_asked),
          holding_(options.held_version) {}

    // Meets all ranks of these manifests, and takes a seat at each, or at none that counts.
    Result<void> join(std::string_view ring, std::span<const Manifest> ranks,
                      std::span<const std::vector<WeightTensor>> into, const Own& own,
                      Patience& patience);
    // The comparison with the parts of all ranks.
    Result<void> compile_delta(std::span<const std::vector<WeightTensor>> into,
                               const SubscriberOptions& options);
    // Waits at the end of one rank in slices, and looks at the others in between if `all_live`:
    // peer_gone. timed_out at the deadline, or after interrupt().
    template <class Step>
    Result<void> in_slices(SubscriberImpl& end, bool all_live, Deadline deadline, const Step& step);
    [[nodiscard]] std::expected<std::int64_t, SubscriberImpl*> offered() const;
    Result<std::int64_t> wait_offers(Deadline deadline);
    [[nodiscard]] bool take_offers(std::int64_t version);
    Result<void> wait_quiet(Deadline deadline);
    // Whether a request wants the version to be left, and it can be. Answers all other requests.
    bool is_asked_back();
    Result<void> exchange_back();
    // The differences of a rank's parts, of which the first has this number among those of all.
    Result<void> list(SubscriberImpl& end, std::size_t first, Deadline deadline);
    // The list, or the parts: into the tensors. Can be retried after timed_out.
    Result<void> write(Deadline deadline);
    void show_report();
    // All parts, with those of other devices beside the engine's tensors.
    Result<void> hold_all(Deadline deadline);
    // The trainer's own tensors are read where they lie, and never again once they may change:
    // sharded_direct.cpp.
    [[nodiscard]] bool is_direct() const { return ends_.front()->is_direct(); }
    Result<void> check_alike() const;
    // Nothing of the version is in the tensors of this rank of the trainer alone.
    [[nodiscard]] bool has_all_of(const SubscriberImpl& end) const {
        return delta_ ? delta_->is_listed() : end.has_beside();
    }
    // All that is read before the vote was read in time.
    Result<void> end_reads();
    // The tensors that are read after the decision are still as they were put.
    [[nodiscard]] Result<void> check_kept() const;
    // Work on the slots that has not ended is of no more use.
    void leave_slots();
    [[nodiscard]] Outcome outcome() const;
    [[nodiscard]] Outcome outcome_again() const;
    [[nodiscard]] Error aborted() const;
    // The update cannot continue at any rank, and why.
    std::unexpected<Error> give_up(Error why);
    std::unexpected<Error> poison(Error why);

    RingLink link_;  // writable: an engine that knows of a commit completes it
    std::string name_;
    bool takes_requests_;
    std::vector<std::unique_ptr<SubscriberImpl>> ends_;  // by rank
    std::vector<TensorInfo> tensors_;
    Holding holding_;
    UpdateState update_;
    std::optional<DeltaStaging> delta_;
    std::size_t compared_ = 0;  // parts, of all ranks
    Stream stream_;             // of load
    bool again_ = false;        // the version was committed before
    bool held_ = false;
    bool copies_ = false;  // into the tensors; the version is committed
    std::atomic<SubscriberImpl*> waits_at_ = nullptr;
    std::atomic<bool> interrupted_ = false;
};

template <class Step>
Result<void> ShardedEngine::in_slices(SubscriberImpl& end, bool all_live, Deadline deadline,
                                      const Step& step) {
    constexpr std::int64_t slice_ms = 50;
    for (;;) {
        waits_at_ = &end;
        auto done = step(Deadline{std::min(deadline.at_ns, Deadline::after_ms(slice_ms).at_ns)});
        waits_at_ = nullptr;
        if (done || done.error().code != Errc::timed_out) return done;
        if (interrupted_.exchange(false) || deadline.passed()) return done;
        for (const auto& other : ends_) {
            if (!all_live) break;
            auto there = other->session().check_admitted();
            if (there) there = other->session().check_publisher();
            if (!there) return there;
        }
    }
}

}  // namespace rollring::weights
