#pragma once
// Control memory as one process maps it: writable only where it writes.

#include <cstdint>
#include <optional>

#include "control.hpp"
#include "sealed.hpp"

namespace rollring::weights {

// The control memory as its publisher has it.
class OwnControl {
  public:
    static Result<OwnControl> make(const ControlHeader& facts);

    [[nodiscard]] const Sealed& memory() const { return memory_; }
    // Used by Publication alone.
    [[nodiscard]] PublisherPage& publisher_to_write() const {
        return front_.at<PublisherPage>(offsets_.publisher());
    }
    [[nodiscard]] AdmissionLine& admission(std::uint32_t seat) const {
        return front_.at<AdmissionLine>(offsets_.admission(seat));
    }
    // Used by Refusals alone.
    [[nodiscard]] RefusalsPage& refusals() const {
        return front_.at<RefusalsPage>(offsets_.refusals());
    }
    [[nodiscard]] RanksPage& ranks_page() const {
        return front_.at<RanksPage>(offsets_.ranks_page());
    }
    [[nodiscard]] Bell& bell(std::uint64_t offset) const {
        return front_.at<Bell>(offsets_.bells() + offset);
    }
    [[nodiscard]] const SubscriberPage& subscriber(std::uint32_t seat) const {
        return seats_.at<const SubscriberPage>(offsets_.subscriber(seat) - offsets_.subscriber(0));
    }
    [[nodiscard]] const ControlOffsets& offsets() const { return offsets_; }
    [[nodiscard]] std::uint64_t bytes() const { return offsets_.end(); }
    [[nodiscard]] std::int64_t created_ns() const { return front_.at<ControlHeader>(0).created_ns; }

  private:
    ControlOffsets offsets_{};
    Sealed memory_;
    Mapping front_;  // up to the subscribers' pages
    Mapping seats_;
};

// The control memory as every other process has it.
class PeerControl {
  public:
    // Checks every field of the header before it is used.
    static Result<PeerControl> accept(Fd fd, std::uint64_t control_bytes);

    // Map the pages that this process writes: a subscriber its page, a rank the ranks page; both
    // the bells.
    Result<void> take_seat(std::uint32_t seat);
    Result<void> take_rank();

    [[nodiscard]] const Sealed& memory() const { return memory_; }
    [[nodiscard]] const ControlHeader& header() const { return header_; }  // our own copy
    [[nodiscard]] const PublisherPage& publisher() const {
        return all_.at<const PublisherPage>(offsets_.publisher());
    }
    [[nodiscard]] const AdmissionLine& admission(std::uint32_t seat) const {
        return all_.at<const AdmissionLine>(offsets_.admission(seat));
    }
    [[nodiscard]] const RefusalsPage& refusals() const {
        return all_.at<const RefusalsPage>(offsets_.refusals());
    }
    [[nodiscard]] const SubscriberPage& subscriber(std::uint32_t seat) const {
        return all_.at<const SubscriberPage>(offsets_.subscriber(seat));
    }
    [[nodiscard]] const RanksPage& shown_ranks() const {
        return all_.at<const RanksPage>(offsets_.ranks_page());
    }
    [[nodiscard]] SubscriberPage& own() const { return own_.at<SubscriberPage>(0); }
    [[nodiscard]] RanksPage& ranks_page() const { return own_.at<RanksPage>(0); }
    [[nodiscard]] Bell& bell(std::uint64_t offset) const { return bells_.at<Bell>(offset); }
    [[nodiscard]] const ControlOffsets& offsets() const { return offsets_; }

  private:
    ControlHeader header_{};
    ControlOffsets offsets_{};
    Sealed memory_;
    Mapping all_;
    Mapping bells_;
    Mapping own_;
};

// A consistent copy of a publication's line; empty if the line has another publication by now.
struct PublicationView {
    std::int64_t version;
    std::uint64_t first_part_number;
    Outcome outcome;
    bool put;
};
std::optional<PublicationView> look_up(const PublisherPage& page, std::uint64_t publication);

// The ranks' decision about a version, once there is one.
std::optional<Outcome> decided(const RanksPage& page, std::int64_t version);
// Decides unless this version or a later one is decided; whether it did.
bool decide(RanksPage& page, std::int64_t version, Outcome outcome);

}  // namespace rollring::weights
