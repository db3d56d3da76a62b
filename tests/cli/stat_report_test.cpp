// Stat structs as reports: each field once, in its unit.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "cli/formats/stat_report.hpp"
#include "cli/formats/stat_table.hpp"
#include "rollring/extras/requests.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

template <class Stat>
std::size_t names_of() {
    std::set<std::string_view> names;
    std::size_t fields = 0;
    for_each_field(Stat{}, [&](const auto& field, const auto&) {
        fields++;
        names.insert(field.name);
    });
    CHECK(names.size() == fields);
    return fields;
}

}  // namespace

TEST_CASE("stat report: no two fields of a stat have one name") {
    CHECK(names_of<LaneStat>() == 29);
    CHECK(names_of<RingStat>() == 21);
    CHECK(names_of<RingDiagnosis>() == 5);
    CHECK(names_of<GroupStat>() == 12);
    CHECK(names_of<StashStat>() == 11);
    CHECK(names_of<StashAccount>() == 12);
    CHECK(names_of<StashCopies>() == 3);
    CHECK(names_of<RequestStat>() == 7);
    CHECK(names_of<RequestWorkerStat>() == 7);
    CHECK(names_of<RequestsStat>() == 16);
    CHECK(names_of<ConsumerStats>() == 15);
    CHECK(names_of<ProducerStats>() == 9);
    CHECK(names_of<SubscriberStat>() == 9);
    CHECK(names_of<SyncTimes>() == 5);
    CHECK(names_of<WeightsStat>() == 20);
}

TEST_CASE("stat report: a lane as JSON") {
    LaneStat lane{};
    lane.lane = 3;
    lane.producer = "worker";
    lane.state = LaneState::dead;
    lane.oldest_age_ns = 1'500'000'000;
    lane.depth_bytes = 4096;
    const Json json = json_of(lane);
    CHECK(json["lane"] == Json(3));
    CHECK(json["producer"] == Json("worker"));
    CHECK(json["alive"] == Json(false));
    CHECK(json["state"] == Json("dead"));
    CHECK(json["oldest_age_s"] == Json(1.5));
    CHECK(json["depth_bytes"] == Json(4096));
    lane.oldest_age_ns = -1;  // there is none
    CHECK(json_of(lane)["oldest_age_s"].is_null());
}

TEST_CASE("stat report: times, keys and lists as JSON") {
    GroupStat group{};
    group.key = {0xab, 0xcd};
    group.missing = {1, 4};
    group.age_ns = 250'000'000;
    CHECK(json_of(group)["key"] == Json("00000000000000cd00000000000000ab"));
    CHECK(json_of(group)["missing"].dump() == "[1,4]");
    CHECK(json_of(group)["age_s"] == Json(0.25));
    const SyncTimes times{.put_ns = 2'500'000};
    CHECK(json_of(times)["put"] == Json(2.5));
}

TEST_CASE("stat report: an account as JSON, its amounts in records and tokens, drops by reason") {
    StashAccount account;
    account.accepted = {9, 90};
    account.shipped = {4, 40};
    account.dropped[static_cast<std::size_t>(DropReason::late)] = {3, 30};
    account.dropped[static_cast<std::size_t>(DropReason::stale)] = {2, 20};
    account.groups_shipped = 7;
    Json json = Json::object();
    add_fields(json, account);
    CHECK(json["records_accepted"] == Json(9));
    CHECK(json["tokens_accepted"] == Json(90));
    CHECK(json["records_shipped"] == Json(4));
    CHECK(json["tokens_shipped"] == Json(40));
    CHECK(json["records_dropped"] == Json(5));
    CHECK(json["tokens_dropped"] == Json(50));
    CHECK(json["dropped"].size() == account.dropped.size());
    CHECK(json["dropped"]["late"] == Json(3));
    CHECK(json["dropped"]["stale"] == Json(2));
    CHECK(json["groups"] == Json(7));
    CHECK(cell_of(account, &StashAccount::accepted) == "9");
    CHECK(cell_of(account, &StashAccount::dropped) == "5");
}

TEST_CASE("stat report: a column shows its field, and what stands in a table is in its order") {
    LaneStat first{};
    first.producer = "a";
    first.depth_bytes = 4096;
    LaneStat second{};
    second.producer = "b";
    const std::vector<StatColumn<LaneStat>> columns{
        {{.title = "producer"}, &LaneStat::producer},
        {{.title = "bytes"}, &LaneStat::depth_bytes},
        {{.title = "twice"}, [](const LaneStat& lane) { return lane.producer + lane.producer; }}};
    const std::string text = table_of(columns, std::vector{first, second}).text(any_width);
    CAPTURE(text);
    CHECK(text.find("producer  bytes  twice") != std::string::npos);
    CHECK(text.find("a  4 KiB     aa") != std::string::npos);
    CHECK(text.find("b    0 B     bb") != std::string::npos);
}

TEST_CASE("stat report: a cell says its field in the field's unit") {
    LaneStat lane{};
    lane.pid = 12345;
    lane.depth_records = 12345;
    lane.depth_bytes = 64 << 10;
    lane.oldest_age_ns = -1;
    CHECK(cell_of(lane, &LaneStat::pid) == "12345");
    CHECK(cell_of(lane, &LaneStat::depth_records) == "12,345");
    CHECK(cell_of(lane, &LaneStat::depth_bytes) == "64 KiB");
    CHECK(cell_of(lane, &LaneStat::oldest_age_ns) == "-");
    CHECK(cell_of(lane, &LaneStat::alive) == "no");
    CHECK(cell_of(lane, &LaneStat::state) == "free");
    lane.oldest_age_ns = 65'000'000'000;
    CHECK(cell_of(lane, &LaneStat::oldest_age_ns) == duration_text(65));
}
