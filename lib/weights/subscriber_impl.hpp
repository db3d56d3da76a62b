#pragma once
// What a Subscriber and its Update share.

#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control_map.hpp"
#include "control_socket.hpp"
#include "liveness.hpp"
#include "manifest.hpp"
#include "memory.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

class SubscriberImpl {
  public:
    static Result<std::unique_ptr<SubscriberImpl>> attach(std::string_view ring,
                                                          std::span<const WeightTensor> into,
                                                          const SubscriberOptions& options,
                                                          Deadline deadline);
    // Before destruction; false: it must not be destroyed, for the device may still read.
    bool shut_down();

    Result<void> next(Deadline deadline);
    Result<std::span<const TensorPiece>> part(std::uint32_t part, Deadline deadline);
    Result<void> done_reading(std::uint32_t part, Stream stream);
    Result<void> load(Deadline deadline, Stream stream);
    Result<void> stage(Deadline deadline);
    Result<void> adopt(Deadline deadline);
    void reject(std::string_view why, std::string_view tensor);

    [[nodiscard]] bool updating() const { return updating_; }
    [[nodiscard]] std::uint64_t publication() const { return publication_; }
    [[nodiscard]] std::int64_t version() const { return version_; }
    [[nodiscard]] std::int64_t live_version() const { return live_version_; }
    [[nodiscard]] SubscriberState state() const { return state_; }
    [[nodiscard]] std::string_view problem() const { return problem_; }
    [[nodiscard]] std::span<const TensorInfo> tensors() const { return infos_; }
    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    [[nodiscard]] std::uint64_t imports() const { return imports_; }

  private:
    // A part that the device is reading.
    struct Reading {
        SubscriberImpl* self = nullptr;
        std::uint64_t position = 0;
    };

    SubscriberImpl(std::string_view ring, const SubscriberOptions& options, RingLink link)
        : ring_name_(ring), options_(options), link_(std::move(link)) {}
    Result<std::uint32_t> choose_rank(Deadline deadline) const;
    Result<void> meet(std::uint32_t rank, std::span<const WeightTensor> into, Deadline deadline);
    Result<void> take_seat(const Message& welcome, Deadline deadline);
    Result<void> import_slot(std::uint32_t slot, const WireTicket& ticket, Fd fd);
    Result<void> fetch_slot(std::uint32_t slot, Deadline deadline);
    [[nodiscard]] Result<void> check_target(const WeightTensor& tensor) const;
    using Targets = std::vector<std::vector<const WeightTensor*>>;
    Result<Targets> match(std::span<const WeightTensor> into) const;
    Result<void> compile(std::span<const WeightTensor> into);
    void describe_tensors();

    [[nodiscard]] const PublisherPage& publisher() const { return control_->publisher(); }
    [[nodiscard]] Bell& bell() const {
        return control_->bell(ControlPlaces::subscriber_bell(seat_));
    }
    void ring_publisher() const;
    // Waits for look(), checking now and then that the publisher lives and that we are admitted.
    template <class Look>
    Result<void> wait(std::string_view what, Deadline deadline, const Look& look);
    [[nodiscard]] Result<void> check_peer_alive() const;
    [[nodiscard]] bool expelled() const;
    [[nodiscard]] Outcome outcome() const;
    [[nodiscard]] Result<void> check_admitted() const;  // not expelled
    [[nodiscard]] Result<std::uint32_t> slot_of(std::uint32_t part) const;
    Result<void> verify(std::uint32_t part, const Chunk& chunk);
    [[nodiscard]] std::string what_is_held() const;
    void set_state(SubscriberState state);
    // The update cannot go on: what the engine holds is old and whole, or poisoned.
    std::unexpected<Error> give_up(Error why);
    void settle();
    // Waits, for so long at most, until the device reads nothing of ours any more.
    bool drain(Deadline deadline);
    static void part_reached(void* reading);

    std::string ring_name_;
    SubscriberOptions options_;
    RingLink link_;
    ProcessFd socket_;
    std::optional<PeerControl> control_;
    std::optional<LifeLock> life_;
    std::uint32_t seat_ = 0;
    std::uint64_t epoch_ = 0;
    Manifest manifest_;
    std::vector<TensorInfo> infos_;
    Backend backend_;
    std::vector<std::unique_ptr<Chunk>> chunks_;    // by slot
    std::vector<std::unique_ptr<CopyPlan>> plans_;  // by part; empty without `into`
    std::vector<std::vector<std::uint32_t>> sum_tensors_;
    std::vector<std::unique_ptr<CopyPlan>> sums_;  // by part, to verify; empty without checksums
    std::uint64_t imports_ = 0;

    std::mutex readings_mutex_;
    std::set<std::uint64_t> read_;                    // beyond read_done
    std::vector<std::unique_ptr<Reading>> readings_;  // by slot
    std::atomic<std::uint32_t> in_flight_ = 0;

    bool updating_ = false;
    bool touched_ = false;  // the engine's memory may have been written
    bool staged_ = false;
    bool came_late_ = false;      // the version was committed before we began to read it
    std::uint64_t settling_ = 0;  // under readings_mutex_: the publication to settle when quiet
    std::optional<std::uint32_t> asked_;  // a slot that was asked for and has not come
    std::uint64_t publication_ = 0;
    std::uint64_t first_position_ = 0;
    std::int64_t version_ = -1;
    std::uint32_t parts_lent_ = 0;
    std::uint32_t parts_done_ = 0;
    std::uint32_t lent_slot_ = 0;
    std::vector<TensorPiece> views_;
    SubscriberState state_ = SubscriberState::ready;
    std::int64_t live_version_ = -1;
    std::string problem_;
};

}  // namespace rollring::weights
