#pragma once
// One subscriber: the steps of a version on its way in, over a session with a publisher.

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "delta_staging.hpp"
#include "gpus.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"
#include "session.hpp"
#include "subscriber_tensors.hpp"

namespace rollring::weights {

// The progress of an incoming version.
struct UpdateState {
    bool open = false;
    bool staged = false;
    bool committed = false;  // as wait_committed found
    bool came_late = false;  // the version was committed before we began to read it
    std::uint64_t publication = 0;
    std::int64_t version = -1;
    std::uint64_t first_part_number = 0;
    std::uint32_t parts_lent = 0;
    std::uint32_t parts_done = 0;
    std::deque<std::uint32_t> lent_slots = {};  // of parts that are being read, in their order
    const std::byte* lent = nullptr;            // the last one's memory
};

class SubscriberImpl {
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
    // Call it before destruction. False: the object must not be destroyed, because the device may
    // still read.
    bool shut_down() { return session_->close(); }
    void interrupt() { session_->interrupt(); }
    // Errc::forked in a child of the process that made it.
    [[nodiscard]] Result<void> check_process() const { return session_->check_process(); }

    Result<void> next(Deadline deadline);
    Result<std::span<const TensorPiece>> part(std::uint32_t part, Deadline deadline);
    Result<void> done_reading(std::uint32_t part, Stream stream);
    Result<void> load(Deadline deadline, Stream stream);
    Result<void> stage(Deadline deadline);
    Result<void> wait_committed(Deadline deadline);
    Result<void> adopt(Deadline deadline);
    Result<void> rollback();
    void reject(std::string_view why, std::string_view tensor);
    void refuse(std::string_view why);
    Result<void> check_memory(std::span<const WeightTensor> tensors);

    [[nodiscard]] const UpdateState& update() const { return update_; }
    [[nodiscard]] const Holding& holding() const { return holding_; }
    [[nodiscard]] bool stages_by_difference() const { return delta_.has_value(); }
    [[nodiscard]] DeltaReport delta() const { return delta_ ? delta_->report() : DeltaReport{}; }
    [[nodiscard]] std::span<const TensorInfo> tensors() const { return tensors_.infos(); }
    [[nodiscard]] const Manifest& manifest() const { return session_->manifest(); }
    [[nodiscard]] std::uint64_t imports() const { return session_->imports(); }
    [[nodiscard]] std::int64_t publisher_id() const { return session_->publisher_id(); }

  private:
    SubscriberImpl(const SubscriberOptions& options, RingLink link)
        : options_(options), link_(std::move(link)), holding_(options.held_version) {
        if (options.staging == Staging::delta) options_.in_place = false;
    }
    Result<void> meet(std::string_view ring, std::span<const WeightTensor> into,
                      const device::Gpus& gpus, Patience& patience);

    [[nodiscard]] std::size_t parts() const { return manifest().packing.parts.size(); }
    [[nodiscard]] Outcome outcome() const;
    Result<void> fit(std::string_view ring, std::span<const WeightTensor> into);
    void start(std::uint64_t publication, const PublicationView& view);
    Result<void> wait_quiet(Deadline deadline);
    Result<void> wait_filled(std::uint32_t part, Deadline deadline);
    Result<void> verify(std::uint32_t part, Deadline deadline);
    // Into the tensors, or into the list of differences.
    Result<void> take_part(std::uint32_t part, Stream stream, Deadline deadline);
    std::span<const TensorPiece> show(std::uint32_t part);
    // The part that was lent first, or is being compared, is read once the stream gets there.
    Result<void> finish_oldest_part(Stream stream) {
        return session_->reading().finish_part(update_.first_part_number + update_.parts_done,
                                               update_.lent_slots.front(), stream);
    }
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
    std::optional<DeltaStaging> delta_;
    UpdateState update_;
    std::vector<TensorPiece> pieces_;  // of the part that was lent last
};

}  // namespace rollring::weights
