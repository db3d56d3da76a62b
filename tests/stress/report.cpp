#include "report.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <set>

namespace rollring::test {
namespace {

using Json = nlohmann::ordered_json;

// Between two kills the run must have come forward, or the kills prove little.
constexpr std::uint64_t records_per_kill = 20;
constexpr std::uint64_t groups_per_kill = 5;
constexpr double kills_per_second = 5;
constexpr double long_run_seconds = 600;
// From so many seconds on there was a whole turn of heavy load.
constexpr double heavy_run_seconds = 6;
constexpr std::uint64_t heavy_long_records = 50;
constexpr std::uint64_t heavy_large_groups = 3;
constexpr std::uint64_t heavy_watched_ms = 1000;
constexpr std::uint64_t long_run_kills = 20'000;

template <class T>
Json by_role(const std::array<T, roles>& values, T unit = 1) {
    Json out;
    for (std::size_t i = 0; i < roles; i++) {
        out[std::string(name(static_cast<Role>(i)))] = values[i] / unit;
    }
    return out;
}

Json by_reason(const OracleCounts& counts) {
    Json out;
    for (std::size_t i = 0; i < counts.dropped.size(); i++) {
        if (counts.dropped[i] == 0) continue;
        out[std::string(rollring::name(static_cast<DropReason>(i)))] = counts.dropped[i];
    }
    return out;
}

Json at_points(const DriverCounts& did, const std::string& action) {
    if (!has_fault_points()) return nullptr;
    const auto found = did.at_points.find(action);
    return found == did.at_points.end() ? Json::object() : Json(found->second);
}

// Points that some role passes, and at which none was struck.
Json points_left(const DriverCounts& did) {
    if (!has_fault_points()) return nullptr;
    std::set<std::string> left;
    for (std::size_t i = 0; i < roles; i++) {
        for (const std::string_view point : points_of(static_cast<Role>(i))) left.emplace(point);
    }
    for (const auto& [action, counts] : did.at_points) {
        for (const auto& [point, count] : counts) left.erase(point);
    }
    return left;
}

double per_kill(std::uint64_t count, const DriverCounts& did) {
    return static_cast<double>(count) /
           static_cast<double>(std::max<std::uint64_t>(did.all_kills(), 1));
}

std::uint64_t peak_kib() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<std::uint64_t>(used.ru_maxrss);
}

std::uint64_t floor_of_kills(const Options& options) {
    if (options.kills != 0) return 0;  // it goes on until there are so many, or says what it did
    if (options.floor_kills >= 0) return static_cast<std::uint64_t>(options.floor_kills);
    if (options.seconds >= long_run_seconds) return long_run_kills;
    return static_cast<std::uint64_t>(kills_per_second * options.seconds);
}

// A row for each point, a column for each action.
void print_points(const Json& out) {
    static constexpr const char* columns[] = {"kills_at", "stops_at", "exits_at"};
    if (out["kills_at"].is_null()) {
        fmt::print("fault points are not built in (-Dfault_points=true): random kills alone\n");
        return;
    }
    std::set<std::string> points;
    for (const char* column : columns) {
        for (const auto& [point, count] : out[column].items()) points.insert(point);
    }
    fmt::print("{:24} {:>6} {:>6} {:>6}\n", "fault point", "kill", "stop", "exit");
    for (const std::string& point : points) {
        fmt::print("{:24}", point);
        for (const char* column : columns) {
            fmt::print(" {:>6}", out[column].value(point, std::uint64_t{0}));
        }
        fmt::print("\n");
    }
}

}  // namespace

Json report(const Driver& driver) {
    const DriverCounts& did = driver.counts();
    const OracleCounts& saw = driver.oracle().counts();
    const std::int64_t us = 1000;
    const double seconds = static_cast<double>(did.wall_ns) * 1e-9;
    const auto kills = static_cast<double>(did.all_kills());
    return {{"seconds", seconds},
            {"kills", did.all_kills()},
            {"kills_per_second", seconds > 0 ? kills / seconds : 0},
            {"kills_by_role", by_role(did.kills)},
            {"kills_after_work_by_role", by_role(did.worked)},
            {"kills_at_points_by_role", by_role(did.struck)},
            {"kills_at", at_points(did, "kill")},
            {"stops_at", at_points(did, "stop")},
            {"exits_at", at_points(did, "exit")},
            {"points_struck", did.points_struck()},
            {"points_not_struck", points_left(did)},
            {"starts_armed", did.armed},
            {"stops_by_role", by_role(did.stops)},
            {"starts_by_role", by_role(did.starts)},
            {"ended_by_themselves", did.ended},
            {"records_begun", saw.begun},
            {"records_pushed", saw.pushed},
            {"records_checked", saw.records_checked},
            {"records_checked_per_kill", per_kill(saw.records_checked, did)},
            {"groups_begun", saw.groups_begun},
            {"groups_checked", saw.groups_checked},
            {"groups_checked_per_kill", per_kill(saw.groups_checked, did)},
            {"groups_voided", saw.groups_voided},
            {"groups_unfinished", saw.groups_unfinished},
            {"groups_overdue", saw.groups_overdue},
            {"groups_exposed_damaged", saw.exposed_damaged},
            {"groups_exposed_lost", saw.exposed_lost},
            {"records_dropped", by_reason(saw)},
            {"sent_twice", saw.copies},
            {"retries", saw.retries},
            {"sent_after_ack", saw.after_ack},
            {"recoveries", saw.recoveries},
            {"cut_acks_done", saw.cut_done},
            {"cut_acks_undone", saw.cut_undone},
            {"producers_died", saw.producers_died},
            {"producers_closed", saw.producers_closed},
            {"quarantines", saw.quarantines},
            {"torn", saw.torn},
            {"hostile_groups", saw.hostile_groups},
            {"versions_committed", saw.versions},
            {"versions_aborted", saw.aborted},
            {"versions_live", saw.live},
            {"poisoned", saw.poisoned},
            {"refused_starts", saw.refused},
            {"longest_open_ms", saw.longest_open_ns / (1000 * us)},
            {"waits", saw.waits},
            {"ring_fills", did.ring_fills},
            {"shm_fills", did.shm_fills},
            {"shm_refusals", did.shm_refusals},
            {"account_looks", did.looks},
            {"heavy_turns", did.heavy_turns},
            {"long_records_checked", saw.long_records},
            {"large_groups_checked", saw.large_groups},
            {"longest_wait_for_room_ms", driver.progress().longest_ns() / (1000 * us)},
            {"progress_watched_ms", driver.progress().watched_ns() / (1000 * us)},
            {"longest_silence_us", by_role(did.silence_ns, us)},
            {"longest_pause_us", by_role(did.pause_ns, us)},
            {"driver_peak_kib", peak_kib()},
            {"shm_peak_kib", did.shm_peak_bytes / 1024},
            {"leftovers", did.leftovers}};
}

void print(const Json& out, bool json) {
    if (json) {
        fmt::print("{}\n", out.dump(2));
        return;
    }
    for (const auto& [key, value] : out.items()) {
        if (!key.ends_with("s_at")) fmt::print("{:24} {}\n", key, value.dump());
    }
    print_points(out);
}

std::vector<std::string> below_floors(const Options& options, const Driver& driver) {
    const DriverCounts& did = driver.counts();
    const OracleCounts& saw = driver.oracle().counts();
    std::vector<std::string> all;
    const auto at_least = [&](std::string_view what, std::uint64_t count, std::uint64_t floor) {
        if (count < floor) all.push_back(fmt::format("{} {} of at least {}", count, what, floor));
    };
    const std::uint64_t kills = did.all_kills();
    at_least("kills", kills, floor_of_kills(options));
    at_least("records checked", saw.records_checked, records_per_kill * kills);
    at_least("groups checked", saw.groups_checked, groups_per_kill * kills);
    for (std::size_t i = 0; i < roles; i++) {
        const std::string what =
            fmt::format("kills of a {} after it had worked", name(static_cast<Role>(i)));
        at_least(what, did.worked[i], did.kills[i] / 4);
    }
    if (options.kills == 0 && options.seconds >= heavy_run_seconds) {
        at_least("long records checked", saw.long_records, heavy_long_records);
        at_least("large groups checked", saw.large_groups, heavy_large_groups);
        at_least("ms under heavy load",
                 static_cast<std::uint64_t>(driver.progress().watched_ns()) / 1'000'000,
                 has_fault_points() ? 0 : heavy_watched_ms);
    }
    at_least("fault points struck", did.points_struck(), options.floor_points);
    return all;
}

}  // namespace rollring::test
