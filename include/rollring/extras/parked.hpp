#pragma once
// Rollouts that are parked: a worker that ends in the middle of a trajectory leaves the tokens so
// far, and the state of its environment, in a file beside the ring's ledger. Another worker takes
// it up, of the same ring or of one that was restored, and goes on.
//
//   auto parking = rollring::Parking::open("run42");     // a ring with a ledger
//   if (!parking) ...
//   rollring::Draft draft("gsm8k/17");                   // as for a push
//   const auto parked = parking->park(draft);
//   if (!parked) ...
//
//   auto taken = parking->take();                        // in another worker
//   if (!taken || !*taken) ...                           // there is none
//   const auto tokens = (*taken)->record().token_ids();  // go on behind them, and push them all
//   const auto done = (*taken)->done();                  // once durable_records() counts it
//
// At least once: if the worker dies between the push and done(), another one takes the rollout,
// too, and the stash drops the record that comes second. docs/ledger.md has the rules.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"
#include "rollring/version.hpp"

namespace rollring {

struct ParkedInfo {
    std::string file;  // its name
    std::string ring;  // that it was parked for
    std::string instance_id;
    std::uint64_t visit;
    RepetitionId repetition_id;
    std::uint32_t tokens;
    std::uint64_t state_bytes;
    std::uint64_t file_bytes;
    std::int64_t parked_ns;  // CLOCK_REALTIME
    bool is_taken;           // by a living process
};

struct ParkedList {
    std::vector<ParkedInfo> rollouts;  // the oldest first
    std::vector<std::string> damaged;  // files that cannot be read, for people
};

// The rollouts that are parked beside a ledger; checks all of their bytes, and takes no part.
// Errors: permission_denied, system.
ROLLRING_API Result<ParkedList> list_parked(const std::filesystem::path& ledger_dir);

// A parked rollout that this process has taken, in memory of its own. Its file stays until done();
// the end of this object, or of its process, gives it back. One thread at a time; in a forked
// child, the calls that return a Result return Errc::forked.
class ROLLRING_API ParkedRollout {
  public:
    ParkedRollout(ParkedRollout&&) noexcept;
    ParkedRollout& operator=(ParkedRollout&&) noexcept;
    ~ParkedRollout();

    [[nodiscard]] const TrajectoryView& record() const;
    [[nodiscard]] std::span<const std::byte> state() const;
    [[nodiscard]] std::int64_t parked_ns() const;  // CLOCK_REALTIME

    // Removes it: its record is durable, or it is given up. A second call has no effect. Errors:
    // not_leased (it was given back), system (the file is still there, and this process has it).
    Result<void> done();
    // Lets others take it.
    void give_back();

  private:
    friend class Parking;
    struct ROLLRING_LOCAL Impl;
    explicit ParkedRollout(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// Parks and takes the rollouts of one ring. Any thread may call it, and it goes on once the ring is
// removed. A forked child may use it.
class ROLLRING_API Parking {
  public:
    // Errors: those of stat_ring(); invalid_argument: the ring has no ledger.
    static Result<Parking> open(std::string_view ring);
    Parking(Parking&&) noexcept;
    Parking& operator=(Parking&&) noexcept;
    ~Parking();

    [[nodiscard]] const Schema& schema() const;

    // Writes the draft and the state to the disk, whatever the ring's Durable is. It has all
    // columns that a record needs; one that names no policy version gets the ring's, as by a push.
    // `replaces`: is done once the new file is on the disk. Only bytes beyond those of its own
    // file, if that lies in this ledger, count for store_full.
    // Errors: bad_record; store_full: the rollouts that no process has would fill more than a
    // quarter of the ring's ledger_bytes; system and permission_denied: the disk refused or is
    // full. Nothing was parked then. forked, not_leased: of `replaces`, whose successor is parked.
    Result<void> park(const Draft& draft, std::span<const std::byte> state = {},
                      ParkedRollout* replaces = nullptr);

    // Whether the caller goes on with a rollout of this state.
    using Accept = std::function<bool(const TrajectoryView&, std::span<const std::byte>)>;
    // The rollout that was parked first, of those that no process has and that `accept` takes;
    // none: there is none now. Files that are damaged, of another version, or of other columns are
    // left out and left there: list_parked() names them. So are those of a ring of another name,
    // unless this ring was restored from it.
    // Errors: permission_denied, system.
    Result<std::optional<ParkedRollout>> take(const Accept& accept = {});

  private:
    struct ROLLRING_LOCAL Impl;
    explicit Parking(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
