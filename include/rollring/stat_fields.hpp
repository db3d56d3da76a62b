#pragma once
// The fields of each stat struct, once: reports, tables and monitoring are made from them.
//
//   for (each field of lane_fields) report(field.name, field.unit, stat.*field.member)
//
// `rollring metrics` exports those tables whose fields have a description.
// Lists of other stats (RingStat::lanes, StashStat::groups, ...) are not fields. An Amount is one
// field of two numbers, reported as records_NAME and tokens_NAME; DropAmounts is one for each
// reason.

#include <cstdint>
#include <string_view>
#include <tuple>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "rollring/stash_stat.hpp"
#include "rollring/weights.hpp"

namespace rollring {

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

inline constexpr std::tuple lane_fields{
    Field{"lane", FieldUnit::none, detail::fact, &LaneStat::lane},
    Field{"producer", FieldUnit::none, detail::fact, &LaneStat::producer},
    Field{"pid", FieldUnit::none, detail::fact, &LaneStat::pid},
    Field{"epoch", FieldUnit::none, detail::counter, &LaneStat::epoch,
          "Producers of the lane so far"},
    Field{"alive", FieldUnit::none, detail::gauge, &LaneStat::alive,
          "Whether its producer is alive"},
    Field{"retired", FieldUnit::none, detail::gauge, &LaneStat::retired,
          "Whether it is free for the next producer"},
    Field{"died", FieldUnit::none, detail::gauge, &LaneStat::died,
          "Whether its latest producer is gone and has not closed"},
    Field{"state", FieldUnit::none, detail::fact, &LaneStat::state},
    Field{"depth_records", FieldUnit::count, detail::gauge, &LaneStat::depth_records,
          "Records committed and not yet delivered"},
    Field{"depth_bytes", FieldUnit::bytes, detail::gauge, &LaneStat::depth_bytes,
          "Bytes committed and not yet released, which the lane pins"},
    Field{"oldest_age_s", FieldUnit::seconds, detail::gauge, &LaneStat::oldest_age_ns,
          "Age of the oldest record that is not released"},
    Field{"newest_age_s", FieldUnit::seconds, detail::gauge, &LaneStat::newest_age_ns,
          "Time since the producer's latest record"},
    Field{"committed_records", FieldUnit::count, detail::counter, &LaneStat::committed_records,
          "Records committed"},
    Field{"committed_tokens", FieldUnit::count, detail::counter, &LaneStat::committed_tokens,
          "Tokens committed"},
    Field{"committed_bytes", FieldUnit::bytes, detail::counter, &LaneStat::committed_bytes,
          "Bytes committed"},
    Field{"delivered_records", FieldUnit::count, detail::counter, &LaneStat::delivered_records,
          "Records delivered to the consumer"},
    Field{"released_records", FieldUnit::count, detail::counter, &LaneStat::released_records,
          "Records released by the consumer"},
    Field{"waits", FieldUnit::count, detail::counter, &LaneStat::waits,
          "Times that its producer waited for room"},
    Field{"laps_soft", FieldUnit::count, detail::counter, &LaneStat::laps_soft,
          "Laps that ended early, to stay in cache"},
    Field{"laps_full", FieldUnit::count, detail::counter, &LaneStat::laps_full,
          "Laps through the whole lane"},
    Field{"jumps", FieldUnit::count, detail::counter, &LaneStat::jumps,
          "Skips over bytes that the consumer pins"},
    Field{"lost", FieldUnit::count, detail::counter, &LaneStat::lost,
          "Records discarded after damage"},
    Field{"duplicates", FieldUnit::count, detail::counter, &LaneStat::duplicates,
          "Duplicate records that were dropped"},
    Field{"torn", FieldUnit::count, detail::counter, &LaneStat::torn,
          "Records refused by validation or checksum"},
    Field{"redelivered", FieldUnit::count, detail::counter, &LaneStat::redelivered,
          "Records delivered again after a consumer's end"},
    Field{"dropped_bytes", FieldUnit::bytes, detail::counter, &LaneStat::dropped_bytes,
          "Bytes discarded after damage"},
    Field{"producers_died", FieldUnit::count, detail::counter, &LaneStat::producers_died,
          "Producers of the lane that died"},
    Field{"producers_closed", FieldUnit::count, detail::counter, &LaneStat::producers_closed,
          "Producers of the lane that closed"},
};

inline constexpr std::tuple ring_fields{
    Field{"ring", FieldUnit::none, detail::fact, &RingStat::name},
    Field{"lane_count", FieldUnit::count, detail::fact, &RingStat::lane_count, "Lanes of the ring"},
    Field{"lane_bytes", FieldUnit::bytes, detail::fact, &RingStat::lane_bytes, "Bytes of a lane"},
    Field{"soft_bytes", FieldUnit::bytes, detail::fact, &RingStat::soft_bytes,
          "Bytes after which a lap ends early"},
    Field{"spill_bytes", FieldUnit::bytes, detail::fact, &RingStat::spill_bytes,
          "Bytes of the spill"},
    Field{"overflow_bytes", FieldUnit::bytes, detail::fact, &RingStat::overflow_bytes,
          "Bytes of the spill that may lie in its overflow file"},
    Field{"overflow_resident_bytes", FieldUnit::bytes, detail::gauge,
          &RingStat::overflow_resident_bytes, "Bytes that the overflow file has on the disk"},
    Field{"overflow_file", FieldUnit::none, detail::fact, &RingStat::overflow_path},
    Field{"object_bytes", FieldUnit::bytes, detail::fact, &RingStat::object_bytes,
          "Bytes of the shared-memory object, most of them holes"},
    Field{"resident_bytes", FieldUnit::bytes, detail::gauge, &RingStat::resident_bytes,
          "Bytes reserved so far"},
    Field{"created_ns", FieldUnit::timestamp, detail::fact, &RingStat::created_ns,
          "Creation time of the ring"},
    Field{"consumer_alive", FieldUnit::none, detail::gauge, &RingStat::consumer_alive,
          "Whether the consumer is alive"},
    Field{"consumer_pid", FieldUnit::none, detail::fact, &RingStat::consumer_pid},
    Field{"consumer_epoch", FieldUnit::none, detail::counter, &RingStat::consumer_epoch,
          "Consumers of the ring so far"},
    Field{"last_acked_step", FieldUnit::none, detail::gauge, &RingStat::last_acked_step,
          "The last step acknowledged"},
    Field{"policy_version", FieldUnit::none, detail::gauge, &RingStat::policy_version,
          "The version that producers stamp on records"},
};

inline constexpr std::tuple diagnosis_fields{
    Field{"ring", FieldUnit::none, detail::fact, &RingDiagnosis::name},
    Field{"health", FieldUnit::none, detail::fact, &RingDiagnosis::health},
    Field{"in_use", FieldUnit::none, detail::gauge, &RingDiagnosis::in_use},
    Field{"has_records", FieldUnit::none, detail::gauge, &RingDiagnosis::has_records},
    Field{"orphaned", FieldUnit::none, detail::gauge, &RingDiagnosis::orphaned},
};

inline constexpr std::tuple group_fields{
    Field{"key", FieldUnit::none, detail::fact, &GroupStat::key},
    Field{"instance_id", FieldUnit::none, detail::fact, &GroupStat::instance_id},
    Field{"state", FieldUnit::none, detail::fact, &GroupStat::state},
    Field{"age_s", FieldUnit::seconds, detail::gauge, &GroupStat::age_ns},
    Field{"unchanged_s", FieldUnit::seconds, detail::gauge, &GroupStat::unchanged_ns},
    Field{"size", FieldUnit::none, detail::fact, &GroupStat::size},
    Field{"complete", FieldUnit::none, detail::gauge, &GroupStat::complete},
    Field{"failed", FieldUnit::none, detail::gauge, &GroupStat::failed},
    Field{"records", FieldUnit::count, detail::gauge, &GroupStat::records},
    Field{"tokens", FieldUnit::count, detail::gauge, &GroupStat::tokens},
    Field{"missing", FieldUnit::none, detail::fact, &GroupStat::missing},
    Field{"producers", FieldUnit::none, detail::fact, &GroupStat::producers},
};

inline constexpr std::tuple stash_fields{
    Field{"ring", FieldUnit::none, detail::fact, &StashStat::ring},
    Field{"used", FieldUnit::none, detail::gauge, &StashStat::used,
          "Whether a stash was ever opened on the ring"},
    Field{"open", FieldUnit::none, detail::gauge, &StashStat::open, "Whether a stash is open"},
    Field{"open_groups", FieldUnit::count, detail::gauge, &StashStat::open_groups,
          "Groups that are open"},
    Field{"max_open_groups", FieldUnit::count, detail::gauge, &StashStat::max_open_groups,
          "Groups that may be open at once; 0: no limit"},
    Field{"max_open_bytes", FieldUnit::bytes, detail::gauge, &StashStat::max_open_bytes,
          "Bytes that open groups may have; 0: no limit"},
    Field{"held_bytes", FieldUnit::bytes, detail::gauge, &StashStat::held_bytes,
          "Bytes of records not yet acknowledged"},
    Field{"copied_bytes", FieldUnit::bytes, detail::counter, &StashStat::copied_bytes,
          "Bytes copied to the spill"},
    Field{"evacuated_records", FieldUnit::count, detail::counter, &StashStat::evacuated_records,
          "Records evacuated to the spill"},
    Field{"rows_unread", FieldUnit::count, detail::gauge, &StashStat::rows_unread,
          "Groups that could not be read in this look"},
    Field{"account_whole", FieldUnit::none, detail::gauge, &StashStat::account_whole,
          "Whether the account could be read as a whole"},
};

inline constexpr std::tuple account_fields{
    Field{"accepted", FieldUnit::count, detail::counter, &StashAccount::accepted,
          "That the stash took"},
    Field{"shipped", FieldUnit::count, detail::counter, &StashAccount::shipped,
          "That were trained on and acknowledged"},
    Field{"held", FieldUnit::count, detail::gauge, &StashAccount::held,
          "That the stash has and has not leased"},
    Field{"leased", FieldUnit::count, detail::gauge, &StashAccount::leased,
          "That are being trained on"},
    Field{"dropped", FieldUnit::count, detail::counter, &StashAccount::dropped,
          "That were dropped"},
    Field{"groups_opened", FieldUnit::count, detail::counter, &StashAccount::groups_opened,
          "Groups opened"},
    Field{"groups", FieldUnit::count, detail::counter, &StashAccount::groups_shipped,
          "Groups trained on and acknowledged"},
    Field{"groups_partial", FieldUnit::count, detail::counter, &StashAccount::groups_partial,
          "Groups trained on with fewer members than their size"},
    Field{"groups_dropped", FieldUnit::count, detail::counter, &StashAccount::groups_dropped,
          "Groups dropped"},
    Field{"batches", FieldUnit::count, detail::counter, &StashAccount::batches,
          "Batches acknowledged"},
    Field{"size_conflicts", FieldUnit::count, detail::counter, &StashAccount::size_conflicts,
          "Members that name another group size than the first"},
    Field{"bad_rewards", FieldUnit::count, detail::counter, &StashAccount::bad_rewards,
          "Records with a reward that is NaN or infinite"},
};

inline constexpr std::tuple copies_fields{
    Field{"copied_bytes", FieldUnit::bytes, detail::counter, &StashCopies::copied_bytes},
    Field{"evacuated_records", FieldUnit::count, detail::counter, &StashCopies::evacuated_records},
    Field{"batches_short", FieldUnit::count, detail::counter, &StashCopies::batches_short},
};

inline constexpr std::tuple consumer_fields{
    Field{"records", FieldUnit::count, detail::counter, &ConsumerStats::records},
    Field{"tokens", FieldUnit::count, detail::counter, &ConsumerStats::tokens},
    Field{"bytes", FieldUnit::bytes, detail::counter, &ConsumerStats::bytes},
    Field{"released", FieldUnit::count, detail::counter, &ConsumerStats::released},
    Field{"lost", FieldUnit::count, detail::counter, &ConsumerStats::lost},
    Field{"duplicates", FieldUnit::count, detail::counter, &ConsumerStats::duplicates},
    Field{"torn", FieldUnit::count, detail::counter, &ConsumerStats::torn},
    Field{"redelivered", FieldUnit::count, detail::counter, &ConsumerStats::redelivered},
    Field{"producers_joined", FieldUnit::count, detail::counter, &ConsumerStats::producers_joined},
    Field{"producers_closed", FieldUnit::count, detail::counter, &ConsumerStats::producers_closed},
    Field{"producers_died", FieldUnit::count, detail::counter, &ConsumerStats::producers_died},
    Field{"quarantines", FieldUnit::count, detail::counter, &ConsumerStats::quarantines},
    Field{"dropped_bytes", FieldUnit::bytes, detail::counter, &ConsumerStats::dropped_bytes},
    Field{"events_missed", FieldUnit::count, detail::counter, &ConsumerStats::events_missed},
    Field{"strays", FieldUnit::count, detail::counter, &ConsumerStats::strays},
};

inline constexpr std::tuple producer_fields{
    Field{"records", FieldUnit::count, detail::counter, &ProducerStats::records},
    Field{"tokens", FieldUnit::count, detail::counter, &ProducerStats::tokens},
    Field{"bytes", FieldUnit::bytes, detail::counter, &ProducerStats::bytes},
    Field{"waits", FieldUnit::count, detail::counter, &ProducerStats::waits},
    Field{"paces", FieldUnit::count, detail::counter, &ProducerStats::paces},
    Field{"laps_soft", FieldUnit::count, detail::counter, &ProducerStats::laps_soft},
    Field{"laps_full", FieldUnit::count, detail::counter, &ProducerStats::laps_full},
    Field{"jumps", FieldUnit::count, detail::counter, &ProducerStats::jumps},
    Field{"lane_bytes", FieldUnit::bytes, detail::fact, &ProducerStats::lane_bytes},
};

inline constexpr std::tuple subscriber_fields{
    Field{"name", FieldUnit::none, detail::fact, &SubscriberStat::name},
    Field{"pid", FieldUnit::none, detail::fact, &SubscriberStat::pid},
    Field{"alive", FieldUnit::none, detail::gauge, &SubscriberStat::alive,
          "Whether the engine is alive"},
    Field{"gpu", FieldUnit::none, detail::fact, &SubscriberStat::gpu},
    Field{"state", FieldUnit::none, detail::fact, &SubscriberStat::state},
    Field{"read_done_parts", FieldUnit::count, detail::counter, &SubscriberStat::read_done_parts,
          "Parts that the engine has read"},
    Field{"staged_version", FieldUnit::none, detail::gauge, &SubscriberStat::staged_version,
          "The version that the engine holds complete"},
    Field{"live_version", FieldUnit::none, detail::gauge, &SubscriberStat::live_version,
          "The version that the engine serves"},
    Field{"problem", FieldUnit::none, detail::fact, &SubscriberStat::problem},
};

inline constexpr std::tuple sync_fields{
    Field{"wait_slot", FieldUnit::milliseconds, detail::gauge, &SyncTimes::wait_slot_ns,
          "Waiting for slots, which is part of put"},
    Field{"put", FieldUnit::milliseconds, detail::gauge, &SyncTimes::put_ns, "Putting all tensors"},
    Field{"publish", FieldUnit::milliseconds, detail::gauge, &SyncTimes::publish_ns,
          "Packing after put"},
    Field{"staged", FieldUnit::milliseconds, detail::gauge, &SyncTimes::staged_ns,
          "Time until all engines had staged it"},
    Field{"commit", FieldUnit::milliseconds, detail::gauge, &SyncTimes::commit_ns,
          "Time until all other ranks had staged it"},
};

inline constexpr std::tuple weights_fields{
    Field{"publisher", FieldUnit::none, detail::fact, &WeightsStat::publisher},
    Field{"rank", FieldUnit::none, detail::fact, &WeightsStat::rank},
    Field{"ranks", FieldUnit::none, detail::fact, &WeightsStat::ranks},
    Field{"pid", FieldUnit::none, detail::fact, &WeightsStat::pid},
    Field{"gpu", FieldUnit::none, detail::fact, &WeightsStat::gpu},
    Field{"memory", FieldUnit::none, detail::fact, &WeightsStat::memory},
    Field{"tensors", FieldUnit::count, detail::fact, &WeightsStat::tensors,
          "Tensors of the channel"},
    Field{"payload_bytes", FieldUnit::bytes, detail::fact, &WeightsStat::payload_bytes,
          "Bytes of a version"},
    Field{"parts", FieldUnit::count, detail::fact, &WeightsStat::parts, "Parts of a version"},
    Field{"slots", FieldUnit::none, detail::fact, &WeightsStat::slots},
    Field{"slot_bytes", FieldUnit::bytes, detail::fact, &WeightsStat::slot_bytes,
          "Bytes of a slot"},
    Field{"checksums", FieldUnit::none, detail::fact, &WeightsStat::checksums},
    Field{"layout_hash", FieldUnit::none, detail::fact, &WeightsStat::layout_hash},
    Field{"state", FieldUnit::none, detail::fact, &WeightsStat::state},
    Field{"version", FieldUnit::none, detail::gauge, &WeightsStat::version,
          "The last version begun"},
    Field{"committed_version", FieldUnit::none, detail::gauge, &WeightsStat::committed_version,
          "The last version committed"},
    Field{"syncs", FieldUnit::count, detail::counter, &WeightsStat::syncs, "Versions committed"},
    Field{"aborts", FieldUnit::count, detail::counter, &WeightsStat::aborts, "Versions aborted"},
    Field{"handles_passed", FieldUnit::count, detail::counter, &WeightsStat::handles_passed,
          "Descriptors passed to engines and observers"},
};

// The table of a stat struct.
constexpr const auto& fields_of(const LaneStat&) {
    return lane_fields;
}
constexpr const auto& fields_of(const RingStat&) {
    return ring_fields;
}
constexpr const auto& fields_of(const RingDiagnosis&) {
    return diagnosis_fields;
}
constexpr const auto& fields_of(const GroupStat&) {
    return group_fields;
}
constexpr const auto& fields_of(const StashStat&) {
    return stash_fields;
}
constexpr const auto& fields_of(const StashAccount&) {
    return account_fields;
}
constexpr const auto& fields_of(const StashCopies&) {
    return copies_fields;
}
constexpr const auto& fields_of(const ConsumerStats&) {
    return consumer_fields;
}
constexpr const auto& fields_of(const ProducerStats&) {
    return producer_fields;
}
constexpr const auto& fields_of(const SubscriberStat&) {
    return subscriber_fields;
}
constexpr const auto& fields_of(const SyncTimes&) {
    return sync_fields;
}
constexpr const auto& fields_of(const WeightsStat&) {
    return weights_fields;
}

// Calls visit(field, value) for each field.
template <class Stat, class Visit>
constexpr void for_each_field(const Stat& stat, Visit&& visit) {
    std::apply([&](const auto&... field) { (visit(field, stat.*field.member), ...); },
               fields_of(stat));
}

}  // namespace rollring
