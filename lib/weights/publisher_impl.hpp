#pragma once
// What a Publisher and its Transaction share.

#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "control_map.hpp"
#include "group_link.hpp"
#include "liveness.hpp"
#include "manifest.hpp"
#include "memory.hpp"
#include "reception.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"
#include "seats.hpp"

namespace rollring::weights {

class PublisherImpl {
  public:
    static Result<std::unique_ptr<PublisherImpl>> create(std::string_view ring,
                                                         std::span<const WeightTensor> tensors,
                                                         const PublisherOptions& options);
    // Before destruction; false: it must not be destroyed.
    bool shut_down();

    Result<void> begin(std::int64_t version);
    Result<void> put_all(Deadline deadline, Stream stream);
    Result<void> put(std::string_view tensor, const void* source, Deadline deadline, Stream stream);
    Result<void> publish_all();
    Result<CommitReport> commit(Deadline deadline);
    void abort(std::string_view why);
    Result<CommitReport> resend(Deadline deadline, Stream stream);
    Result<void> expel(const std::string& name);
    // Waits until `count()` reaches what is wanted.
    template <class Count>
    Result<void> wait_for(std::uint32_t wanted, std::string_view what, Deadline deadline,
                          const Count& count);

    [[nodiscard]] bool is_open() const { return open_; }
    [[nodiscard]] std::uint64_t publication() const { return publication_; }
    [[nodiscard]] std::int64_t version() const { return version_; }
    [[nodiscard]] std::int64_t committed() const { return committed_; }
    [[nodiscard]] const Packing& packing() const { return manifest_.packing; }
    [[nodiscard]] std::uint32_t slots() const { return manifest_.slots; }
    [[nodiscard]] Seats& seats() { return seats_; }
    [[nodiscard]] PublisherPage& page() const { return control_.publisher(); }

  private:
    // A part that the device is filling.
    struct Arrival {
        PublisherImpl* self = nullptr;
        Slot* slot = nullptr;
        std::uint64_t position = 0;
    };

    PublisherImpl(std::string_view ring, const PublisherOptions& options, RingLink link,
                  OwnControl control);
    Result<void> set_up(std::span<const WeightTensor> tensors);
    Result<void> make_backend(std::span<const WeightTensor> tensors);
    void open_publication(std::int64_t version, bool only_behind);
    Result<Slot*> wait_slot(Deadline deadline);
    Result<void> open_part(Deadline deadline);
    Result<void> close_part(Stream stream);
    static void part_reached(void* arrival);
    Result<void> wait_staged(Deadline deadline);
    Result<void> decide_with_group(Deadline deadline);
    void finish_commit();
    // Error of a wait that ended without what it waited for.
    [[nodiscard]] Error silent(std::string_view stage, std::string_view who) const;
    // Calls look() as wait_plain does, and drops dead subscribers now and then.
    template <class Look>
    bool wait(Bell& bell, Deadline deadline, const Look& look);
    [[nodiscard]] std::optional<std::uint64_t> sums_offset() const;
    Result<void> check_open() const;

    std::string ring_name_;
    PublisherOptions options_;
    RingLink link_;
    std::uint64_t token_ = 0;
    std::vector<WeightTensor> tensors_;
    std::unordered_map<std::string_view, std::uint32_t> index_;
    std::string unaddressed_;  // a tensor that can only be put by name; empty: none
    Manifest manifest_;
    Sealed manifest_memory_;
    Backend backend_;
    std::vector<std::unique_ptr<CopyPlan>> plans_;  // by part
    OwnControl control_;
    std::optional<LifeLock> life_;
    Seats seats_;
    std::optional<GroupLink> group_;  // with more than one rank
    std::unique_ptr<Reception> reception_;

    std::mutex arrivals_mutex_;
    std::set<std::uint64_t> arrived_;                 // beyond `filled`
    std::vector<std::unique_ptr<Arrival>> arrivals_;  // by slot index
    std::atomic<std::int64_t> filled_ns_ = 0;         // when the last part arrived

    // The open publication.
    bool open_ = false;
    bool put_done_ = false;
    bool resending_ = false;
    std::uint64_t publication_ = 0;
    std::int64_t version_ = -1;  // begun last
    std::int64_t committed_ = -1;
    std::uint64_t next_position_ = 0;
    std::uint64_t end_position_ = 0;
    std::uint32_t next_piece_ = 0;  // of all pieces
    std::uint32_t next_part_ = 0;
    Slot* filling_ = nullptr;  // the slot of the part that `put` is in
    std::uint32_t filling_index_ = 0;
    Stream put_stream_;  // of the last piece
    CommitReport report_;
    std::int64_t begun_ns_ = 0;
    std::int64_t put_done_ns_ = 0;
};

}  // namespace rollring::weights
