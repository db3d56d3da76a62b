#pragma once
// A subscriber at one publisher, and the version that it holds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend.hpp"
#include "control_map.hpp"
#include "control_socket.hpp"
#include "doorbell.hpp"
#include "gpus.hpp"
#include "greeting.hpp"
#include "liveness.hpp"
#include "manifest.hpp"
#include "reading.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

// The contents of an engine's memory, as far as its subscriber knows: one complete version, nothing
// yet, or a mixture.
class Holding {
  public:
    explicit Holding(std::int64_t held_version)
        : live_version_(held_version), received_version_(held_version) {}

    [[nodiscard]] SubscriberState state() const { return state_; }
    [[nodiscard]] std::int64_t live_version() const { return live_version_; }
    // The last one that it held complete: not live_version() once it went back.
    [[nodiscard]] std::int64_t received_version() const { return received_version_; }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    // Parts of two versions, or of one that may never be committed.
    [[nodiscard]] bool is_mixed() const {
        return state_ == SubscriberState::poisoned || being_written_;
    }
    // "this subscriber holds version 7 whole"
    [[nodiscard]] std::string text() const;

    void set(SubscriberState state) { state_ = state; }
    // From here on parts of an incoming version may be in the engine's memory.
    void touch() { being_written_ = true; }
    // It is no longer coming. `problem`: the reason.
    void give_up(std::string problem);
    void adopt(std::int64_t version);
    // It holds an earlier version again.
    void go_back(std::int64_t version);

  private:
    SubscriberState state_ = SubscriberState::ready;
    std::int64_t live_version_;
    std::int64_t received_version_;
    bool being_written_ = false;
    std::string problem_;
};

// One subscriber at one publisher: the connection, the seat, both sides' words in control memory,
// the publisher's slots as mapped here, and the reads that are under way.
class Session {
  public:
    // Parts of the subscriber.
    struct Own {
        const SubscriberOptions& options;
        const RingLink& link;
        const device::Gpus& gpus;
        const Holding& holding;
    };
    // Says hello to the publisher of a rank, checks its manifest and maps its slots. The arguments
    // must outlive the session. After not_found or peer_gone retry: the publisher may be starting.
    static Result<std::unique_ptr<Session>> meet(std::string_view ring, std::uint32_t rank,
                                                 const Own& own, Patience& patience);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    // Takes the seats at all these publishers, waits until all have admitted this engine, and
    // confirms that to all: from then on they count it. Until then it holds up no version of a
    // sharded trainer, and aborts none. Call it once; close the sessions after an error.
    static Result<void> enter(std::span<Session* const> sessions, Patience& patience);
    // Tells the publisher why this engine, which has no seat yet, takes no version.
    void tell_refusal(const RingLink& link, std::string_view why) const;
    // Unmaps everything and tells the publisher. False: the device may still read, so this must not
    // be destroyed.
    bool close();

    // In a forked child the session is the parent's.
    [[nodiscard]] bool is_ours() const { return maker_.is_this(); }
    [[nodiscard]] Result<void> check_process() const { return maker_.check("subscriber"); }
    [[nodiscard]] const Manifest& manifest() const { return manifest_; }
    [[nodiscard]] std::int64_t publisher_id() const { return control_->header().created_ns; }
    [[nodiscard]] device::Mover& mover() const { return *backend_.mover; }
    [[nodiscard]] device::Memory& memory() const { return *backend_.memory; }
    [[nodiscard]] Reading& reading() { return *reading_; }
    [[nodiscard]] std::uint64_t imports() const { return imports_; }

    // --- the publisher's words ---
    [[nodiscard]] const PublisherPage& publisher() const { return control_->publisher(); }
    // The latest publication that we must read.
    [[nodiscard]] std::uint64_t reads() const { return observe(control_->admission(seat_).reads); }
    [[nodiscard]] std::optional<PublicationView> look_up(std::uint64_t publication) const {
        return weights::look_up(publisher(), publication);
    }
    [[nodiscard]] std::string why_aborted(std::uint64_t publication) const;
    [[nodiscard]] bool is_filled(std::uint64_t part_number) const {
        return observe(publisher().filled) > part_number;
    }
    [[nodiscard]] bool is_too_late(std::uint64_t publication) const {
        return observe(control_->admission(seat_).too_late) >= publication;
    }
    // The slot of a part. bad_manifest: its line is damaged.
    [[nodiscard]] Result<std::uint32_t> slot_of(std::uint32_t part,
                                                std::uint64_t part_number) const;
    // The slot's memory. Can be retried after timed_out.
    Result<std::byte*> map_slot(std::uint32_t slot, Deadline deadline);
    [[nodiscard]] bool is_expelled() const {
        return observe(control_->admission(seat_).epoch) != epoch_;
    }
    [[nodiscard]] Result<void> check_admitted() const;
    // The publisher lives; peer_gone.
    [[nodiscard]] Result<void> check_publisher() const;
    // The same after its memory could not be opened.
    [[nodiscard]] Result<void> check_not_dying() const;
    // The decision of all ranks about a version, as rank 0 has it.
    [[nodiscard]] std::optional<Outcome> decision(std::int64_t version) const {
        return decided(control_->shown_ranks(), version);
    }

    // --- our words ---
    [[nodiscard]] SubscriberPage& own() const { return control_->own(); }
    void say(SubscriberState state) const {
        store_release(own().state, static_cast<std::uint32_t>(state));
    }
    void ring_publisher() const { ring_plain(publisher_bell()); }
    // Ends the current wait, or the next one; any thread may call it.
    void interrupt() {
        if (is_ours()) interruption_.raise(own_bell());
    }

    // Whether a wait of this subscriber for something else may go on: timed_out after interrupt(),
    // expelled, peer_gone.
    [[nodiscard]] Result<void> look_around(std::string_view what) const;
    // Waits for look(), and checks from time to time that the publisher lives and that we are
    // admitted. timed_out at the deadline, or after interrupt().
    template <class Look>
    Result<void> wait(std::string_view what, Deadline deadline, const Look& look,
                      std::chrono::nanoseconds spin_least = {}) const;

  private:
    Session(std::string_view ring, const SubscriberOptions& options, const Holding& holding)
        : ring_name_(ring), options_(options), holding_(&holding) {}
    Result<void> accept(Received welcome, const device::Gpus& gpus);
    Result<void> open_backend(const device::Gpus& gpus);
    Result<void> take_seat(Patience& patience);
    Result<void> wait_admitted(Patience& patience);
    Result<void> place_pieces(const SharedBlock& block);
    Result<void> import_slot(std::uint32_t slot, const WireTicket& ticket, Fd fd);
    [[nodiscard]] std::unexpected<Error> late(std::string_view what) const;
    [[nodiscard]] Bell& own_bell() const {
        return control_->bell(ControlOffsets::subscriber_bell(seat_));
    }
    [[nodiscard]] Bell& publisher_bell() const {
        return control_->bell(ControlOffsets::publisher_bell());
    }

    MakerProcess maker_;
    std::string ring_name_;
    SubscriberOptions options_;
    const Holding* holding_;
    mutable Interruption interruption_{};
    ProcessFd socket_;
    std::optional<PeerControl> control_;
    std::optional<LifeLock> life_;
    std::uint32_t seat_ = 0;
    std::uint64_t epoch_ = 0;
    Manifest manifest_;
    device::Backend backend_;
    std::vector<std::unique_ptr<SharedBlock>> slots_;
    bool is_placed_ = false;              // PayloadMemory::direct
    std::optional<std::uint32_t> asked_;  // a requested slot that has not come
    std::uint64_t imports_ = 0;
    std::optional<Reading> reading_;  // from enter() on
};

template <class Look>
Result<void> Session::wait(std::string_view what, Deadline deadline, const Look& look,
                           std::chrono::nanoseconds spin_least) const {
    constexpr std::int64_t between_ns = 50'000'000;
    std::int64_t looked_ns = 0;  // the first look checks life, too
    Result<void> problem;
    bool interrupted = false;
    const auto found = [&] {
        if (look()) return true;
        if (interruption_.take()) return interrupted = true;
        problem = check_admitted();
        if (!problem) return true;
        const std::int64_t now = monotonic_ns();
        if (now - looked_ns < between_ns) return false;
        looked_ns = now;
        problem = check_publisher();
        if (problem) problem = backend_.mover->health();
        // The publisher's last words before it went still count.
        if (!problem && look()) problem = {};
        return !problem || look();
    };
    const auto spin = std::max(options_.spin, spin_least);
    if (wait_plain(own_bell(), spin, deadline, found) && !interrupted) return problem;
    return late(what);
}

}  // namespace rollring::weights
