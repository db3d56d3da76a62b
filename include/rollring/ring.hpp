#pragma once
// Rings by name: their creation, their removal, a look at one from outside, and plans of memory.
//
// A ring is one shared-memory object `/rollring.<uid>.<name>`, mode 0600, with a number of lanes.
// Each producer takes one lane; one consumer reads all of them. Memory is reserved when it is
// taken: the control pages at creation, a lane's pages when a producer comes. Extras may keep
// objects beside a ring, which are removed with it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/version.hpp"

namespace rollring {

// When a record of a ring with a ledger counts as durable.
enum class Durable : std::uint8_t {
    none,    // when it is written: the death of processes takes nothing of it
    group,   // when the disk has it; records that come while the disk works share the next wait
    record,  // likewise, and no batch has a record before that
};
ROLLRING_API std::string_view name(Durable durable);

// Most runs set only `lanes`, and `lane_bytes` where records are long. The order of the fields is
// stable, for designated initialisers.
struct RingOptions {
    std::uint32_t lanes = 64;  // producers at once, 1 to 4096
    // Rounded up to 4096; a record must fit. 0: 64 MiB, or less where memory is less (plan_ring).
    std::uint64_t lane_bytes = 0;
    // Turn back to the lane's start after this many bytes while the consumer keeps up, so that the
    // lane stays in cache. 0: the smaller of 4 MiB and a quarter of the last-level cache. Lanes
    // that are busy at once turn back earlier: they divide this, or a sixteenth of that cache if it
    // is more. lane_bytes or more: never.
    std::uint64_t soft_bytes = 0;
    std::uint32_t journal_records = 65536;  // the most records that one acknowledgement can hold
    // The size of the spill, to which a stash moves the records of groups that stay incomplete
    // while their lane fills up. Three quarters of it are the room for groups: producers wait
    // before they open one that may not fit.
    // It is reserved as it is needed, lane_bytes of it when a stash opens. A record longer than the
    // spill is never moved. 0: no spill, and promise P9 does not hold. Default: the memory that the
    // lanes leave, at most three quarters of the memory and 128 GiB; with an overflow_dir no more
    // than all lanes.
    std::optional<std::uint64_t> spill_bytes = {};
    // A directory on a disk, in which the spill continues when its memory is used up (or /dev/shm
    // is full) and the run would stand still. The file belongs to this ring, has mode 0600, is
    // removed with the ring, and takes disk space as needed: none while memory is enough.
    // Its records are read back at the disk's speed, and an I/O error of the disk kills the trainer
    // (SIGBUS). Empty: no file.
    std::string overflow_dir = {};
    // The largest part of the spill that may lie in that file; a five-hundredth of this number is
    // reserved in /dev/shm when a stash opens. Default: four times spill_bytes, at most 64 GiB.
    std::optional<std::uint64_t> overflow_bytes = {};
    // Groups that a stash can have open at once: 208 bytes each for a power of two,
    // at most 288, reserved when it opens.
    std::uint32_t group_rows = 32768;
    // Requests to workers (rollring/extras/requests.hpp): the number that may be under way at once,
    // at most 65,536, and the bytes of the longest. 0: none can be posted. Their memory is taken
    // when the first of the two ends opens.
    std::uint32_t requests = 1024;
    std::uint64_t request_bytes = std::uint64_t{2} << 20;
    // A directory for the ring's ledger (rollring/extras/ledger.hpp), made if it is missing: the
    // stash writes each record that it takes to files there, so that the death of the machine takes
    // none. It outlives the ring. Empty: no ledger.
    std::string ledger_dir = {};
    // Of its files, at least 1 MiB. While they are full, the stash takes no records.
    std::uint64_t ledger_bytes = std::uint64_t{64} << 30;
    Durable durable = Durable::group;
    Schema schema = Schema::standard();
    Purpose purpose = Purpose::records;
};

// Makes a ring. Any number of processes may try: one wins, the others get Errc::already_exists.
ROLLRING_API Result<void> create_ring(std::string_view name, const RingOptions& options = {});

// Requested options of an existing ring; those that are not set do not count.
struct RingExpectation {
    std::optional<std::uint32_t> lanes = {};
    std::optional<std::uint64_t> lane_bytes = {};
    std::optional<std::uint64_t> soft_bytes = {};
    std::optional<std::uint32_t> journal_records = {};
    std::optional<std::uint64_t> spill_bytes = {};
    std::optional<std::string> overflow_dir = {};
    std::optional<std::uint64_t> overflow_bytes = {};
    std::optional<std::uint32_t> group_rows = {};
    std::optional<std::uint32_t> requests = {};
    std::optional<std::uint64_t> request_bytes = {};
    std::optional<std::string> ledger_dir = {};
    std::optional<std::uint64_t> ledger_bytes = {};
    std::optional<Durable> durable = {};
    std::optional<Schema> schema = {};
};

// Compares an existing ring with these options, for a caller of create_ring() that accepts an equal
// ring: Errc::already_exists names the first option that differs, with both values.
ROLLRING_API Result<void> expect_ring(std::string_view name, const RingExpectation& wanted);

// Removes the name, the overflow file and the objects beside it; the memory is freed once no
// process maps it. Errc::busy while a live process is attached, unless forced. Unreleased records
// are lost. A live producer gets Push::closed with its next record, or within about a second if
// other software removed the name; a live consumer still reads the records sent before.
ROLLRING_API Result<void> remove_ring(std::string_view name, bool force = false);

// A ring that lives as long as this object, which removes it. If its process is killed, the ring is
// an orphan once no live process uses it: `rollring doctor --fix` removes it, and so does the next
// OwnedRing::create() of this user. In a forked child this object is inert.
class ROLLRING_API OwnedRing {
  public:
    static Result<OwnedRing> create(std::string_view name, const RingOptions& options = {});
    OwnedRing(OwnedRing&& other) noexcept;
    OwnedRing& operator=(OwnedRing&& other) noexcept;
    ~OwnedRing();

    [[nodiscard]] const std::string& name() const;

  private:
    struct State;
    explicit OwnedRing(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// Removes the rings of this user whose owner is dead, records included. Returns how many.
ROLLRING_API std::uint32_t remove_orphaned_rings();

// All objects of this user that carry our prefix, damaged and half-made ones included.
ROLLRING_API std::vector<std::string> list_rings();

// The objects that extras of this user kept beside rings which are gone, left there because the
// remover was killed. The next ring of the same name removes them, too.
ROLLRING_API std::vector<std::string> list_leftovers();
// Returns how many it has removed.
ROLLRING_API std::uint32_t remove_leftovers();

enum class LaneState {
    free,         // for the next producer
    active,       // its producer lives
    closed,       // its producer has closed it; the consumer has yet to read the rest
    dead,         // its producer died, likewise
    quarantined,  // damaged: nothing is read of it until its producer is gone
};
ROLLRING_API std::string_view name(LaneState state);

struct LaneStat {
    std::uint32_t lane;
    std::uint32_t epoch;   // how many producers have had it
    std::string producer;  // name of the latest
    std::uint32_t pid;     // in its own PID namespace: for people, not for decisions
    bool alive;            // proven by its lock
    bool retired;          // free for the next producer
    bool died;             // its producer is gone, and has not closed
    LaneState state;
    std::uint64_t depth_records;  // committed, not yet delivered
    std::uint64_t depth_bytes;    // committed, not yet released: the memory that it pins
    std::int64_t oldest_age_ns;   // of the oldest unreleased record; -1: none
    std::int64_t newest_age_ns;   // of the producer's latest record; -1: it has sent none
    std::uint64_t committed_records;
    std::uint64_t committed_tokens;
    std::uint64_t committed_bytes;
    std::uint64_t delivered_records;
    std::uint64_t released_records;
    std::uint64_t waits;
    std::uint64_t laps_soft;
    std::uint64_t laps_full;
    std::uint64_t jumps;
    std::uint64_t lost;
    std::uint64_t duplicates;
    std::uint64_t torn;
    std::uint64_t redelivered;
    std::uint64_t dropped_bytes;
    std::uint64_t producers_died;
    std::uint64_t producers_closed;
    // With a ledger: records of this epoch that it has, or that were dropped.
    std::uint64_t durable_records;
};

struct RingStat {
    std::string name;
    std::uint64_t ring_id;
    std::int64_t created_ns;  // CLOCK_REALTIME
    std::uint32_t lane_count;
    std::uint64_t lane_bytes;
    std::uint64_t soft_bytes;
    std::uint64_t spill_bytes;
    std::uint64_t overflow_bytes;           // of the spill in its overflow file; 0: it has none
    std::uint64_t overflow_resident_bytes;  // that the file has on the disk now
    std::string overflow_path;
    std::string ledger_dir;      // empty: it has no ledger
    std::uint64_t ledger_bytes;  // at most
    // Of its files now; 0 too if the directory cannot be read by this process.
    std::uint64_t ledger_files_bytes;
    bool ledger_failed;  // its disk has failed: no later record is durable
    Durable durable;
    std::uint64_t object_bytes;    // virtual: most of it is holes
    std::uint64_t resident_bytes;  // reserved so far, with the objects of extras beside the ring
    bool consumer_alive;
    std::uint32_t consumer_pid;
    std::uint32_t consumer_epoch;
    std::int64_t last_acked_step;  // -1: none yet
    std::int64_t policy_version;   // -1: none yet
    std::vector<LaneStat> lanes;   // those that ever had a producer
    Schema schema = Schema::standard();
};

// Attaches read-only and takes no part: works beside a live consumer.
ROLLRING_API Result<RingStat> stat_ring(std::string_view name);

enum class RingHealth {
    ok,
    unfinished,    // its creator died, or is at work
    damaged,       // not a ring, or its fixed pages contradict each other
    incompatible,  // of another version
    foreign,       // another user's, or with another mode
    unknown,       // it could not be examined (memory or descriptors are short): nothing is proven
};
ROLLRING_API std::string_view name(RingHealth health);

struct RingDiagnosis {
    std::string name;
    RingHealth health;
    bool in_use;       // some live process is attached, or its creator is at work
    bool has_records;  // unreleased ones
    bool orphaned;     // its owner is dead (OwnedRing): its records have no reader either
    std::string detail;
};

// The report of `rollring doctor` about one object.
ROLLRING_API RingDiagnosis diagnose_ring(std::string_view name);

// Free and total bytes of /dev/shm.
struct SharedMemorySpace {
    std::uint64_t free_bytes;
    std::uint64_t total_bytes;
};
ROLLRING_API SharedMemorySpace shared_memory_space();

// Text from other processes, made safe for a terminal: control characters become '?'.
ROLLRING_API std::string printable(std::string_view text);

// The sizes of a ring with these options on this machine, as create_ring() chooses them for options
// that are not given.
struct RingPlan {
    std::uint64_t lane_bytes;
    std::uint64_t spill_bytes;
    std::uint64_t taken_bytes;  // with every lane in use, and a trainer; the spill hardly used
    std::string why;            // how sizes that were not given were chosen; empty where all were
    std::string warning;        // memory is too small for all lanes at once; empty where it is not
};
ROLLRING_API Result<RingPlan> plan_ring(const RingOptions& options);

// The expected lengths of a run.
struct RunShape {
    std::uint32_t producers = 64;
    std::uint32_t group_size = 16;
    std::uint32_t tokens = 131'072;   // of the longest rollout, its prompt included
    std::uint32_t token_bytes = 9;    // token_ids (4), logprobs (4), loss_mask (1)
    std::uint32_t batch_groups = 16;  // that the trainer takes at once
};

// Sizes of a ring with which such a run does not wait for memory.
struct RunSizes {
    std::uint64_t record_bytes;
    std::uint64_t lane_bytes;
    std::uint64_t lanes_bytes;  // of all lanes together
    std::uint64_t spill_bytes;
    std::uint64_t fixed_bytes;     // control pages, the board of groups, released-bits
    std::uint64_t memory_bytes;    // all of it, in /dev/shm
    std::vector<std::string> why;  // the arithmetic, a line for each number
};
ROLLRING_API Result<RunSizes> size_run(const RunShape& shape);

// A limit on the memory of a ring on this machine.
struct MemoryBound {
    enum class Kind : std::uint8_t {
        space,          // of /dev/shm
        files,          // inodes of /dev/shm: a count, not bytes
        cgroup,         // memory.max or memory.limit_in_bytes, of each level of the hierarchy
        machine,        // memory and swap that the machine has
        object_length,  // RLIMIT_FSIZE: of one object, holes included
        address_space,  // RLIMIT_AS: of all that this process maps
    };
    Kind kind;
    std::string name;     // "/dev/shm", "RLIMIT_FSIZE (ulimit -f)", ...
    std::uint64_t free;   // bytes, or files
    std::uint64_t total;  // likewise
    std::string remedy;   // a phrase: "raise the limit"

    // Whether pages that are reserved count against it.
    [[nodiscard]] bool of_pages() const {
        return kind == Kind::space || kind == Kind::cgroup || kind == Kind::machine;
    }
};

// All known bounds: those of pages first, and among these the one with the fewest free bytes. A
// bound that cannot be read is left out, and so is a /dev/shm without a limit (statvfs: 0 blocks).
ROLLRING_API std::vector<MemoryBound> memory_bounds();

// The bound of pages with the fewest free bytes: that many can be reserved now. None known: 2^63.
ROLLRING_API MemoryBound least_memory_bound();

// The smallest total of these bounds: the memory that this machine has for rings if nothing else
// takes any. None known: 2^63.
ROLLRING_API std::uint64_t memory_total();

}  // namespace rollring
