#pragma once
// An Atropos server's groups, in a ring: posted groups go into lanes, and a batch is leased from
// the stash until the trainer asks for the next one.
//
//   posted  -> in the ring before `received` is answered, so that no death loses it
//   batch   -> leased; its records stay in the ring
//   the next batch is asked for -> acknowledged
//   the trainer registers again, or was not there to read the answer -> the same batch once more
//
// Any thread may call any function.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/formats/parsed_record.hpp"
#include "integrations/atropos/atropos_book.hpp"
#include "integrations/atropos/atropos_json.hpp"
#include "integrations/atropos/atropos_state.hpp"
#include "integrations/atropos/lane_pool.hpp"
#include "rollring/stash.hpp"

namespace rollring::cli {

struct AtroposHubOptions {
    std::string ring;
    std::string state_path;
    std::int64_t hold_ms = 240'000;  // below the 5 minutes that Atropos' client waits for an answer
};

class AtroposHub {
  public:
    static Result<std::unique_ptr<AtroposHub>> open(const AtroposHubOptions& options);

    [[nodiscard]] const Schema& schema() const { return lanes_->schema(); }
    [[nodiscard]] const std::string& ring() const { return options_.ring; }

    // Posts the members of one group, each with a number of next_id() in its meta.visit. Waits
    // while the ring is full. `buffered`: the sequences kept back if the group differs from the
    // announced size.
    struct Posted {
        LaneSend sent;
        std::optional<std::uint64_t> buffered = {};
        std::string problem = {};
    };
    Posted post(std::span<ParsedRecord> members, const std::function<bool()>& gone);
    std::uint64_t next_id();  // increases, across restarts too

    // The next batch, as the JSON of its groups; empty if the waiting groups do not fill a batch.
    // Call `delivered` in the same thread, with true if the answer was written.
    struct Handed {
        std::optional<std::string> groups;
        std::function<void(bool written)> delivered = {};
        std::string problem = {};  // why the trainer's side is missing: retry
    };
    Handed next_batch();
    // The trainer starts anew: an outstanding batch is delivered again.
    void register_trainer(const AtroposTrainer& trainer);
    // Whether another trainer reads the ring directly and so receives all records.
    [[nodiscard]] bool read_by_another() const { return !reads_ && lanes_->consumer_alive(); }
    // Adds groups of other producers to the book while the trainer is between requests.
    void look();
    // Drops everything, the ring's records included. Returns the reason on failure.
    std::string reset();

    // The book under its lock; saves the book afterwards if `keep`.
    template <class F>
    auto with_book(F&& change, bool keep) {
        const std::scoped_lock lock(book_mutex_);
        struct Kept {
            AtroposHub* hub;
            ~Kept() {
                if (hub != nullptr) hub->save();
            }
        } kept{keep ? this : nullptr};
        return std::forward<F>(change)(book_);
    }

    struct Counts {
        std::uint64_t groups = 0;     // received
        std::uint64_t batches = 0;    // acknowledged
        std::uint64_t sequences = 0;  // in them
        std::uint64_t handed = 0;     // in the batch that is not acknowledged yet
    };
    [[nodiscard]] Counts counts();
    // Whether a server that starts later has anything to continue: a registered trainer or
    // environment.
    [[nodiscard]] bool has_clients();
    // If the ring is full because no batch can be formed: the reason.
    [[nodiscard]] std::optional<std::string> stuck();

  private:
    struct Leased {
        AtroposEntry entry;
        Batch batch;
    };
    struct ByHash {
        bool operator()(const GroupKey& one, const GroupKey& other) const {
            return std::pair(one.low, one.high) < std::pair(other.low, other.high);
        }
    };

    explicit AtroposHub(AtroposHubOptions options) : options_(std::move(options)) {}
    // The following require trainer_mutex_.
    std::string open_stash();
    void finish_last();
    bool lease_all(std::span<const AtroposEntry> wanted);
    void lease_what_came(Deadline deadline = Deadline::now());
    void adopt(Leased stranger);
    std::string text_of(std::span<const AtroposEntry> entries);
    void delivered(bool written);
    // The following require book_mutex_.
    [[nodiscard]] Result<void> write_down() const;
    void save();

    AtroposHubOptions options_;
    std::uint64_t ring_id_ = 0;
    std::unique_ptr<LanePool> lanes_;

    std::mutex trainer_mutex_;  // taken before book_mutex_: guards the stash and its leases
    std::unique_ptr<Stash> stash_;
    std::atomic<bool> reads_ = false;         // stash_ is open
    std::map<std::uint64_t, Leased> leased_;  // by id
    std::vector<AtroposEntry> handed_;        // the batch that the trainer has
    bool written_ = false;                    // its answer was written

    std::mutex book_mutex_;
    AtroposBook book_;
    std::map<GroupKey, std::uint64_t, ByHash> posted_;  // IDs of groups that were not leased yet
    std::vector<std::string> receipts_;                 // of handed_, once it is written
    bool again_ = false;                                // the trainer has registered since
    std::uint64_t last_id_ = 0;
    Counts counts_;
};

}  // namespace rollring::cli
