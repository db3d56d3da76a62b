#pragma once
// One subscriber: the steps of a version on its way in, over a session with a publisher.

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "delta_staging.hpp"
#include "engine_end.hpp"
#include "gpus.hpp"
#include "remote_staging.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"
#include "session.hpp"
#include "subscriber_tensors.hpp"

namespace rollring::weights {

class ROLLRING_LOCAL SubscriberImpl final : public EngineEnd {
  public:
    static Result<std::unique_ptr<SubscriberImpl>> attach(std::string_view ring,
                                                          std::span<const WeightTensor> into,
                                                          const SubscriberOptions& options,
                                                          const device::Gpus& gpus,
                                                          Deadline deadline);
    // The tensors of the publisher to which such a subscriber would attach; it does not count as
    // attached.
    static Result<std::vector<TensorInfo>> published(std::string_view ring,
                                                     const SubscriberOptions& options,
                                                     const device::Gpus& gpus, Deadline deadline);
    // It has met no publisher yet; call meet() before anything else.
    SubscriberImpl(const SubscriberOptions& options, RingLink link)
        : options_(options), link_(std::move(link)), holding_(options.held_version) {
        if (options.staging == Staging::delta) options_.in_place = false;
    }
    // Says hello, and compares the tensors with the published ones. It takes no seat:
    // Session::enter().
    Result<void> meet(std::string_view ring, std::span<const WeightTensor> into,
                      const device::Gpus& gpus, Patience& patience);
    bool shut_down() override;
    void interrupt() override { session_->interrupt(); }
    [[nodiscard]] Result<void> check_process() const override { return session_->check_process(); }

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

    // --- steps of an end of a sharded engine, which leaves a version in the slots until all ranks
    // have committed it (held_version.cpp) ---
    // The version that next() would return now.
    [[nodiscard]] std::optional<std::int64_t> offered() const;
    // Lets a version pass that another end does not have any more, or that is live already.
    void pass();
    // Leaves the version that next() has returned to the next call.
    void unread();
    // Waits until no device reads memory of the publisher for a version that is over.
    Result<void> wait_quiet(Deadline deadline);
    [[nodiscard]] std::size_t parts() const { return manifest().packing.parts.size(); }
    // Waits for the next part of the version until `slice`, and keeps it lent. Checksums have until
    // `deadline`: each try asks the device for all of a part anew. Can be retried after timed_out.
    Result<void> hold_next(Deadline slice, Deadline deadline);
    // All parts, likewise.
    Result<void> hold(Deadline slice, Deadline deadline);
    // Waits until all fetches into the memory beside are done. Can be retried after timed_out.
    Result<void> wait_fetched(Deadline deadline);
    // The device may still fetch: the slots are in use until it has.
    void leave_fetches();
    // The device may still compare the part that was lent last, in this mover's stream: its slot is
    // in use until the stream gets there.
    void leave_part(Stream stream, device::Mover& by);
    // Whether all memory of the tensors is there.
    Result<void> check_own_memory() { return tensors_.check_memory(session_->mover()); }
    [[nodiscard]] std::uint64_t target_bytes() const { return tensors_.target_bytes(); }
    // Declares that all parts are held.
    void vote();
    // Whether the parts lie in the trainer's tensors themselves.
    [[nodiscard]] bool is_direct() const { return manifest().memory == PayloadMemory::direct; }
    // Whether all parts are beside.
    [[nodiscard]] bool has_beside() const { return remote_ != nullptr; }
    // Nothing is read from the publisher's memory any more.
    void say_read() { session_->reading().say_read(update_.first_part_number + parts()); }
    // Whether the publisher keeps the memory of the version unchanged for this engine: aborted,
    // expelled, peer_gone.
    [[nodiscard]] Result<void> check_kept() const;
    // Of a version that was decided without this engine: aborted.
    [[nodiscard]] Result<void> check_counted() const;
    // Whether it was kept until the device had read it: the publisher may have closed since.
    [[nodiscard]] Result<void> check_was_kept() const;
    [[nodiscard]] Outcome outcome() const;
    // Whether the ring has the version that is under way, from this publisher's ranks.
    [[nodiscard]] bool is_in_ring() const;
    void note_commit() { update_.committed = true; }
    // Whether the publisher's slots are another device's.
    [[nodiscard]] bool is_over_link() const { return manifest().gpu != session_->mover().gpu(); }
    // Copies the parts into the engine's tensors, which hold a mixture until wait_quiet() has
    // returned. Has no effect when it is called again.
    Result<void> take_held(Stream stream);
    // The version is aborted, as the publisher knows.
    void abandon(std::string_view why);
    // The engine holds a mixture of two versions.
    void poison(const Error& why);
    // It holds the version before the last one again; or, after an error, a mixture.
    void note_rollback(const Result<std::int64_t>& before);
    // The version that a request wants to be left which was not heard before.
    std::optional<std::int64_t> hear_request();
    // Answers the last request that was heard, unless it has its answer.
    void answer_heard(RollbackOutcome outcome, std::string_view why);
    // Answers the last request, if it wants this version to be left, by the result.
    void answer_rollback(std::int64_t version, const Result<void>& back);
    [[nodiscard]] Session& session() { return *session_; }

    [[nodiscard]] const UpdateState& update() const override { return update_; }
    [[nodiscard]] const Holding& holding() const override { return holding_; }
    [[nodiscard]] bool stages_by_difference() const override { return delta_.has_value(); }
    [[nodiscard]] DeltaReport delta() const override {
        return delta_ ? delta_->report() : DeltaReport{};
    }
    [[nodiscard]] std::span<const TensorInfo> tensors() const override { return tensors_.infos(); }
    [[nodiscard]] const Manifest& manifest() const override { return session_->manifest(); }
    [[nodiscard]] std::uint64_t imports() const override { return session_->imports(); }
    [[nodiscard]] std::uint64_t staging_bytes() const override {
        return remote_ ? remote_->bytes() : 0;
    }
    [[nodiscard]] std::string_view why_not_staged() const override { return why_not_staged_; }
    [[nodiscard]] std::int64_t publisher_id() const override { return session_->publisher_id(); }

  private:
    Result<void> fit(std::string_view ring, std::span<const WeightTensor> into);
    Result<void> make_remote_staging(std::span<const WeightTensor> into);
    void start(std::uint64_t publication, const PublicationView& view);
    Result<std::span<const TensorPiece>> lend(std::uint32_t part, Deadline filled,
                                              Deadline verified);
    Result<void> wait_filled(std::uint32_t part, Deadline deadline);
    Result<void> verify(std::uint32_t part, const std::byte* memory, Deadline deadline);
    Result<void> copy_parts(Stream stream, Deadline deadline);
    Result<void> compare_parts(Stream stream, Deadline deadline);
    // All parts of a turn.
    Result<void> lend_turn(Deadline deadline);
    [[nodiscard]] bool has_more_of_turn() const;
    [[nodiscard]] bool shares_gpu() const { return options_.device.is_gpu() && !is_over_link(); }
    // Into the list of differences, or into the tensors.
    Result<void> take_lent(Stream stream, Deadline deadline);
    Result<void> return_lent(Stream stream);
    std::span<const TensorPiece> show(std::uint32_t part, const std::byte* memory);
    // The part that was lent first, or is being compared, is read once the stream gets there.
    Result<void> finish_oldest_part(Stream stream) {
        return session_->reading().finish_part(update_.first_part_number + update_.parts_done,
                                               update_.lent_slots.front().slot, stream);
    }
    // Whether an engine that takes requests is to go back. Answers a request if there is nothing to
    // do, or no way.
    bool is_asked_back();
    Result<void> exchange_back();
    void set_state(SubscriberState state);
    [[nodiscard]] Error aborted() const;
    // The update cannot continue: the engine holds the old version completely, or is poisoned.
    std::unexpected<Error> give_up(Error why);
    // The same, unless it can be retried.
    std::unexpected<Error> give_up_unless_late(Error why);

    SubscriberOptions options_;
    RingLink link_;
    Holding holding_;
    std::unique_ptr<Session> session_;
    SubscriberTensors tensors_;
    std::unique_ptr<RemoteStaging> remote_;  // without it adopt copies from the slots
    std::string why_not_staged_;
    std::optional<DeltaStaging> delta_;
    UpdateState update_;
    std::uint64_t heard_ = 0;          // the last request that next() has looked at
    std::vector<TensorPiece> pieces_;  // of the part that was lent last
};

}  // namespace rollring::weights
