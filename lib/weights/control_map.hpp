#pragma once
// Control memory as one process maps it: writable only what it writes.

#include <cstdint>
#include <optional>

#include "control.hpp"
#include "sealed.hpp"

namespace rollring::weights {

// As its publisher has it.
class OwnControl {
  public:
    static Result<OwnControl> make(const ControlHeader& facts);

    [[nodiscard]] const Sealed& memory() const { return memory_; }
    [[nodiscard]] PublisherPage& publisher() const {
        return front_.at<PublisherPage>(places_.publisher());
    }
    [[nodiscard]] AdmissionLine& admission(std::uint32_t seat) const {
        return front_.at<AdmissionLine>(places_.admission(seat));
    }
    [[nodiscard]] GroupPage& group() const { return front_.at<GroupPage>(places_.group()); }
    [[nodiscard]] Bell& bell(std::uint64_t offset) const {
        return front_.at<Bell>(places_.bells() + offset);
    }
    [[nodiscard]] const SubscriberPage& subscriber(std::uint32_t seat) const {
        return seats_.at<const SubscriberPage>(places_.subscriber(seat) - places_.subscriber(0));
    }
    [[nodiscard]] const ControlPlaces& places() const { return places_; }
    [[nodiscard]] std::uint64_t bytes() const { return places_.end(); }
    [[nodiscard]] std::int64_t created_ns() const { return front_.at<ControlHeader>(0).created_ns; }

  private:
    ControlPlaces places_{};
    Sealed memory_;
    SealedMapping front_;  // up to the subscribers' pages
    SealedMapping seats_;
};

// As anyone else has it.
class PeerControl {
  public:
    // Checks every field of the header before it is used.
    static Result<PeerControl> accept(Fd fd, std::uint64_t control_bytes);

    // What this process writes: a subscriber its page, a rank the group page; both the bells.
    Result<void> take_seat(std::uint32_t seat);
    Result<void> take_rank();

    [[nodiscard]] const Sealed& memory() const { return memory_; }
    [[nodiscard]] const ControlHeader& header() const { return header_; }  // our own copy
    [[nodiscard]] const PublisherPage& publisher() const {
        return all_.at<const PublisherPage>(places_.publisher());
    }
    [[nodiscard]] const AdmissionLine& admission(std::uint32_t seat) const {
        return all_.at<const AdmissionLine>(places_.admission(seat));
    }
    [[nodiscard]] const SubscriberPage& subscriber(std::uint32_t seat) const {
        return all_.at<const SubscriberPage>(places_.subscriber(seat));
    }
    [[nodiscard]] SubscriberPage& own() const { return own_.at<SubscriberPage>(0); }
    [[nodiscard]] GroupPage& group() const { return own_.at<GroupPage>(0); }
    [[nodiscard]] Bell& bell(std::uint64_t offset) const { return bells_.at<Bell>(offset); }
    [[nodiscard]] const ControlPlaces& places() const { return places_; }

  private:
    ControlHeader header_{};
    ControlPlaces places_{};
    Sealed memory_;
    SealedMapping all_;
    SealedMapping bells_;
    SealedMapping own_;
};

// A consistent copy of a publication's line; empty if it is of another publication by now.
struct PublicationView {
    std::int64_t version;
    std::uint64_t first_position;
    Outcome outcome;
    bool put;
};
std::optional<PublicationView> look_up(const PublisherPage& page, std::uint64_t publication);

}  // namespace rollring::weights
