#include "cli/formats/stat_metrics.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <tuple>
#include <type_traits>

#include "rollring/stat.hpp"
#include "rollring/version.hpp"

namespace rollring::cli {
namespace {

constexpr std::string_view ring_prefix = "rollring_ring_";
constexpr std::string_view lane_prefix = "rollring_lane_";
constexpr std::string_view stash_prefix = "rollring_stash_";
constexpr std::string_view requests_prefix = "rollring_requests_";
constexpr std::string_view worker_prefix = "rollring_request_worker_";
constexpr std::string_view weights_prefix = "rollring_publisher_";
constexpr std::string_view sync_prefix = "rollring_publisher_last_sync_";
constexpr std::string_view engine_prefix = "rollring_engine_";
constexpr std::string_view delta_prefix = "rollring_engine_last_delta_";

constexpr const char* up = "rollring_up";
constexpr const char* build_info = "rollring_build_info";
constexpr const char* shm_bytes = "rollring_shared_memory_bytes";
constexpr const char* shm_free = "rollring_shared_memory_free_bytes";
constexpr const char* groups = "rollring_groups";
constexpr const char* unchanged = "rollring_groups_unchanged_seconds";

struct Family {
    std::string_view prefix;
    std::string_view field;
    FieldUnit unit;
    FieldKind kind;

    // The name of a field, without the unit at its end. `what`: "_records", or nothing.
    [[nodiscard]] std::string name(std::string_view what = "") const {
        std::string_view stem = field;
        const std::string_view unit_suffix = unit == FieldUnit::seconds     ? "_s"
                                             : unit == FieldUnit::timestamp ? "_ns"
                                                                            : "";
        if (stem.ends_with(unit_suffix)) stem.remove_suffix(unit_suffix.size());
        const std::string_view seconds =
            unit == FieldUnit::timestamp                                    ? "_timestamp_seconds"
            : unit == FieldUnit::seconds || unit == FieldUnit::milliseconds ? "_seconds"
                                                                            : "";
        return fmt::format("{}{}{}{}{}", prefix, stem, what, seconds,
                           kind == FieldKind::counter ? "_total" : "");
    }
    [[nodiscard]] MetricType type() const {
        return kind == FieldKind::counter ? MetricType::counter : MetricType::gauge;
    }
};

template <class Stat, class T>
Family family_of(std::string_view prefix, const rollring::Field<Stat, T>& field) {
    return {prefix, field.name, field.unit, field.kind};
}

// Whether a value is not a number: it goes into the labels of `..._info`.
template <class Stat, class T>
bool is_label(const rollring::Field<Stat, T>& field) {
    return field.kind == FieldKind::fact && field.unit == FieldUnit::none;
}

template <class T>
concept HasAmounts = std::same_as<T, rollring::Amount> || std::same_as<T, DropAmounts>;

// The meaning of one amount, in words.
std::string amount_help(std::string_view what, std::string_view about) {
    std::string rest(about);
    rest.front() = 't';  // "That were shipped"
    return fmt::format("{} {}", what, rest);
}

template <class Stat>
void declare_fields(MetricSet& to, std::string_view prefix) {
    const auto declare = [&]<class S, class T> [[gnu::noinline]] (
                             const rollring::Field<S, T>& field) {
        if (is_label(field)) return;
        const Family family = family_of(prefix, field);
        if constexpr (HasAmounts<T>) {
            to.declare(family.name("_records"), family.type(), amount_help("Records", field.about));
            to.declare(family.name("_tokens"), family.type(), amount_help("Tokens", field.about));
        } else {
            to.declare(family.name(), family.type(), std::string(field.about));
        }
    };
    for_each_field<Stat>(declare);
}

template <class T>
std::string label_text(const T& value) {
    if constexpr (std::same_as<T, bool>) {
        return value ? "true" : "false";
    } else if constexpr (std::is_enum_v<T>) {
        return std::string(name(value));
    } else if constexpr (std::integral<T>) {
        return std::to_string(value);
    } else {
        return value;
    }
}

template <class T>
void add_number(MetricSet& to, const Family& family, const MetricLabels& labels, const T& value) {
    if constexpr (std::signed_integral<T>) {
        if (value < 0) return;
        if (family.unit == FieldUnit::seconds || family.unit == FieldUnit::milliseconds ||
            family.unit == FieldUnit::timestamp) {
            to.add(family.name(), labels, static_cast<double>(value) * 1e-9);
            return;
        }
    }
    to.add(family.name(), labels, static_cast<std::uint64_t>(value));
}

void add_amount(MetricSet& to, const Family& family, const MetricLabels& labels,
                const rollring::Amount& amount) {
    to.add(family.name("_records"), labels, amount.records);
    to.add(family.name("_tokens"), labels, amount.tokens);
}

MetricLabels with(MetricLabels labels, std::string_view key, std::string_view value) {
    labels.emplace_back(key, value);
    return labels;
}

void add_drops(MetricSet& to, const Family& family, const MetricLabels& labels,
               const DropAmounts& dropped) {
    for (std::size_t i = 0; i < dropped.size(); i++) {
        add_amount(to, family, with(labels, "reason", name(static_cast<DropReason>(i))),
                   dropped[i]);
    }
}

template <class Stat>
void add_fields(MetricSet& to, std::string_view prefix, const MetricLabels& labels,
                const Stat& stat) {
    // Not inlined: a stat has tens of fields of few types.
    for_each_field(stat, [&]<class T> [[gnu::noinline]] (const auto& field, const T& value) {
        if (is_label(field)) return;
        const Family family = family_of(prefix, field);
        if constexpr (std::same_as<T, rollring::Amount>) {
            add_amount(to, family, labels, value);
        } else if constexpr (std::same_as<T, DropAmounts>) {
            add_drops(to, family, labels, value);
        } else if constexpr (std::integral<T>) {
            add_number(to, family, labels, value);
        }
    });
}

// `left_out`: fields that other labels contain, or that no label should have.
template <class Stat>
void add_info(MetricSet& to, std::string_view prefix, MetricLabels labels, const Stat& stat,
              const std::vector<std::string_view>& left_out = {}) {
    const MetricLabels own = labels;
    for_each_field(stat, [&]<class T> [[gnu::noinline]] (const auto& field, const T& value) {
        if constexpr (std::integral<T> || std::is_enum_v<T> || std::same_as<T, std::string>) {
            const auto here = [&](const auto& label) { return label.first == field.name; };
            if (!is_label(field) || std::ranges::any_of(own, here)) return;
            if (std::ranges::find(left_out, field.name) != left_out.end()) return;
            labels.emplace_back(field.name, label_text(value));
        }
    });
    to.add(fmt::format("{}info", prefix), labels, std::uint64_t{1});
}

void declare_info(MetricSet& to, std::string_view prefix, const std::string& what) {
    to.declare(fmt::format("{}info", prefix), MetricType::gauge, what + ", as labels; always 1");
}

MetricSet all_families() {
    using enum MetricType;
    MetricSet set;
    set.declare(build_info, gauge, "The version of the exporter, as a label; always 1");
    set.declare(shm_bytes, gauge, "Bytes of /dev/shm");
    set.declare(shm_free, gauge, "Bytes of /dev/shm that are free");
    set.declare(up, gauge, "Whether the ring exists and can be read");
    declare_info(set, ring_prefix, "Facts of a ring");
    declare_fields<RingStat>(set, ring_prefix);
    declare_info(set, lane_prefix, "Facts of a lane and its latest producer");
    declare_fields<LaneStat>(set, lane_prefix);
    declare_fields<StashStat>(set, stash_prefix);
    declare_fields<StashAccount>(set, stash_prefix);
    set.declare(groups, gauge, "Unfinished groups, by state");
    set.declare(unchanged, gauge, "Time since the last change of the longest-waiting group");
    declare_info(set, requests_prefix, "Facts of a ring's requests");
    declare_fields<RequestsStat>(set, requests_prefix);
    declare_info(set, worker_prefix, "Facts of a worker that takes requests");
    declare_fields<RequestWorkerStat>(set, worker_prefix);
    declare_info(set, weights_prefix, "Facts of a publisher of weights");
    declare_fields<WeightsStat>(set, weights_prefix);
    declare_fields<SyncTimes>(set, sync_prefix);
    declare_info(set, engine_prefix, "Facts of an engine on the weight channel");
    declare_fields<SubscriberStat>(set, engine_prefix);
    declare_info(set, delta_prefix, "Facts of the last version that an engine compared");
    declare_fields<DeltaReport>(set, delta_prefix);
    return set;
}

void add_lanes(MetricSet& to, const MetricLabels& ring, const std::vector<LaneStat>& lanes) {
    for (const LaneStat& lane : lanes) {
        const MetricLabels labels =
            with(with(ring, "lane", std::to_string(lane.lane)), "producer", lane.producer);
        add_info(to, lane_prefix, labels, lane);
        add_fields(to, lane_prefix, labels, lane);
    }
}

void add_groups(MetricSet& to, const MetricLabels& ring, const std::vector<GroupStat>& all) {
    using enum GroupState;
    for (const GroupState state : {open, ready, leased}) {
        const MetricLabels labels = with(ring, "state", name(state));
        std::uint64_t count = 0;
        std::int64_t longest = -1;
        for (const GroupStat& group : all) {
            if (group.state != state) continue;
            count++;
            longest = std::max(longest, group.unchanged_ns);
        }
        to.add(groups, labels, count);
        if (longest >= 0) to.add(unchanged, labels, static_cast<double>(longest) * 1e-9);
    }
}

void add_stash(MetricSet& to, const MetricLabels& ring, const StashStat& stash) {
    add_fields(to, stash_prefix, ring, stash);
    if (!stash.used) return;
    if (stash.account_whole) add_fields(to, stash_prefix, ring, stash.account);
    add_groups(to, ring, stash.groups);
}

void add_requests(MetricSet& to, const MetricLabels& ring, const RequestsStat& requests) {
    if (!requests.used) return;
    add_info(to, requests_prefix, ring, requests);
    add_fields(to, requests_prefix, ring, requests);
    for (const RequestWorkerStat& worker : requests.workers) {
        const MetricLabels labels =
            with(with(ring, "seat", std::to_string(worker.seat)), "worker", worker.name);
        add_info(to, worker_prefix, labels, worker);
        add_fields(to, worker_prefix, labels, worker);
    }
}

void add_engines(MetricSet& to, const MetricLabels& rank,
                 const std::vector<SubscriberStat>& engines) {
    // An expelled or refused engine may live beside an attached one of its name, and comes last.
    for (const bool seated : {true, false}) {
        for (const SubscriberStat& engine : engines) {
            const bool has_seat = engine.state != SubscriberState::expelled &&
                                  engine.state != SubscriberState::refused;
            if (has_seat != seated) continue;
            const MetricLabels labels = with(rank, "engine", printable(engine.name));
            add_info(to, engine_prefix, labels, engine, {"name", "problem"});
            add_fields(to, engine_prefix, labels, engine);
            if (engine.delta.version < 0) continue;
            add_info(to, delta_prefix, labels, engine.delta);
            add_fields(to, delta_prefix, labels, engine.delta);
        }
    }
}

void add_weights(MetricSet& to, const MetricLabels& ring, const std::vector<WeightsStat>& ranks) {
    for (const WeightsStat& rank : ranks) {
        const MetricLabels labels = with(ring, "rank", std::to_string(rank.rank));
        add_info(to, weights_prefix, labels, rank);
        if (rank.state == ChannelState::silent) continue;  // nothing else is known
        add_fields(to, weights_prefix, labels, rank);
        if (rank.syncs != 0) add_fields(to, sync_prefix, labels, rank.last_times);
        add_engines(to, labels, rank.subscribers);
    }
}

}  // namespace

MetricSet metrics_of(const std::vector<RingLook>& rings, const SharedMemorySpace& space) {
    MetricSet set = all_families();
    set.add(build_info, {{"version", std::string(version())}}, std::uint64_t{1});
    set.add(shm_bytes, {}, space.total_bytes);
    set.add(shm_free, {}, space.free_bytes);
    for (const RingLook& look : rings) {
        const MetricLabels ring{{"ring", look.ring}};
        set.add(up, ring, std::uint64_t{look.up ? 1U : 0U});
        if (!look.up) continue;
        add_info(set, ring_prefix, ring, look.stat);
        add_fields(set, ring_prefix, ring, look.stat);
        add_lanes(set, ring, look.stat.lanes);
        add_stash(set, ring, look.stash);
        add_requests(set, ring, look.requests);
        add_weights(set, ring, look.weights);
    }
    return set;
}

}  // namespace rollring::cli
