#pragma once
// Staging by difference: the list of a version's differences from the engine's tensors, its
// exchange with them, and the version that an exchange back restores.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "difference.hpp"
#include "rollring/weights.hpp"
#include "session.hpp"

namespace rollring::weights {

class DeltaStaging {
  public:
    // `bytes`: of all tensors. `held`: all parts stay readable until the version is adopted.
    DeltaStaging(std::unique_ptr<device::Difference> difference, const SubscriberOptions& options,
                 std::uint64_t bytes, bool held = false);

    // Begins a version; the one before cannot be rolled back any more. `holding`: of the engine.
    // Waits for an exchange that the device has not ended. Can be retried after timed_out.
    Result<void> start(std::int64_t version, const Holding& holding, Deadline deadline);
    // Lists the differences of parts from `first` on, one in each of the slots. False: there is no
    // room, so the differences of the parts before them are in the tensors now, and these and all
    // later parts are to be copied there. Of parts that are held, nothing is in the tensors, and
    // all are to be copied once the version is committed.
    // too_large, out_of_device_memory, system: there is no room, and that is not allowed.
    // After another error the device may still read the slots. timed_out: a call with the same
    // parts and slots goes on, in the stream of the first call.
    Result<bool> take(std::uint32_t first, std::span<const std::byte* const> slots, Stream stream,
                      Deadline deadline, Holding& holding);
    // Of a call to take that failed: the stream on which the device may still read the slots.
    [[nodiscard]] std::optional<Stream> comparing() const { return comparing_; }
    // The same when the version is given up: the next one has nothing to go on with.
    std::optional<Stream> leave() { return std::exchange(comparing_, std::nullopt); }
    // Waits until the device does nothing more for this object; comparisons apart.
    Result<void> end_exchange(Deadline deadline) { return difference_->end_exchange(deadline); }
    // Exchanges the values of the version, which is committed.
    Result<void> swap_in(Holding& holding);
    // Exchanges them back; returns the version before.
    Result<std::int64_t> roll_back(Holding& holding);

    // Whether all parts so far are in the list.
    [[nodiscard]] bool is_listed() const { return listed_; }
    [[nodiscard]] bool can_roll_back() const { return before_.has_value(); }
    [[nodiscard]] const DeltaReport& report() const { return report_; }

  private:
    [[nodiscard]] std::unexpected<Error> no_room(device::Fit fit) const;
    void count();

    std::unique_ptr<device::Difference> difference_;
    DeltaFallback fallback_;
    Device device_;
    std::uint64_t list_bytes_;
    bool held_;
    std::uint64_t kept_bytes_ = 0;     // of the list's memory, from one version to the next
    std::uint64_t swapped_bytes_ = 0;  // of the last list whose version was adopted
    std::uint32_t parts_ = 0;          // of the version, that are in the list
    bool listed_ = true;               // all of its parts so far are
    bool was_whole_ = false;           // the tensors held one version before it, or none
    bool may_copy_ = false;            // into the tensors, if the list is full
    std::optional<Stream> comparing_;
    std::optional<std::int64_t> before_;  // the version that rolling back restores
    DeltaReport report_;
};

// Shows a report to other processes.
void show_delta(const DeltaReport& report, SubscriberPage& page);
// The report of a page; without one its version is -1.
DeltaReport shown_delta(const SubscriberPage& page);

}  // namespace rollring::weights
