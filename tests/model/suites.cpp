#include "suites.hpp"

#include <utility>

namespace model {
namespace {

const std::vector<Policy> every_policy = {Policy::in_order, Policy::newest, Policy::any,
                                          Policy::journal};
const std::vector<Mark> wraps = {Mark::full, Mark::soft_wrap, Mark::full_wrap, Mark::jump,
                                 Mark::whole_lane};

std::vector<Mark> with(std::vector<Mark> marks, std::initializer_list<Mark> more) {
    marks.insert(marks.end(), more);
    return marks;
}

Suite lane(const char* name, const Plan& plan, Bounds bounds, std::uint64_t floor,
           std::vector<Mark> must) {
    Suite suite;
    suite.name = name;
    suite.program = std::make_unique<LaneProgram>(plan);
    suite.bounds = bounds;
    suite.executions_floor = floor;
    suite.must = std::move(must);
    suite.must_crash = plan.kill_reader || plan.kill_writer;
    suite.must_sleep = plan.bells;
    return suite;
}

Suite random(Suite suite, std::uint64_t executions) {
    suite.random = suite.executions_floor = executions;
    return suite;
}

// Everybody lives: every wrap, every way to give records back.
Suite flow(bool full) {
    Plan plan;
    plan.lengths = {1, 2, 4};
    plan.records = 4;
    plan.starts = {0, 5};
    plan.policies = every_policy;
    return lane("flow", plan, {full ? 2 : 1, 1, 0}, full ? 300'000 : 30'000,
                with(wraps, {Mark::out_of_order}));
}

Suite writer_crash(bool full) {
    Plan plan;
    plan.lengths = full ? std::vector<std::uint64_t>{1, 2, 4} : std::vector<std::uint64_t>{1, 4};
    plan.records = 4;
    plan.starts = {0, 5};
    plan.batch = 2;
    plan.kill_writer = true;
    return lane("writer-crash", plan, {1, 1, 1}, full ? 250'000 : 40'000,
                with(wraps, {Mark::writer_restart, Mark::unshown}));
}

const std::vector<Mark> takeover = {Mark::reader_restart, Mark::redelivered,  Mark::passed_over,
                                    Mark::half_marked,    Mark::cursor_ahead, Mark::replayed,
                                    Mark::set_gone,       Mark::set_back,     Mark::out_of_order,
                                    Mark::whole_lane};

Plan dying_reader() {
    Plan plan;
    plan.lengths = {1, 3};
    plan.records = 4;
    plan.starts = {0, 5};
    plan.policies = every_policy;
    plan.kill_reader = true;
    return plan;
}

Suite reader_crash(bool full) {
    return lane("reader-crash", dying_reader(), {full ? 1 : 0, 0, 1}, full ? 500'000 : 20'000,
                with(takeover, {Mark::soft_wrap, Mark::full_wrap, Mark::jump, Mark::full}));
}

// The successor dies as well, in its recovery among other places.
Suite reader_crash_twice() {
    Plan plan = dying_reader();
    plan.records = 3;
    plan.starts = {5};
    return lane("reader-crash-twice", plan, {0, 0, 2}, 100'000, takeover);
}

// The consumer dies between a cursor above a skip and the head below it, while a jump has put the
// memory under that skip to use.
Suite reader_crash_jump() {
    Plan plan;
    plan.lines = 12;
    plan.lengths = {1};
    plan.records = 7;
    plan.policies = {Policy::any};
    plan.hold = 1;
    plan.kill_reader = true;
    return lane("reader-crash-jump", plan, {1, 0, 1}, 100'000,
                {Mark::soft_wrap, Mark::jump, Mark::bits_under_skip, Mark::whole_lane});
}

// Sleepers, and records that may not fit until the consumer has passed a skip.
Plan sleepers() {
    Plan plan;
    plan.lines = 6;
    plan.lengths = {1, 4};
    plan.records = 4;
    plan.starts = {0, 4};
    plan.bells = true;
    return plan;
}

Suite bells(bool full) {
    Plan plan = sleepers();
    if (full) plan.lengths = {1, 3, 4};
    return lane("bells", plan, {2, full ? 2 : 1, 0}, full ? 500'000 : 50'000,
                {Mark::full, Mark::soft_wrap, Mark::full_wrap, Mark::asleep, Mark::second_look});
}

Suite bells_crash() {
    Plan plan = sleepers();
    plan.lengths = {1, 3, 4};
    plan.records = 3;
    plan.kill_reader = plan.kill_writer = true;
    return lane(
        "bells-crash", plan, {1, 1, 1}, 300'000,
        {Mark::full, Mark::asleep, Mark::second_look, Mark::writer_restart, Mark::reader_restart});
}

// A consumer that pins so much must not block the producer for good: a third of a lane, less one
// record; without soft laps, all but two records.
Suite pin(bool soft, std::uint64_t executions) {
    Plan plan;
    plan.lines = 32;
    plan.soft_lines = soft ? 2 : 32;
    plan.lengths = {1, 2, 3};
    plan.records = 40;
    plan.starts = {0, 3, 7, 11};
    plan.policies = {Policy::pin};
    plan.pin_lines = soft ? 7 : 26;
    std::vector<Mark> must = {Mark::full, soft ? Mark::soft_wrap : Mark::full_wrap};
    if (soft) {
        plan.later_soft_lines = {2, 2, 5, 12, 32};
        must.push_back(Mark::jump);
    }
    return random(lane(soft ? "pin-soft" : "pin-full", plan, {}, 0, std::move(must)), executions);
}

// Hundreds of records and a dozen deaths in one run.
Suite endurance(bool bells, std::uint64_t executions) {
    Plan plan;
    plan.lines = 16;
    plan.lengths = {1, 2, 3, 4, 5};
    plan.records = 300;
    plan.starts = {0, 3, 7, 11};
    if (!bells) plan.policies = every_policy;
    plan.later_soft_lines = {2, 6, 16};
    plan.hold = 5;
    plan.bells = bells;
    plan.kill_writer = plan.kill_reader = true;
    Bounds bounds{.preemptions = 1, .stale = 1, .crashes = 12, .steps = 500'000};
    return random(lane(bells ? "endurance-bells" : "endurance", plan, bounds, 0,
                       with(wraps, {Mark::writer_restart, Mark::reader_restart})),
                  executions);
}

template <class Made>
Suite lonely(const char* name, int crashes, std::uint64_t floor, std::vector<Mark> must) {
    Suite suite;
    suite.name = name;
    suite.program = std::make_unique<Made>();
    suite.bounds = {0, 0, crashes};
    suite.executions_floor = floor;
    suite.must = std::move(must);
    suite.must_crash = true;
    return suite;
}

}  // namespace

std::vector<Suite> suites(Tier tier) {
    const bool full = tier == Tier::full;
    std::vector<Suite> all;
    all.push_back(bells(full));
    all.push_back(flow(full));
    all.push_back(writer_crash(full));
    all.push_back(reader_crash(full));
    all.push_back(reader_crash_jump());
    all.push_back(lonely<TwoLanes>(
        "two-lanes", full ? 2 : 1, full ? 350'000 : 3'000,
        {Mark::replayed, Mark::set_gone, Mark::set_back, Mark::cursor_ahead, Mark::whole_lane}));
    all.push_back(
        lonely<StartOver>("start-over", 2, 2'000, {Mark::reader_restart, Mark::started_over}));
    all.push_back(pin(true, full ? 100'000 : 5'000));
    all.push_back(pin(false, full ? 50'000 : 5'000));
    all.push_back(endurance(false, full ? 4'000 : 200));
    all.push_back(endurance(true, full ? 4'000 : 200));
    if (full) {
        all.push_back(reader_crash_twice());
        all.push_back(bells_crash());
    }
    return all;
}

std::vector<Suite> misuses() {
    std::vector<Suite> all;
    Plan early = sleepers();
    early.rings_too_early = true;
    early.lengths = {1, 3, 4};
    all.push_back(lane("rings before the last look", early, {2, 0, 0}, 1, {}));
    Plan skips = sleepers();
    skips.forgets_skips = true;
    all.push_back(lane("forgets that poll() moves the head", skips, {2, 0, 0}, 1, {}));
    return all;
}

}  // namespace model
