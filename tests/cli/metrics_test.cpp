// Stats as Prometheus reads them.
#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "cli/formats/stat_metrics.hpp"

using namespace rollring;
using namespace rollring::cli;

namespace {

std::string text_of(const RingLook& look) {
    return metrics_of({look}, {.free_bytes = 1, .total_bytes = 2}).text();
}

bool has_line(const std::string& text, const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
}

RingLook look_with_lane() {
    RingLook look{.ring = "r", .up = true};
    LaneStat lane{};
    lane.lane = 3;
    lane.producer = "env-3";
    lane.pid = 77;
    lane.state = LaneState::dead;
    lane.died = true;
    lane.committed_tokens = 18446744073709551615U;
    lane.oldest_age_ns = 1'500'000'000;
    lane.newest_age_ns = -1;
    look.stat.lanes.push_back(lane);
    look.stat.created_ns = 1'500'000'000'000'000'000;
    look.stat.policy_version = -1;
    look.stat.lane_bytes = 4096;
    return look;
}

}  // namespace

TEST_CASE("metrics: text that others wrote is escaped, and is UTF-8") {
    MetricSet set;
    set.declare("m_total", MetricType::counter, "a \\ and a \"quote\"\nand more");
    set.add("m_total", {{"who", "a\"b\\c\nd\xff\xc3\xa9}"}, {"empty", ""}}, std::uint64_t{7});
    set.add("m_total", {}, 0.25);
    CHECK(set.text() ==
          "# HELP m_total a \\\\ and a \"quote\"\\nand more\n"
          "# TYPE m_total counter\n"
          "m_total{who=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\xc3\xa9}\",empty=\"\"} 7\n"
          "m_total 0.25\n");
    const Json json = set.json();
    const Json& samples = (*json.begin())["samples"];
    CHECK(samples[std::size_t{0}]["labels"]["empty"] == Json(""));
    CHECK(samples[std::size_t{1}]["value"] == Json(0.25));
}

TEST_CASE("metrics: no two samples of a family have the same labels") {
    MetricSet set;
    set.declare("m", MetricType::gauge, "x");
    set.add("m", {{"a", "1"}}, std::uint64_t{1});
    set.add("m", {{"a", "1"}}, std::uint64_t{2});
    set.add("m", {{"a", "2"}}, std::uint64_t{3});
    CHECK(set.text().ends_with("m{a=\"1\"} 1\nm{a=\"2\"} 3\n"));
    CHECK_THROWS(set.declare("m", MetricType::gauge, "y"));
}

TEST_CASE("metrics: requests and who has them; nothing where nobody has asked for any") {
    RingLook look{.ring = "r", .up = true};
    CHECK(text_of(look).find("rollring_requests_waiting{") == std::string::npos);
    look.requests.used = true;
    look.requests.waiting = 3;
    look.requests.given_up = 2;
    look.requests.attempts = 4;
    look.requests.oldest_waiting_ns = 1'500'000'000;
    look.requests.oldest_taken_ns = -1;
    look.requests.workers.push_back({5, "env \"5\"", 77, true, 1, 250'000'000, 9});
    const std::string text = text_of(look);
    CAPTURE(text);
    CHECK(has_line(text, "rollring_requests_waiting{ring=\"r\"} 3"));
    CHECK(has_line(text, "rollring_requests_given_up_total{ring=\"r\"} 2"));
    CHECK(has_line(text, "rollring_requests_oldest_waiting_seconds{ring=\"r\"} 1.5"));
    CHECK(text.find("\nrollring_requests_oldest_taken_seconds{") == std::string::npos);
    CHECK(has_line(text, "rollring_requests_info{ring=\"r\",board_pid=\"0\",attempts=\"4\"} 1"));
    const std::string worker = "{ring=\"r\",seat=\"5\",worker=\"env \\\"5\\\"\"";
    CHECK(has_line(text, "rollring_request_worker_info" + worker + ",pid=\"77\"} 1"));
    CHECK(has_line(text, "rollring_request_worker_taken" + worker + "} 1"));
    CHECK(has_line(text, "rollring_request_worker_oldest_seconds" + worker + "} 0.25"));
    CHECK(has_line(text, "rollring_request_worker_answered_total" + worker + "} 9"));
}

TEST_CASE("metrics: every family says what it is, by the rules of Prometheus, with rings or not") {
    const std::regex rule("# HELP (rollring_[a-z0-9_]+) .+\n# TYPE (\\S+) (gauge|counter)\n");
    const std::string text = metrics_of({}, {}).text();
    std::size_t families = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), rule), end; at != end; ++at) {
        const std::string name = (*at)[1];
        CAPTURE(name);
        CHECK(name == (*at)[2].str());
        CHECK(name.ends_with("_total") == ((*at)[3] == "counter"));
        CHECK(name.find("_s_") == std::string::npos);
        families++;
    }
    std::size_t helps = 0;
    for (std::size_t at = 0; (at = text.find("# HELP", at)) != std::string::npos; at++) helps++;
    CHECK(families == helps);
    CHECK(families > 80);
}

TEST_CASE("metrics: a lane's fields, in base units, and what is not known is left out") {
    const std::string text = text_of(look_with_lane());
    CAPTURE(text);
    const std::string lane = "{ring=\"r\",lane=\"3\",producer=\"env-3\"}";
    CHECK(has_line(text, "rollring_lane_committed_tokens_total" + lane + " 18446744073709551615"));
    CHECK(has_line(text, "rollring_lane_oldest_age_seconds" + lane + " 1.5"));
    CHECK(has_line(text, "rollring_lane_died" + lane + " 1"));
    CHECK(has_line(text, "rollring_lane_alive" + lane + " 0"));
    CHECK(text.find("rollring_lane_newest_age_seconds{") == std::string::npos);
    CHECK(has_line(text,
                   "rollring_lane_info{ring=\"r\",lane=\"3\",producer=\"env-3\",pid=\"77\","
                   "state=\"dead\"} 1"));
    CHECK(has_line(text, "rollring_ring_lane_bytes{ring=\"r\"} 4096"));
    CHECK(has_line(text, "rollring_ring_created_timestamp_seconds{ring=\"r\"} 1.5e+09"));
    CHECK(text.find("rollring_ring_policy_version{") == std::string::npos);
    CHECK(has_line(text, "rollring_up{ring=\"r\"} 1"));
}

TEST_CASE("metrics: drops by reason, groups by state, and no account that is not whole") {
    RingLook look = look_with_lane();
    look.stash.used = true;
    look.stash.account_whole = true;
    look.stash.account.accepted = {9, 90};
    look.stash.account.dropped[static_cast<std::size_t>(DropReason::late)] = {3, 30};
    GroupStat group{};
    group.state = GroupState::open;
    group.unchanged_ns = 2'000'000'000;
    look.stash.groups.assign(2, group);
    look.stash.groups[1].unchanged_ns = 500'000'000;
    std::string text = text_of(look);
    CAPTURE(text);
    CHECK(has_line(text, "rollring_stash_accepted_records_total{ring=\"r\"} 9"));
    CHECK(has_line(text, "rollring_stash_dropped_tokens_total{ring=\"r\",reason=\"late\"} 30"));
    CHECK(has_line(text, "rollring_stash_dropped_records_total{ring=\"r\",reason=\"stale\"} 0"));
    CHECK(has_line(text, "rollring_groups{ring=\"r\",state=\"open\"} 2"));
    CHECK(has_line(text, "rollring_groups{ring=\"r\",state=\"ready\"} 0"));
    CHECK(has_line(text, "rollring_groups_unchanged_seconds{ring=\"r\",state=\"open\"} 2"));
    CHECK(text.find("rollring_groups_unchanged_seconds{ring=\"r\",state=\"ready\"") ==
          std::string::npos);
    look.stash.account_whole = false;
    text = text_of(look);
    CHECK(has_line(text, "rollring_stash_account_whole{ring=\"r\"} 0"));
    CHECK(text.find("rollring_stash_accepted_records_total{") == std::string::npos);
}

TEST_CASE("metrics: publishers and engines of the weight channel") {
    RingLook look = look_with_lane();
    WeightsStat rank{};
    rank.publisher = "trainer";
    rank.state = ChannelState::committed;
    rank.version = rank.committed_version = 4;
    rank.syncs = 2;
    rank.last_times.put_ns = 2'500'000;
    SubscriberStat expelled{};
    expelled.name = "engine\n0";
    expelled.state = SubscriberState::expelled;
    expelled.live_version = 3;
    SubscriberStat engine = expelled;
    engine.state = SubscriberState::ready;
    engine.alive = true;
    engine.live_version = 4;
    engine.problem = "no label";
    SubscriberStat compares = engine;
    compares.name = "compares";
    compares.delta = {.version = 4,
                      .way = DeltaWay::beside,
                      .elements = 1000,
                      .changed = 20,
                      .list_bytes = 96,
                      .swap_ns = 1'500'000};
    rank.subscribers = {expelled, engine, compares};
    WeightsStat silent{};
    silent.rank = 1;
    silent.state = ChannelState::silent;
    look.weights = {rank, silent};
    const std::string text = text_of(look);
    CAPTURE(text);
    CHECK(has_line(text, "rollring_publisher_committed_version{ring=\"r\",rank=\"0\"} 4"));
    CHECK(has_line(text, "rollring_publisher_syncs_total{ring=\"r\",rank=\"0\"} 2"));
    CHECK(has_line(text, "rollring_publisher_last_sync_put_seconds{ring=\"r\",rank=\"0\"} 0.0025"));
    CHECK(has_line(text,
                   "rollring_engine_live_version{ring=\"r\",rank=\"0\",engine=\"engine?0\"} 4"));
    CHECK(text.find("engine?0\"} 3") == std::string::npos);
    const std::string of_it = "{ring=\"r\",rank=\"0\",engine=\"compares\"";
    CHECK(has_line(text, "rollring_engine_last_delta_info" + of_it + ",way=\"beside\"} 1"));
    CHECK(has_line(text, "rollring_engine_last_delta_changed" + of_it + "} 20"));
    CHECK(has_line(text, "rollring_engine_last_delta_list_bytes" + of_it + "} 96"));
    CHECK(has_line(text, "rollring_engine_last_delta_swap_seconds" + of_it + "} 0.0015"));
    CHECK(text.find("rollring_engine_last_delta_changed{ring=\"r\",rank=\"0\",engine=\"engine") ==
          std::string::npos);
    CHECK(text.find("no label") == std::string::npos);
    CHECK(text.find("rollring_publisher_info{ring=\"r\",rank=\"1\"") != std::string::npos);
    CHECK(text.find("rollring_publisher_syncs_total{ring=\"r\",rank=\"1\"") == std::string::npos);
}

TEST_CASE("metrics: a ring that is not there") {
    const std::string text = text_of({.ring = "gone"});
    CHECK(has_line(text, "rollring_up{ring=\"gone\"} 0"));
    CHECK(text.find("rollring_ring_info{") == std::string::npos);
}
