#pragma once
// The records that a forwarder of another ring has sent, put into the receiver's ring.
//
// Records of one lane of the source go in order, and wait for each other as they would in their
// producer; records of other lanes do not wait for them. Only records of the same lane wait for a
// group's place.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "carried.hpp"
#include "parcel.hpp"
#include "rollring/producer.hpp"
#include "spare_places.hpp"

namespace rollring::relay {

struct InboxStats {
    std::uint64_t records;
    std::uint64_t tokens;
    std::uint64_t bytes;
    std::uint64_t repeated;  // carried before
    std::uint64_t refused;   // damaged, or too long for the ring
    std::uint64_t waiting;   // given, and not in the ring yet
};

class Inbox {
  public:
    // A group that a producer on another node wants to open.
    struct Asked {
        std::uint64_t number;
        std::uint64_t worker;  // its number
        std::string instance_id;
        std::uint64_t visit;
        GroupPlan plan;
    };
    struct Answer {
        std::uint64_t number;
        Push push;
        std::string why;
    };
    // The results of a step.
    struct News {
        std::vector<std::uint64_t> sent;  // parcels, all of whose records are in the ring
        std::vector<Answer> answers;
        std::uint64_t spare = 0;  // places that the source has in advance
        bool is_short = false;    // the source should return places that it does not use
        Push problem = Push::ok;  // closed: the ring is gone, or the lane
        std::string why;
    };

    // Takes a lane of the ring whose RingStat::ring_id is `carried.destination()`. Errc::closed:
    // another ring has that name by now, and nothing was sent to it.
    static Result<std::unique_ptr<Inbox>> open(std::string_view ring,
                                               const ProducerOptions& options, Carried carried);

    // Any thread may call it. Spans stay unchanged until the parcel was sent or dropped. `spare`:
    // places that the source wants in advance. Returns the fault of the parcel; empty: there is
    // none.
    std::string_view give(std::uint64_t number, std::vector<ParcelEntry> entries,
                          const std::vector<std::span<const std::byte>>& spans,
                          std::uint64_t spare);
    void ask(Asked asked);
    void forget(std::uint64_t asked);  // its worker no longer waits
    // Returns a place that this worker has taken for a group of which nothing was sent.
    void cancel(std::uint64_t worker, const GroupKey& key);
    void worker_gone(std::uint64_t worker);  // returns all its places
    // The source's forwarder starts anew, and sends unsent records again. Requires that no step is
    // under way.
    void drop_parcels();
    // The workers that have places. Requires that no step is under way.
    [[nodiscard]] std::vector<std::uint64_t> workers() { return carried_.places().workers(); }
    [[nodiscard]] std::uint64_t spare() const { return spare_.count(); }
    void interrupt();

    // For one thread. Waits until there is anything to report.
    News step(Deadline deadline);
    void close();
    [[nodiscard]] InboxStats stats() const;

  private:
    Inbox(Producer producer, Carried carried);

    struct alignas(64) Line {
        std::byte bytes[64];
    };
    struct Parcel {
        std::uint64_t number;
        std::vector<ParcelEntry> entries;
        std::vector<std::span<const std::byte>> spans;
        std::uint64_t spare;
        // Copies of spans without the alignment of records.
        std::vector<std::vector<Line>> aligned = {};
        std::size_t left = 0;  // entries that are not in the ring
    };
    struct Item {
        std::shared_ptr<Parcel> parcel;
        const ParcelEntry* entry;
    };
    // A worker whose places are returned.
    struct Cancelled {
        std::uint64_t worker;
        std::optional<GroupKey> key;  // none: all its groups
    };
    enum class Went { on, no_room, no_place, closed };

    void take_in(News& news);
    void give_back(const Cancelled& cancelled);
    void settle();
    void answer_asked(News& news);
    bool look(const Item& item);
    Went send(const Item& item, Deadline deadline);
    Went send_next(std::size_t lane, Deadline deadline, News& news);
    Went send_all(News& news, std::size_t& first);
    void wait(Went why, std::size_t first, Deadline deadline, News& news);

    Producer producer_;
    Carried carried_;
    SparePlaces spare_{producer_, carried_.places()};
    TrajectoryView view_;
    Draft draft_;
    std::vector<std::deque<Item>> lanes_;
    std::size_t turn_ = 0;  // the lane whose turn it is
    std::deque<Asked> asked_;
    InboxStats stats_{};

    mutable std::mutex mutex_;  // guards the members below
    std::condition_variable given_;
    std::vector<std::shared_ptr<Parcel>> parcels_;
    std::vector<Asked> new_asked_;
    std::vector<std::uint64_t> forgotten_;
    std::vector<Cancelled> cancelled_;
    bool interrupted_ = false;
    InboxStats shown_{};
};

}  // namespace rollring::relay
