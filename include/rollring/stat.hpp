#pragma once
// Statistics for any process: those of a ring's stash (stat_ring() has those of its lanes), the
// cause of a stall, and the fields of each stat struct for reports and monitoring. The calls attach
// read-only; after the trainer's death they show the last state.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/consumer.hpp"
#include "rollring/error.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "rollring/version.hpp"
#include "rollring/weights.hpp"

namespace rollring {

struct StashStat {
    std::string ring;
    bool used;  // a stash was opened on this ring once; if not, all below is empty
    bool open;  // one is open now
    std::uint64_t open_groups;
    std::uint64_t max_open_groups;
    std::uint64_t max_open_bytes;     // 0: no limit
    std::uint64_t held_bytes;         // of records not yet acknowledged
    std::uint64_t copied_bytes;       // to the spill, over the ring's life
    std::uint64_t evacuated_records;  // likewise
    StashAccount account;             // since this stash, or the last one, was opened
    bool account_whole;               // false: its writer died in an update, or kept writing
    std::vector<GroupStat> groups;    // oldest first
    std::uint64_t rows_unread;        // groups left out for the same reasons
    LatestBatch latest_batch;         // of the open stash, else of the last one
};

// Never waits for the trainer, whatever it is doing.
ROLLRING_API Result<StashStat> stat_stash(std::string_view ring);

enum class Trouble : std::uint8_t {
    none,
    producer_died,  // a group waits, and a producer that has sent to it died
    no_progress,    // the trainer has read every record, cannot form a batch, and no record arrives
};
ROLLRING_API std::string_view name(Trouble trouble);

// The cause of a stall.
struct RunTrouble {
    Trouble trouble;
    std::string instance_id;  // of the oldest waiting group; empty if there is none
    std::string producer;     // that died, or sent last; empty: there was none
    std::uint32_t lane;
    std::uint32_t pid;    // of the producer, in its own PID namespace: for people
    std::int64_t for_ns;  // since the group changed, or since a record came
    std::string text;     // all of it in one sentence; empty: no trouble
};

// The caller's knowledge of the trainer.
enum class TrainerDoes : std::uint8_t {
    anything,  // with a group that is complete or leased it may be at work
    waits,     // it has waited for a batch for `stale_after`, whatever batches it holds
};

// Reports a stall of at least `stale_after`. It looks from outside, as stat_stash(): right after an
// ack, producers may have only just resumed.
ROLLRING_API Result<RunTrouble> find_trouble(std::string_view ring,
                                             std::chrono::nanoseconds stale_after,
                                             TrainerDoes trainer = TrainerDoes::anything);

// The fields of each stat struct, once: reports, tables and monitoring are made from them.
//
//   std::vector<std::string_view> names;
//   for_each_field<LaneStat>([&] (const auto& field) { names.push_back(field.name); });
//
// for_each_field(stat, visit) passes the value, too.
//
// `rollring metrics` exports those tables whose fields have a description.
// Lists of other stats (RingStat::lanes, StashStat::groups, ...) are not fields. An Amount is one
// field of two numbers, reported as records_NAME and tokens_NAME; DropAmounts is one for each
// reason.
enum class FieldUnit : std::uint8_t {
    none,  // names, states, numbers that are not added up
    count,
    bytes,
    seconds,       // the member is in ns, negative where it is not known; reported in seconds
    milliseconds,  // the member is in ns; reported in milliseconds
    timestamp,     // the member is in ns since 1970, and reported so
};

// A counter only grows while its writer lives; a gauge goes up and down; a fact does not change, or
// is not a number.
enum class FieldKind : std::uint8_t { fact, gauge, counter };

template <class Stat, class T>
struct Field {
    std::string_view name;
    FieldUnit unit;
    FieldKind kind;
    T Stat::* member;
    std::string_view about = {};  // for monitoring; a label needs none
};

namespace detail {
inline constexpr auto fact = FieldKind::fact;
inline constexpr auto gauge = FieldKind::gauge;
inline constexpr auto counter = FieldKind::counter;
}  // namespace detail

template <class Visit>
constexpr void each_field(const LaneStat*, Visit&& visit) {
    visit(Field{"lane", FieldUnit::none, detail::fact, &LaneStat::lane});
    visit(Field{"producer", FieldUnit::none, detail::fact, &LaneStat::producer});
    visit(Field{"pid", FieldUnit::none, detail::fact, &LaneStat::pid});
    visit(Field{"epoch", FieldUnit::none, detail::counter, &LaneStat::epoch,
                "Producers of the lane so far"});
    visit(Field{"alive", FieldUnit::none, detail::gauge, &LaneStat::alive,
                "Whether its producer is alive"});
    visit(Field{"retired", FieldUnit::none, detail::gauge, &LaneStat::retired,
                "Whether it is free for the next producer"});
    visit(Field{"died", FieldUnit::none, detail::gauge, &LaneStat::died,
                "Whether its latest producer is gone and has not closed"});
    visit(Field{"state", FieldUnit::none, detail::fact, &LaneStat::state});
    visit(Field{"depth_records", FieldUnit::count, detail::gauge, &LaneStat::depth_records,
                "Records committed and not yet delivered"});
    visit(Field{"depth_bytes", FieldUnit::bytes, detail::gauge, &LaneStat::depth_bytes,
                "Bytes committed and not yet released, which the lane pins"});
    visit(Field{"oldest_age_s", FieldUnit::seconds, detail::gauge, &LaneStat::oldest_age_ns,
                "Age of the oldest record that is not released"});
    visit(Field{"newest_age_s", FieldUnit::seconds, detail::gauge, &LaneStat::newest_age_ns,
                "Time since the producer's latest record"});
    visit(Field{"committed_records", FieldUnit::count, detail::counter,
                &LaneStat::committed_records, "Records committed"});
    visit(Field{"committed_tokens", FieldUnit::count, detail::counter, &LaneStat::committed_tokens,
                "Tokens committed"});
    visit(Field{"committed_bytes", FieldUnit::bytes, detail::counter, &LaneStat::committed_bytes,
                "Bytes committed"});
    visit(Field{"delivered_records", FieldUnit::count, detail::counter,
                &LaneStat::delivered_records, "Records delivered to the consumer"});
    visit(Field{"released_records", FieldUnit::count, detail::counter, &LaneStat::released_records,
                "Records released by the consumer"});
    visit(Field{"waits", FieldUnit::count, detail::counter, &LaneStat::waits,
                "Times that its producer waited for room"});
    visit(Field{"laps_soft", FieldUnit::count, detail::counter, &LaneStat::laps_soft,
                "Laps that ended early, to stay in cache"});
    visit(Field{"laps_full", FieldUnit::count, detail::counter, &LaneStat::laps_full,
                "Laps through the whole lane"});
    visit(Field{"jumps", FieldUnit::count, detail::counter, &LaneStat::jumps,
                "Skips over bytes that the consumer pins"});
    visit(Field{"lost", FieldUnit::count, detail::counter, &LaneStat::lost,
                "Records discarded after damage"});
    visit(Field{"duplicates", FieldUnit::count, detail::counter, &LaneStat::duplicates,
                "Duplicate records that were dropped"});
    visit(Field{"torn", FieldUnit::count, detail::counter, &LaneStat::torn,
                "Records refused by validation or checksum"});
    visit(Field{"redelivered", FieldUnit::count, detail::counter, &LaneStat::redelivered,
                "Records delivered again after a consumer's end"});
    visit(Field{"dropped_bytes", FieldUnit::bytes, detail::counter, &LaneStat::dropped_bytes,
                "Bytes discarded after damage"});
    visit(Field{"durable_records", FieldUnit::count, detail::gauge, &LaneStat::durable_records,
                "Records of the present producer that are in the ledger, or were dropped"});
    visit(Field{"producers_died", FieldUnit::count, detail::counter, &LaneStat::producers_died,
                "Producers of the lane that died"});
    visit(Field{"producers_closed", FieldUnit::count, detail::counter, &LaneStat::producers_closed,
                "Producers of the lane that closed"});
}

template <class Visit>
constexpr void each_field(const RingStat*, Visit&& visit) {
    visit(Field{"ring", FieldUnit::none, detail::fact, &RingStat::name});
    visit(Field{"lane_count", FieldUnit::count, detail::fact, &RingStat::lane_count,
                "Lanes of the ring"});
    visit(Field{"lane_bytes", FieldUnit::bytes, detail::fact, &RingStat::lane_bytes,
                "Bytes of a lane"});
    visit(Field{"soft_bytes", FieldUnit::bytes, detail::fact, &RingStat::soft_bytes,
                "Bytes after which a lap ends early"});
    visit(Field{"spill_bytes", FieldUnit::bytes, detail::fact, &RingStat::spill_bytes,
                "Bytes of the spill"});
    visit(Field{"overflow_bytes", FieldUnit::bytes, detail::fact, &RingStat::overflow_bytes,
                "Bytes of the spill that may lie in its overflow file"});
    visit(Field{"overflow_resident_bytes", FieldUnit::bytes, detail::gauge,
                &RingStat::overflow_resident_bytes,
                "Bytes that the overflow file has on the disk"});
    visit(Field{"overflow_file", FieldUnit::none, detail::fact, &RingStat::overflow_path});
    visit(Field{"ledger", FieldUnit::none, detail::fact, &RingStat::ledger_dir});
    visit(Field{"ledger_bytes", FieldUnit::bytes, detail::fact, &RingStat::ledger_bytes,
                "Bytes that the ring's ledger may take; 0: it has none"});
    visit(Field{"ledger_files_bytes", FieldUnit::bytes, detail::gauge,
                &RingStat::ledger_files_bytes, "Bytes of the ledger's files"});
    visit(Field{"ledger_failed", FieldUnit::none, detail::gauge, &RingStat::ledger_failed,
                "Whether the ledger's disk has failed, so that no later record is durable"});
    visit(Field{"durable", FieldUnit::none, detail::fact, &RingStat::durable});
    visit(Field{"object_bytes", FieldUnit::bytes, detail::fact, &RingStat::object_bytes,
                "Bytes of the shared-memory object, most of them holes"});
    visit(Field{"resident_bytes", FieldUnit::bytes, detail::gauge, &RingStat::resident_bytes,
                "Bytes reserved so far"});
    visit(Field{"created_ns", FieldUnit::timestamp, detail::fact, &RingStat::created_ns,
                "Creation time of the ring"});
    visit(Field{"consumer_alive", FieldUnit::none, detail::gauge, &RingStat::consumer_alive,
                "Whether the consumer is alive"});
    visit(Field{"consumer_pid", FieldUnit::none, detail::fact, &RingStat::consumer_pid});
    visit(Field{"consumer_epoch", FieldUnit::none, detail::counter, &RingStat::consumer_epoch,
                "Consumers of the ring so far"});
    visit(Field{"last_acked_step", FieldUnit::none, detail::gauge, &RingStat::last_acked_step,
                "The last step acknowledged"});
    visit(Field{"policy_version", FieldUnit::none, detail::gauge, &RingStat::policy_version,
                "The version that producers stamp on records"});
}

template <class Visit>
constexpr void each_field(const RingDiagnosis*, Visit&& visit) {
    visit(Field{"ring", FieldUnit::none, detail::fact, &RingDiagnosis::name});
    visit(Field{"health", FieldUnit::none, detail::fact, &RingDiagnosis::health});
    visit(Field{"in_use", FieldUnit::none, detail::gauge, &RingDiagnosis::in_use});
    visit(Field{"has_records", FieldUnit::none, detail::gauge, &RingDiagnosis::has_records});
    visit(Field{"orphaned", FieldUnit::none, detail::gauge, &RingDiagnosis::orphaned});
}

template <class Visit>
constexpr void each_field(const GroupStat*, Visit&& visit) {
    visit(Field{"key", FieldUnit::none, detail::fact, &GroupStat::key});
    visit(Field{"instance_id", FieldUnit::none, detail::fact, &GroupStat::instance_id});
    visit(Field{"state", FieldUnit::none, detail::fact, &GroupStat::state});
    visit(Field{"age_s", FieldUnit::seconds, detail::gauge, &GroupStat::age_ns});
    visit(Field{"unchanged_s", FieldUnit::seconds, detail::gauge, &GroupStat::unchanged_ns});
    visit(Field{"size", FieldUnit::none, detail::fact, &GroupStat::size});
    visit(Field{"complete", FieldUnit::none, detail::gauge, &GroupStat::complete});
    visit(Field{"failed", FieldUnit::none, detail::gauge, &GroupStat::failed});
    visit(Field{"records", FieldUnit::count, detail::gauge, &GroupStat::records});
    visit(Field{"tokens", FieldUnit::count, detail::gauge, &GroupStat::tokens});
    visit(Field{"missing", FieldUnit::none, detail::fact, &GroupStat::missing});
    visit(Field{"producers", FieldUnit::none, detail::fact, &GroupStat::producers});
}

template <class Visit>
constexpr void each_field(const StashStat*, Visit&& visit) {
    visit(Field{"ring", FieldUnit::none, detail::fact, &StashStat::ring});
    visit(Field{"used", FieldUnit::none, detail::gauge, &StashStat::used,
                "Whether a stash was ever opened on the ring"});
    visit(
        Field{"open", FieldUnit::none, detail::gauge, &StashStat::open, "Whether a stash is open"});
    visit(Field{"open_groups", FieldUnit::count, detail::gauge, &StashStat::open_groups,
                "Groups that are open"});
    visit(Field{"max_open_groups", FieldUnit::count, detail::gauge, &StashStat::max_open_groups,
                "Groups that may be open at once; 0: no limit"});
    visit(Field{"max_open_bytes", FieldUnit::bytes, detail::gauge, &StashStat::max_open_bytes,
                "Bytes that open groups may have; 0: no limit"});
    visit(Field{"held_bytes", FieldUnit::bytes, detail::gauge, &StashStat::held_bytes,
                "Bytes of records not yet acknowledged"});
    visit(Field{"copied_bytes", FieldUnit::bytes, detail::counter, &StashStat::copied_bytes,
                "Bytes copied to the spill"});
    visit(Field{"evacuated_records", FieldUnit::count, detail::counter,
                &StashStat::evacuated_records, "Records evacuated to the spill"});
    visit(Field{"rows_unread", FieldUnit::count, detail::gauge, &StashStat::rows_unread,
                "Groups that could not be read in this look"});
    visit(Field{"account_whole", FieldUnit::none, detail::gauge, &StashStat::account_whole,
                "Whether the account could be read as a whole"});
}

template <class Visit>
constexpr void each_field(const StashAccount*, Visit&& visit) {
    visit(Field{"accepted", FieldUnit::count, detail::counter, &StashAccount::accepted,
                "That the stash took"});
    visit(Field{"shipped", FieldUnit::count, detail::counter, &StashAccount::shipped,
                "That were trained on and acknowledged"});
    visit(Field{"held", FieldUnit::count, detail::gauge, &StashAccount::held,
                "That the stash has and has not leased"});
    visit(Field{"leased", FieldUnit::count, detail::gauge, &StashAccount::leased,
                "That are being trained on"});
    visit(Field{"dropped", FieldUnit::count, detail::counter, &StashAccount::dropped,
                "That were dropped"});
    visit(Field{"groups_opened", FieldUnit::count, detail::counter, &StashAccount::groups_opened,
                "Groups opened"});
    visit(Field{"groups", FieldUnit::count, detail::counter, &StashAccount::groups_shipped,
                "Groups trained on and acknowledged"});
    visit(Field{"groups_partial", FieldUnit::count, detail::counter, &StashAccount::groups_partial,
                "Groups trained on with fewer members than their size"});
    visit(Field{"groups_dropped", FieldUnit::count, detail::counter, &StashAccount::groups_dropped,
                "Groups dropped"});
    visit(Field{"batches", FieldUnit::count, detail::counter, &StashAccount::batches,
                "Batches acknowledged"});
    visit(Field{"size_conflicts", FieldUnit::count, detail::counter, &StashAccount::size_conflicts,
                "Members that name another group size than the first"});
    visit(Field{"bad_rewards", FieldUnit::count, detail::counter, &StashAccount::bad_rewards,
                "Records with a reward that is NaN or infinite"});
}

template <class Visit>
constexpr void each_field(const StashCopies*, Visit&& visit) {
    visit(Field{"copied_bytes", FieldUnit::bytes, detail::counter, &StashCopies::copied_bytes});
    visit(Field{"evacuated_records", FieldUnit::count, detail::counter,
                &StashCopies::evacuated_records});
    visit(Field{"batches_short", FieldUnit::count, detail::counter, &StashCopies::batches_short});
}

template <class Visit>
constexpr void each_field(const ConsumerStats*, Visit&& visit) {
    visit(Field{"records", FieldUnit::count, detail::counter, &ConsumerStats::records});
    visit(Field{"tokens", FieldUnit::count, detail::counter, &ConsumerStats::tokens});
    visit(Field{"bytes", FieldUnit::bytes, detail::counter, &ConsumerStats::bytes});
    visit(Field{"released", FieldUnit::count, detail::counter, &ConsumerStats::released});
    visit(Field{"lost", FieldUnit::count, detail::counter, &ConsumerStats::lost});
    visit(Field{"duplicates", FieldUnit::count, detail::counter, &ConsumerStats::duplicates});
    visit(Field{"torn", FieldUnit::count, detail::counter, &ConsumerStats::torn});
    visit(Field{"redelivered", FieldUnit::count, detail::counter, &ConsumerStats::redelivered});
    visit(Field{"producers_joined", FieldUnit::count, detail::counter,
                &ConsumerStats::producers_joined});
    visit(Field{"producers_closed", FieldUnit::count, detail::counter,
                &ConsumerStats::producers_closed});
    visit(
        Field{"producers_died", FieldUnit::count, detail::counter, &ConsumerStats::producers_died});
    visit(Field{"quarantines", FieldUnit::count, detail::counter, &ConsumerStats::quarantines});
    visit(Field{"dropped_bytes", FieldUnit::bytes, detail::counter, &ConsumerStats::dropped_bytes});
    visit(Field{"events_missed", FieldUnit::count, detail::counter, &ConsumerStats::events_missed});
    visit(Field{"strays", FieldUnit::count, detail::counter, &ConsumerStats::strays});
}

template <class Visit>
constexpr void each_field(const ProducerStats*, Visit&& visit) {
    visit(Field{"records", FieldUnit::count, detail::counter, &ProducerStats::records});
    visit(Field{"tokens", FieldUnit::count, detail::counter, &ProducerStats::tokens});
    visit(Field{"bytes", FieldUnit::bytes, detail::counter, &ProducerStats::bytes});
    visit(Field{"waits", FieldUnit::count, detail::counter, &ProducerStats::waits});
    visit(Field{"paces", FieldUnit::count, detail::counter, &ProducerStats::paces});
    visit(Field{"laps_soft", FieldUnit::count, detail::counter, &ProducerStats::laps_soft});
    visit(Field{"laps_full", FieldUnit::count, detail::counter, &ProducerStats::laps_full});
    visit(Field{"jumps", FieldUnit::count, detail::counter, &ProducerStats::jumps});
    visit(Field{"lane_bytes", FieldUnit::bytes, detail::fact, &ProducerStats::lane_bytes});
}

template <class Visit>
constexpr void each_field(const SubscriberStat*, Visit&& visit) {
    visit(Field{"name", FieldUnit::none, detail::fact, &SubscriberStat::name});
    visit(Field{"pid", FieldUnit::none, detail::fact, &SubscriberStat::pid});
    visit(Field{"alive", FieldUnit::none, detail::gauge, &SubscriberStat::alive,
                "Whether the engine is alive"});
    visit(Field{"gpu", FieldUnit::none, detail::fact, &SubscriberStat::gpu});
    visit(Field{"state", FieldUnit::none, detail::fact, &SubscriberStat::state});
    visit(Field{"read_done_parts", FieldUnit::count, detail::counter,
                &SubscriberStat::read_done_parts, "Parts that the engine has read"});
    visit(Field{"staged_version", FieldUnit::none, detail::gauge, &SubscriberStat::staged_version,
                "The version that the engine holds complete"});
    visit(Field{"live_version", FieldUnit::none, detail::gauge, &SubscriberStat::live_version,
                "The version that the engine serves"});
    visit(Field{"problem", FieldUnit::none, detail::fact, &SubscriberStat::problem});
}

template <class Visit>
constexpr void each_field(const DeltaReport*, Visit&& visit) {
    visit(Field{"version", FieldUnit::none, detail::gauge, &DeltaReport::version,
                "The last version that the engine took in by difference"});
    visit(Field{"way", FieldUnit::none, detail::fact, &DeltaReport::way});
    visit(Field{"elements", FieldUnit::count, detail::gauge, &DeltaReport::elements,
                "Elements that it compared"});
    visit(Field{"changed", FieldUnit::count, detail::gauge, &DeltaReport::changed,
                "Those of them that had changed"});
    visit(Field{"list_bytes", FieldUnit::bytes, detail::gauge, &DeltaReport::list_bytes,
                "Bytes of the list of their values"});
    visit(Field{"compare", FieldUnit::milliseconds, detail::gauge, &DeltaReport::compare_ns,
                "Comparing the version"});
    visit(Field{"swap", FieldUnit::milliseconds, detail::gauge, &DeltaReport::swap_ns,
                "Exchanging the values, which the engine waits for"});
}

template <class Visit>
constexpr void each_field(const SyncTimes*, Visit&& visit) {
    visit(Field{"wait_slot", FieldUnit::milliseconds, detail::gauge, &SyncTimes::wait_slot_ns,
                "Waiting for slots, which is part of put"});
    visit(Field{"put", FieldUnit::milliseconds, detail::gauge, &SyncTimes::put_ns,
                "Putting all tensors"});
    visit(Field{"publish", FieldUnit::milliseconds, detail::gauge, &SyncTimes::publish_ns,
                "Packing after put"});
    visit(Field{"staged", FieldUnit::milliseconds, detail::gauge, &SyncTimes::staged_ns,
                "Time until all engines had staged it"});
    visit(Field{"commit", FieldUnit::milliseconds, detail::gauge, &SyncTimes::commit_ns,
                "Time until all other ranks had staged it"});
}

template <class Visit>
constexpr void each_field(const WeightsStat*, Visit&& visit) {
    visit(Field{"publisher", FieldUnit::none, detail::fact, &WeightsStat::publisher});
    visit(Field{"rank", FieldUnit::none, detail::fact, &WeightsStat::rank});
    visit(Field{"ranks", FieldUnit::none, detail::fact, &WeightsStat::ranks});
    visit(Field{"pid", FieldUnit::none, detail::fact, &WeightsStat::pid});
    visit(Field{"gpu", FieldUnit::none, detail::fact, &WeightsStat::gpu});
    visit(Field{"memory", FieldUnit::none, detail::fact, &WeightsStat::memory});
    visit(Field{"why_not_direct", FieldUnit::none, detail::fact, &WeightsStat::why_not_direct});
    visit(Field{"tensors", FieldUnit::count, detail::fact, &WeightsStat::tensors,
                "Tensors of the channel"});
    visit(Field{"payload_bytes", FieldUnit::bytes, detail::fact, &WeightsStat::payload_bytes,
                "Bytes of a version"});
    visit(
        Field{"parts", FieldUnit::count, detail::fact, &WeightsStat::parts, "Parts of a version"});
    visit(Field{"slots", FieldUnit::none, detail::fact, &WeightsStat::slots});
    visit(Field{"slot_bytes", FieldUnit::bytes, detail::fact, &WeightsStat::slot_bytes,
                "Bytes of a slot"});
    visit(Field{"checksums", FieldUnit::none, detail::fact, &WeightsStat::checksums});
    visit(Field{"layout_hash", FieldUnit::none, detail::fact, &WeightsStat::layout_hash});
    visit(Field{"state", FieldUnit::none, detail::fact, &WeightsStat::state});
    visit(Field{"version", FieldUnit::none, detail::gauge, &WeightsStat::version,
                "The last version begun"});
    visit(Field{"committed_version", FieldUnit::none, detail::gauge,
                &WeightsStat::committed_version, "The last version committed"});
    visit(Field{"syncs", FieldUnit::count, detail::counter, &WeightsStat::syncs,
                "Versions committed"});
    visit(Field{"aborts", FieldUnit::count, detail::counter, &WeightsStat::aborts,
                "Versions aborted"});
    visit(Field{"handles_passed", FieldUnit::count, detail::counter, &WeightsStat::handles_passed,
                "Descriptors passed to engines and observers"});
}

// Calls visit(field) for each field of Stat.
template <class Stat, class Visit>
constexpr void for_each_field(Visit&& visit) {
    each_field(static_cast<const Stat*>(nullptr), visit);
}

// Calls visit(field, value) for each field of `stat`.
template <class Stat, class Visit>
constexpr void for_each_field(const Stat& stat, Visit&& visit) {
    each_field(&stat, [&](const auto& field) { visit(field, stat.*field.member); });
}

}  // namespace rollring
