#pragma once
// The fields of each stat struct, once: what reports, tables and monitoring are made of.
//
//   for (each field of lane_fields) report(field.name, field.unit, stat.*field.member)
//
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
};

// A counter only grows while its writer lives; a gauge goes up and down; a fact does not change, or
// is no number.
enum class FieldKind : std::uint8_t { fact, gauge, counter };

template <class Stat, class T>
struct Field {
    std::string_view name;
    FieldUnit unit;
    FieldKind kind;
    T Stat::* member;
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
    Field{"epoch", FieldUnit::none, detail::counter, &LaneStat::epoch},
    Field{"alive", FieldUnit::none, detail::gauge, &LaneStat::alive},
    Field{"retired", FieldUnit::none, detail::gauge, &LaneStat::retired},
    Field{"died", FieldUnit::none, detail::gauge, &LaneStat::died},
    Field{"state", FieldUnit::none, detail::fact, &LaneStat::state},
    Field{"depth_records", FieldUnit::count, detail::gauge, &LaneStat::depth_records},
    Field{"depth_bytes", FieldUnit::bytes, detail::gauge, &LaneStat::depth_bytes},
    Field{"oldest_age_s", FieldUnit::seconds, detail::gauge, &LaneStat::oldest_age_ns},
    Field{"newest_age_s", FieldUnit::seconds, detail::gauge, &LaneStat::newest_age_ns},
    Field{"committed_records", FieldUnit::count, detail::counter, &LaneStat::committed_records},
    Field{"committed_tokens", FieldUnit::count, detail::counter, &LaneStat::committed_tokens},
    Field{"committed_bytes", FieldUnit::bytes, detail::counter, &LaneStat::committed_bytes},
    Field{"delivered_records", FieldUnit::count, detail::counter, &LaneStat::delivered_records},
    Field{"released_records", FieldUnit::count, detail::counter, &LaneStat::released_records},
    Field{"waits", FieldUnit::count, detail::counter, &LaneStat::waits},
    Field{"laps_soft", FieldUnit::count, detail::counter, &LaneStat::laps_soft},
    Field{"laps_full", FieldUnit::count, detail::counter, &LaneStat::laps_full},
    Field{"jumps", FieldUnit::count, detail::counter, &LaneStat::jumps},
    Field{"lost", FieldUnit::count, detail::counter, &LaneStat::lost},
    Field{"duplicates", FieldUnit::count, detail::counter, &LaneStat::duplicates},
    Field{"torn", FieldUnit::count, detail::counter, &LaneStat::torn},
    Field{"redelivered", FieldUnit::count, detail::counter, &LaneStat::redelivered},
    Field{"dropped_bytes", FieldUnit::bytes, detail::counter, &LaneStat::dropped_bytes},
    Field{"producers_died", FieldUnit::count, detail::counter, &LaneStat::producers_died},
    Field{"producers_closed", FieldUnit::count, detail::counter, &LaneStat::producers_closed},
};

inline constexpr std::tuple ring_fields{
    Field{"ring", FieldUnit::none, detail::fact, &RingStat::name},
    Field{"lane_count", FieldUnit::none, detail::fact, &RingStat::lane_count},
    Field{"lane_bytes", FieldUnit::bytes, detail::fact, &RingStat::lane_bytes},
    Field{"soft_bytes", FieldUnit::bytes, detail::fact, &RingStat::soft_bytes},
    Field{"spill_bytes", FieldUnit::bytes, detail::fact, &RingStat::spill_bytes},
    Field{"overflow_bytes", FieldUnit::bytes, detail::fact, &RingStat::overflow_bytes},
    Field{"overflow_resident_bytes", FieldUnit::bytes, detail::gauge,
          &RingStat::overflow_resident_bytes},
    Field{"overflow_file", FieldUnit::none, detail::fact, &RingStat::overflow_path},
    Field{"object_bytes", FieldUnit::bytes, detail::fact, &RingStat::object_bytes},
    Field{"resident_bytes", FieldUnit::bytes, detail::gauge, &RingStat::resident_bytes},
    Field{"created_ns", FieldUnit::none, detail::fact, &RingStat::created_ns},
    Field{"consumer_alive", FieldUnit::none, detail::gauge, &RingStat::consumer_alive},
    Field{"consumer_pid", FieldUnit::none, detail::fact, &RingStat::consumer_pid},
    Field{"consumer_epoch", FieldUnit::none, detail::counter, &RingStat::consumer_epoch},
    Field{"last_acked_step", FieldUnit::none, detail::gauge, &RingStat::last_acked_step},
    Field{"policy_version", FieldUnit::none, detail::gauge, &RingStat::policy_version},
};

inline constexpr std::tuple diagnosis_fields{
    Field{"ring", FieldUnit::none, detail::fact, &RingDiagnosis::name},
    Field{"health", FieldUnit::none, detail::fact, &RingDiagnosis::health},
    Field{"in_use", FieldUnit::none, detail::gauge, &RingDiagnosis::in_use},
    Field{"has_records", FieldUnit::none, detail::gauge, &RingDiagnosis::has_records},
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
    Field{"used", FieldUnit::none, detail::gauge, &StashStat::used},
    Field{"open", FieldUnit::none, detail::gauge, &StashStat::open},
    Field{"open_groups", FieldUnit::count, detail::gauge, &StashStat::open_groups},
    Field{"max_open_groups", FieldUnit::count, detail::gauge, &StashStat::max_open_groups},
    Field{"max_open_bytes", FieldUnit::bytes, detail::gauge, &StashStat::max_open_bytes},
    Field{"held_bytes", FieldUnit::bytes, detail::gauge, &StashStat::held_bytes},
    Field{"copied_bytes", FieldUnit::bytes, detail::counter, &StashStat::copied_bytes},
    Field{"evacuated_records", FieldUnit::count, detail::counter, &StashStat::evacuated_records},
    Field{"rows_unread", FieldUnit::count, detail::gauge, &StashStat::rows_unread},
    Field{"account_whole", FieldUnit::none, detail::gauge, &StashStat::account_whole},
};

inline constexpr std::tuple account_fields{
    Field{"accepted", FieldUnit::count, detail::counter, &StashAccount::accepted},
    Field{"shipped", FieldUnit::count, detail::counter, &StashAccount::shipped},
    Field{"held", FieldUnit::count, detail::gauge, &StashAccount::held},
    Field{"leased", FieldUnit::count, detail::gauge, &StashAccount::leased},
    Field{"dropped", FieldUnit::count, detail::counter, &StashAccount::dropped},
    Field{"groups_opened", FieldUnit::count, detail::counter, &StashAccount::groups_opened},
    Field{"groups", FieldUnit::count, detail::counter, &StashAccount::groups_shipped},
    Field{"groups_partial", FieldUnit::count, detail::counter, &StashAccount::groups_partial},
    Field{"groups_dropped", FieldUnit::count, detail::counter, &StashAccount::groups_dropped},
    Field{"batches", FieldUnit::count, detail::counter, &StashAccount::batches},
    Field{"size_conflicts", FieldUnit::count, detail::counter, &StashAccount::size_conflicts},
    Field{"bad_rewards", FieldUnit::count, detail::counter, &StashAccount::bad_rewards},
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
};

inline constexpr std::tuple subscriber_fields{
    Field{"name", FieldUnit::none, detail::fact, &SubscriberStat::name},
    Field{"pid", FieldUnit::none, detail::fact, &SubscriberStat::pid},
    Field{"alive", FieldUnit::none, detail::gauge, &SubscriberStat::alive},
    Field{"gpu", FieldUnit::none, detail::fact, &SubscriberStat::gpu},
    Field{"state", FieldUnit::none, detail::fact, &SubscriberStat::state},
    Field{"read_done_parts", FieldUnit::count, detail::counter, &SubscriberStat::read_done_parts},
    Field{"staged_version", FieldUnit::none, detail::gauge, &SubscriberStat::staged_version},
    Field{"live_version", FieldUnit::none, detail::gauge, &SubscriberStat::live_version},
    Field{"problem", FieldUnit::none, detail::fact, &SubscriberStat::problem},
};

inline constexpr std::tuple sync_fields{
    Field{"wait_slot", FieldUnit::milliseconds, detail::gauge, &SyncTimes::wait_slot_ns},
    Field{"put", FieldUnit::milliseconds, detail::gauge, &SyncTimes::put_ns},
    Field{"publish", FieldUnit::milliseconds, detail::gauge, &SyncTimes::publish_ns},
    Field{"staged", FieldUnit::milliseconds, detail::gauge, &SyncTimes::staged_ns},
    Field{"commit", FieldUnit::milliseconds, detail::gauge, &SyncTimes::commit_ns},
};

inline constexpr std::tuple weights_fields{
    Field{"publisher", FieldUnit::none, detail::fact, &WeightsStat::publisher},
    Field{"rank", FieldUnit::none, detail::fact, &WeightsStat::rank},
    Field{"ranks", FieldUnit::none, detail::fact, &WeightsStat::ranks},
    Field{"pid", FieldUnit::none, detail::fact, &WeightsStat::pid},
    Field{"gpu", FieldUnit::none, detail::fact, &WeightsStat::gpu},
    Field{"memory", FieldUnit::none, detail::fact, &WeightsStat::memory},
    Field{"tensors", FieldUnit::count, detail::fact, &WeightsStat::tensors},
    Field{"payload_bytes", FieldUnit::bytes, detail::fact, &WeightsStat::payload_bytes},
    Field{"parts", FieldUnit::count, detail::fact, &WeightsStat::parts},
    Field{"slots", FieldUnit::none, detail::fact, &WeightsStat::slots},
    Field{"slot_bytes", FieldUnit::bytes, detail::fact, &WeightsStat::slot_bytes},
    Field{"checksums", FieldUnit::none, detail::fact, &WeightsStat::checksums},
    Field{"layout_hash", FieldUnit::none, detail::fact, &WeightsStat::layout_hash},
    Field{"state", FieldUnit::none, detail::fact, &WeightsStat::state},
    Field{"version", FieldUnit::none, detail::gauge, &WeightsStat::version},
    Field{"committed_version", FieldUnit::none, detail::gauge, &WeightsStat::committed_version},
    Field{"syncs", FieldUnit::count, detail::counter, &WeightsStat::syncs},
    Field{"aborts", FieldUnit::count, detail::counter, &WeightsStat::aborts},
    Field{"handles_passed", FieldUnit::count, detail::counter, &WeightsStat::handles_passed},
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
