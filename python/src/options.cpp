#include "options.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "column_input.hpp"
#include "errors.hpp"

namespace rollring::python {
namespace {

// Takes options out of a dict, each with an error that names it.
class Options {
  public:
    explicit Options(nb::dict given) : left_(nb::steal<nb::dict>(PyDict_Copy(given.ptr()))) {}

    // Leaves `member` unchanged if there is no such option. True: there was one.
    template <class T>
    bool take(const char* field, T& member) {
        nb::object value = pop(field);
        if (!value.is_valid()) return false;
        member = as<T>(value, field);
        return true;
    }
    bool take(const char* field, std::chrono::nanoseconds& span) {
        double seconds = 0;
        if (!take(field, seconds)) return false;
        const double within = std::clamp(seconds, 0.0, 1e9);
        span = std::chrono::nanoseconds(static_cast<std::int64_t>(within * 1e9));
        return true;
    }
    // A table of bytes.
    bool take(const char* field, std::vector<std::byte>& table) {
        nb::object value = pop(field);
        if (!value.is_valid()) return false;
        const auto bytes = as<nb::bytes>(value, field);
        const auto* const from = static_cast<const std::byte*>(bytes.data());
        table.assign(from, from + bytes.size());
        return true;
    }
    // By name, up to the last one.
    template <class Enum>
    bool take(const char* field, Enum& member, Enum last) {
        std::string text;
        if (!take(field, text)) return false;
        std::string known;
        for (int i = 0; i <= static_cast<int>(last); i++) {
            if (name(static_cast<Enum>(i)) == text) {
                member = static_cast<Enum>(i);
                return true;
            }
            known += (i > 0 ? ", " : "") + std::string(name(static_cast<Enum>(i)));
        }
        raise("invalid_argument",
              std::string(field) + " must be one of " + known + ", not '" + text + "'");
    }
    // Any remaining option is unknown to `what`.
    void end(const char* what) {
        for (const auto& [key, value] : left_) {
            const auto name = nb::cast<std::string>(key);
            raise("invalid_argument",
                  std::string(what) + " has no option '" + name + "'" + did_you_mean(name, known_));
        }
    }

    template <class T>
    static T as(nb::handle value, const char* field) {
        try {
            return nb::cast<T>(value);
        } catch (const nb::cast_error&) {
            raise("invalid_argument",
                  std::string(field) + " must be " + kind_of<T>() + ", not " + shown(value));
        }
    }

  private:
    nb::object pop(const char* field) {
        known_.append(field);
        if (!left_.contains(field)) return {};
        nb::object value = left_[field];
        nb::del(left_[field]);
        return value;
    }
    nb::dict left_;
    nb::list known_;
};

Column column_of(nb::handle given) {
    const auto text = nb::cast<std::string>(given[1]);
    const auto dtype = DType::parse(text);
    if (!dtype) raise("invalid_argument", "'" + text + "' is not a dtype");
    return {.name = nb::cast<std::string>(given[0]),
            .dtype = *dtype,
            .per = nb::cast<bool>(given[2]) ? Per::token : Per::record,
            .dims = nb::cast<std::vector<std::uint32_t>>(given[3])};
}

}  // namespace

StashOptions stash_options(nb::dict given) {
    StashOptions made;
    Options options(std::move(given));
    std::uint64_t target = 0;
    if (options.take("batch_tokens", target)) made.batch = BatchTarget::tokens(target);
    std::uint32_t count = 0;
    if (options.take("batch_sequences", count)) made.batch = BatchTarget::sequences(count);
    if (options.take("batch_groups", count)) made.batch = BatchTarget::groups(count);
    options.take("group_size", made.group_size);
    options.take("extra", made.extra);
    options.take("select", made.advanced.select, Select::uniform);
    options.take("seed", made.advanced.seed);
    if (std::chrono::nanoseconds span{}; options.take("deadline", span)) made.deadline = span;
    if (AtDeadline policy{}; options.take("at_deadline", policy, AtDeadline::hold)) {
        made.at_deadline = policy;
    }
    options.take("min_size", made.min_size);
    options.take("on_failed", made.on_failed, OnFailed::hold);
    options.take("bad_reward", made.bad_reward, BadReward::absent);
    options.take("zero_variance", made.zero_variance, ZeroVariance::drop);
    options.take("zero_variance_tolerance", made.advanced.zero_variance_tolerance);
    options.take("zero_variance_run", made.advanced.zero_variance_run);
    options.take("max_lag", made.max_lag);
    options.take("stale", made.stale, Stale::withhold);
    options.take("order", made.order, Order::freshest);
    options.take("window_fraction", made.advanced.window_fraction);
    options.take("advantages", made.advantages, Advantages::loo);
    options.take("deviation", made.advanced.deviation, Deviation::population);
    options.take("deviation_epsilon", made.advanced.deviation_epsilon);
    options.take("max_open_groups", made.max_open_groups);
    options.take("max_open_bytes", made.advanced.max_open_bytes);
    options.take("count_leased", made.advanced.count_leased);
    options.take("tombstone", made.advanced.tombstone);
    options.take("tombstones", made.advanced.tombstones);
    options.take("ledger", made.advanced.ledger);
    options.take("no_progress", made.advanced.no_progress);
    nb::dict weights;
    options.take("source_weights", weights);
    for (const auto& [id, weight] : weights) {
        made.advanced.source_weights.push_back({Options::as<std::int64_t>(id, "source_weights"),
                                                Options::as<double>(weight, "source_weights")});
    }
    options.end("a stash");
    return made;
}

RingOptions ring_options(nb::dict given) {
    RingOptions made;
    Options options(std::move(given));
    options.take("lanes", made.lanes);
    options.take("lane_bytes", made.lane_bytes);
    options.take("soft_bytes", made.soft_bytes);
    options.take("journal_records", made.journal_records);
    options.take("spill_bytes", made.spill_bytes);
    options.take("overflow_dir", made.overflow_dir);
    options.take("overflow_bytes", made.overflow_bytes);
    options.take("group_rows", made.group_rows);
    options.take("requests", made.requests);
    options.take("request_bytes", made.request_bytes);
    options.take("ledger", made.ledger_dir);
    options.take("ledger_bytes", made.ledger_bytes);
    options.take("durable", made.durable, Durable::record);
    nb::list columns;
    if (options.take("columns", columns)) {
        std::vector<Column> custom;
        for (const nb::handle one : columns) custom.push_back(column_of(one));
        made.schema = value_or_raise(Schema::standard_with(std::move(custom)));
    }
    options.end("a ring");
    return made;
}

RingExpectation ring_expectation(nb::dict given) {
    const RingOptions made = ring_options(given);
    RingExpectation wanted;
    const auto take = [&](const char* option, auto& expected, const auto& value) {
        if (given.contains(option)) expected = value;
    };
    take("lanes", wanted.lanes, made.lanes);
    take("lane_bytes", wanted.lane_bytes, made.lane_bytes);
    take("soft_bytes", wanted.soft_bytes, made.soft_bytes);
    take("journal_records", wanted.journal_records, made.journal_records);
    take("spill_bytes", wanted.spill_bytes, made.spill_bytes);
    take("overflow_dir", wanted.overflow_dir, made.overflow_dir);
    take("overflow_bytes", wanted.overflow_bytes, made.overflow_bytes);
    take("group_rows", wanted.group_rows, made.group_rows);
    take("requests", wanted.requests, made.requests);
    take("request_bytes", wanted.request_bytes, made.request_bytes);
    take("ledger", wanted.ledger_dir, made.ledger_dir);
    take("ledger_bytes", wanted.ledger_bytes, made.ledger_bytes);
    take("durable", wanted.durable, made.durable);
    take("columns", wanted.schema, made.schema);
    return wanted;
}

PublisherOptions publisher_options(nb::dict given) {
    PublisherOptions made;
    Options options(std::move(given));
    options.take("name", made.name);
    options.take("rank", made.rank);
    options.take("ranks", made.ranks);
    options.take("gpu", made.device.gpu);
    options.take("memory", made.memory, PayloadMemory::direct);
    options.take("allow_legacy_ipc", made.allow_legacy_ipc);
    options.take("allow_direct", made.allow_direct);
    options.take("slots", made.slots);
    options.take("slot_bytes", made.slot_bytes);
    options.take("checksums", made.checksums);
    options.take("handed_on", made.handed_on);
    options.take("subscribers_max", made.subscribers_max);
    options.take("layout", made.layout);
    options.end("a weight publisher");
    return made;
}

SubscriberOptions subscriber_options(nb::dict given) {
    SubscriberOptions made;
    Options options(std::move(given));
    options.take("name", made.name);
    std::uint32_t rank = 0;
    if (options.take("rank", rank)) made.rank = rank;
    options.take("gpu", made.device.gpu);
    options.take("in_place", made.in_place);
    options.take("partial", made.partial);
    options.take("held_version", made.held_version);
    options.take("staging", made.staging, Staging::delta);
    options.take("delta_fallback", made.delta_fallback, DeltaFallback::in_place);
    options.take("delta_list_bytes", made.delta_list_bytes);
    options.take("staging_share", made.staging_share);
    options.take("rollback_when_asked", made.rollback_when_asked);
    options.take("layout", made.layout);
    options.take("stage_remote", made.stage_remote);
    options.end("a weight subscriber");
    return made;
}

}  // namespace rollring::python
