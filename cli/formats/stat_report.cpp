#include "cli/formats/stat_report.hpp"

#include "rollring/extras/requests.hpp"

namespace rollring::cli {
namespace {

template <class T>
Json json_of(FieldUnit unit, const T& value) {
    if constexpr (std::is_enum_v<T>) {
        return name(value);
    } else if constexpr (std::same_as<T, GroupKey>) {
        return key_text(value);
    } else if constexpr (std::signed_integral<T>) {
        if (unit == FieldUnit::milliseconds) return static_cast<double>(value) * 1e-6;
        if (unit != FieldUnit::seconds) return value;
        return value < 0 ? Json() : Json(static_cast<double>(value) * 1e-9);
    } else {
        return value;
    }
}

void add_amount(Json& to, std::string_view name, const rollring::Amount& amount) {
    to[fmt::format("records_{}", name)] = amount.records;
    to[fmt::format("tokens_{}", name)] = amount.tokens;
}

}  // namespace

Json json_of(const DropAmounts& dropped) {
    Json json = Json::object();
    for (std::size_t i = 0; i < dropped.size(); i++) {
        json[std::string(name(static_cast<DropReason>(i)))] = dropped[i].records;
    }
    return json;
}

// Not inlined: a stat has tens of fields of few types.
template <HasFields Stat>
void add_fields(Json& to, const Stat& stat) {
    for_each_field(stat, [&]<class T> [[gnu::noinline]] (const auto& field, const T& value) {
        if constexpr (std::same_as<T, rollring::Amount>) {
            add_amount(to, field.name, value);
        } else if constexpr (std::same_as<T, DropAmounts>) {
            to[field.name] = json_of(value);
            add_amount(to, field.name, sum_of(value));
        } else {
            to[field.name] = json_of(field.unit, value);
        }
    });
}

template void add_fields(Json& to, const RingStat& stat);
template void add_fields(Json& to, const LaneStat& stat);
template void add_fields(Json& to, const RingDiagnosis& stat);
template void add_fields(Json& to, const GroupStat& stat);
template void add_fields(Json& to, const StashStat& stat);
template void add_fields(Json& to, const StashAccount& stat);
template void add_fields(Json& to, const StashCopies& stat);
template void add_fields(Json& to, const ConsumerStats& stat);
template void add_fields(Json& to, const ProducerStats& stat);
template void add_fields(Json& to, const SubscriberStat& stat);
template void add_fields(Json& to, const SyncTimes& stat);
template void add_fields(Json& to, const WeightsStat& stat);
template void add_fields(Json& to, const RequestStat& stat);
template void add_fields(Json& to, const RequestWorkerStat& stat);
template void add_fields(Json& to, const RequestsStat& stat);

}  // namespace rollring::cli
