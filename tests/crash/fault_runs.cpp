#include "fault_runs.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "group_load.hpp"
#include "ledger.hpp"
#include "request_load.hpp"
#include "ring_map.hpp"
#include "share_load.hpp"
#include "store_load.hpp"
#include "support/arrivals.hpp"

namespace rollring::test {
namespace {

constexpr int exit_status = 86;  // of the action "exit"

// Every lane of the ring takes a producer and delivers its records.
void check_usable(const std::string& ring, std::uint32_t lanes) {
    auto consumer = Consumer::open(ring);
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    std::vector<Producer> producers;
    Load load;
    for (std::uint32_t i = 0; i < lanes; i++) {
        auto producer = Producer::open(ring, {.attach_timeout = {}});
        for (const Deadline deadline = patience(); !producer && !deadline.passed();) {
            Record record;
            require(consumer->poll(record) == Poll::empty, "a record is left");
            producer = Producer::open(ring, {.attach_timeout = {}});
        }
        require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
        require(load.push(*producer, i, 0) == Push::ok, "{}", producer->problem());
        producers.push_back(std::move(*producer));
    }
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < lanes; i++) {
        Record record;
        require(consumer->wait(record, patience()) == Poll::record, "a lane is dead");
        Load::verify(record);
        sum += Load::stream_of(record) + 1;
        consumer->release(record.ref);
    }
    require(sum == lanes * (lanes + 1) / 2, "not every lane has delivered");
}

int create_role(const std::vector<std::string>& arguments) {
    const auto made = create_ring(arguments.at(1), {.lanes = 2, .lane_bytes = 64 << 10});
    if (made) return 0;
    return made.error().code == Errc::already_exists ? 2 : 1;
}

int remove_role(const std::vector<std::string>& arguments) {
    return remove_ring(arguments.at(1)).has_value() ? 0 : 1;
}

// A lane taken and closed without a record, and one whose owner writes rubbish and closes.
int corrupt_role(const std::vector<std::string>& arguments) {
    const std::string& ring = arguments.at(1);
    require(Producer::open(ring).has_value(), "cannot open");
    const auto producer = Producer::open(ring);
    require(producer.has_value(), "cannot open");
    const auto map = RingMap::attach(ring, patience());
    const auto page =
        map->segment().map(map->geometry().owner_offset(producer->lane()), page_bytes, true);
    page->at<LaneOwner>(0).tail = 4096;  // no frame lies there
    return 0;
}

constexpr std::uint64_t bound = 2;  // on the records of bound_run()

Push push_bounded(Producer& producer, Deadline deadline) {
    const std::vector<std::int32_t> values(20, 1);
    Draft draft("prompt");
    draft.set(Std::token_ids, values);
    return producer.push(draft, deadline);
}

// --bounded RING RECORDS
int bounded_role(const std::vector<std::string>& arguments) {
    auto producer = Producer::open(arguments.at(1), {.max_records = bound});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    for (std::uint64_t i = 0; i < std::stoull(arguments.at(2)); i++) {
        const Push pushed = push_bounded(*producer, patience());
        require(pushed == Push::ok, "{}: {}", name(pushed), producer->problem());
    }
    return 0;
}

// Removes whatever a run leaves of a name.
struct Cleared {
    std::string name;
    ~Cleared() { static_cast<void>(remove_ring(name, true)); }
};

}  // namespace

bool was_struck(const Fault& fault, int status) {
    if (status == 0) return false;
    const int wanted = fault.action == "kill" ? 128 + SIGKILL : exit_status;
    require(status == wanted, "the victim ended with status {}", status);
    return true;
}

void await_strike(pid_t victim, const std::function<bool()>& over) {
    for (const Deadline deadline = patience(); look_at(victim) == 'r' && !over();) {
        if (deadline.passed()) return;
        ended_within(victim, 1'000'000);
    }
}

Struck end_strike(const Fault& fault, pid_t& victim) {
    const char state = look_at(victim);
    if (state == 's') {
        await_stopped(victim);
        kill(victim, SIGCONT);
        return Struck::stopped;
    }
    if (state != 'e') return Struck::no;
    return was_struck(fault, collect(std::exchange(victim, 0))) ? Struck::ended : Struck::no;
}

std::function<int()> fault_role(const std::vector<std::string>& arguments) {
    static const std::map<std::string, int (*)(const std::vector<std::string>&)> roles = {
        {"--create", create_role},
        {"--remove", remove_role},
        {"--corrupt", corrupt_role},
        {"--producer", [](const auto& all) { return producer_role({all.begin() + 1, all.end()}); }},
        {"--sender", [](const auto& all) { return sender_role({all.begin() + 1, all.end()}); }},
        {"--consumer", [](const auto& all) { return consumer_role({all.begin() + 1, all.end()}); }},
        {"--rollouts", [](const auto& all) { return rollouts_role({all.begin() + 1, all.end()}); }},
        {"--trainer", [](const auto& all) { return trainer_role({all.begin() + 1, all.end()}); }},
        {"--opener", opener_role},
        {"--bounded", bounded_role},
        {"--request-board",
         [](const auto& all) { return request_board_role({all.begin() + 1, all.end()}); }},
        {"--request-worker",
         [](const auto& all) { return request_worker_role({all.begin() + 1, all.end()}); }},
        {"--share-sender",
         [](const auto& all) { return share_sender_role({all.begin() + 1, all.end()}); }},
        {"--share-trainer",
         [](const auto& all) { return share_trainer_role({all.begin() + 1, all.end()}); }},
        {"--share-reader",
         [](const auto& all) { return share_reader_role({all.begin() + 1, all.end()}); }},
        {"--store-user",
         [](const auto& all) { return store_user_role({all.begin() + 1, all.end()}); }},
    };
    if (arguments.empty() || !roles.contains(arguments[0])) return {};
    die_with_parent();
    return [&] { return roles.at(arguments[0])(arguments); };
}

bool create_run(const Fault& fault, Dice& /*dice*/) {
    const Cleared ring{scratch_name("create")};
    if (fault.point == "create.before_clear") {  // there must be something to clear
        const int status = collect(start_self({"--create", ring.name}, "create.before_ready:kill"));
        require(status == 128 + SIGKILL, "no leftover: status {}", status);
    }
    const pid_t victim = start_self({"--create", ring.name}, fault.plan());
    if (await_end_or_stop(victim) == 's') {
        await_stopped(victim);
        const auto early =
            Consumer::open(ring.name, {.attach_timeout = std::chrono::milliseconds(5)});
        require(!early && early.error().code == Errc::not_ready, "attached to an unfinished ring");
        bool rival_won = false;
        if (fault.point == "create.after_open") {  // it has no claim yet: a rival may go first
            rival_won = create_ring(ring.name, {.lanes = 2, .lane_bytes = 64 << 10}).has_value();
            require(rival_won, "a creator without a claim keeps others out");
        }
        kill(victim, SIGCONT);
        const int status = collect(victim);
        require(status == (rival_won ? 2 : 0), "the creator ended with status {}", status);
    } else {
        if (!was_struck(fault, collect(victim))) return false;
        const auto made = create_ring(ring.name, {.lanes = 2, .lane_bytes = 64 << 10});
        require(made.has_value(), "the leftover stays: {}", made ? "" : made.error().to_string());
    }
    check_usable(ring.name, 2);
    return true;
}

bool remove_run(const Fault& fault, Dice& /*dice*/) {
    const ScratchRing ring("remove", {.lanes = 2, .lane_bytes = 64 << 10});
    const pid_t victim = start_self({"--remove", ring.name()}, fault.plan());
    if (await_end_or_stop(victim) == 's') {
        await_stopped(victim);
        // It has looked for life and will unlink: no producer may come in between.
        const auto producer =
            Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
        require(!producer && producer.error().code == Errc::not_ready, "a producer slipped in");
        const auto consumer =
            Consumer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
        require(!consumer && consumer.error().code == Errc::not_ready, "a consumer slipped in");
        kill(victim, SIGCONT);
        require(collect(victim) == 0, "the ring was not removed");
        require(create_ring(ring.name()).has_value(), "the name is not free");
        return true;
    }
    if (!was_struck(fault, collect(victim))) return false;
    check_usable(ring.name(), 2);
    require(remove_ring(ring.name()).has_value(), "the ring cannot be removed any more");
    return true;
}

bool producer_run(const Fault& fault, Dice& dice) {
    const ScratchRing ring("producer", {.lanes = 3, .lane_bytes = 64 << 10, .soft_bytes = 16384});
    Arrivals arrivals(ring.name(), dice);
    const std::size_t peers[2] = {arrivals.start(), arrivals.start()};
    const auto peer_records = [&] {
        return std::min(arrivals.seen(peers[0]).records, arrivals.seen(peers[1]).records);
    };
    const auto go_on = [&](auto until) {
        const Deadline deadline = patience();
        while (!until()) {
            require(!deadline.passed(), "the others do not go on");
            arrivals.turn();
        }
    };
    go_on([&] { return peer_records() > 0; });
    const std::size_t victim = arrivals.start(fault.plan(), 150);
    const pid_t pid = arrivals.seen(victim).pid;
    if (fault.point == "room.before_sleep") await_end_or_stop(pid);  // no process makes room
    go_on([&] { return look_at(pid) != 'r'; });
    bool struck = look_at(pid) == 's';
    const std::uint64_t before = peer_records();
    go_on([&] { return peer_records() > before + 50; });
    if (struck) {
        require(!arrivals.seen(victim).told_dead, "the stopped producer was taken for dead");
        await_stopped(pid);
        kill(pid, SIGCONT);
        go_on([&] { return look_at(pid) == 'e'; });
        arrivals.collected(victim);
        require(collect(pid) == 0, "the stopped producer did not go on");
    } else {
        arrivals.collected(victim);
        struck = was_struck(fault, collect(pid));
    }
    const std::size_t next = arrivals.start({}, 20);  // needs the victim's lane
    go_on([&] { return arrivals.seen(next).told_closed; });
    arrivals.collected(next);
    require(collect(arrivals.seen(next).pid) == 0, "the next producer failed");
    for (const std::size_t peer : peers) require(arrivals.strike(peer), "a peer has ended");
    arrivals.finish();
    return struck;
}

bool consumer_run(const Fault& fault, Dice& dice) {
    const std::uint32_t lanes = senders + 2;
    const ScratchRing ring(
        "consumer",
        {.lanes = lanes, .lane_bytes = 64 << 10, .soft_bytes = 16384, .journal_records = set_max});
    const Shared<Paper> paper;
    paper->step_done = -1;
    paper->records_each = 120;
    int attached[2];
    require(pipe(attached) == 0, "pipe: {}", errno);
    const auto start = [&](const std::string& plan) {
        return start_self({"--consumer", paper.fd(), ring.name(), std::to_string(dice.next()),
                           std::to_string(attached[1])},
                          plan);
    };
    require(collect(start_self({"--corrupt", ring.name()})) == 0, "the corrupt producer failed");
    std::vector<pid_t> sending;
    sending.reserve(senders);
    for (std::uint32_t i = 0; i < senders; i++) {
        sending.push_back(start_self({"--sender", paper.fd(), ring.name(), std::to_string(i)}));
    }
    if (fault.point.starts_with("recover.")) {  // there must be something to recover
        const int status = collect(start("ack.while_marking:kill:1"));
        require(status == 128 + SIGKILL, "nothing to recover: status {}", status);
    }
    const pid_t victim = start(fault.plan());
    bool struck = await_end_or_stop(victim) == 's';
    if (struck) {
        await_stopped(victim);
        const auto second =
            Consumer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(2)});
        require(!second && second.error().code == Errc::busy, "the seat of a stopped consumer");
        kill(victim, SIGCONT);
    } else {
        struck = was_struck(fault, collect(victim));
    }
    const pid_t last = struck && fault.action != "stop" ? start({}) : victim;
    if (struck) {
        const bool ended = ended_within(last, 30'000'000'000);
        if (!ended) kill(last, SIGKILL);
        const int status = collect(last);
        require(ended && status == 0, "the last consumer {} with status {}",
                ended ? "ended" : "never ended", status);
    }
    for (const pid_t pid : sending) require(collect(pid) == 0, "a sender failed");
    for (const auto& pushed : paper->pushed) require(pushed == 120, "{} sent", pushed.load());
    check_usable(ring.name(), lanes);
    close(attached[0]);
    close(attached[1]);
    return struck;
}

// A producer that is struck as it takes a place, and one that goes on under the same bound.
bool bound_run(const Fault& fault, Dice& /*dice*/) {
    const ScratchRing ring("bound", {.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = Consumer::open(ring.name());
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    auto peer = Producer::open(ring.name(), {.max_records = bound});
    require(peer.has_value(), "{}", peer ? "" : peer.error().to_string());
    const auto take = [&] {
        Record record;
        if (consumer->wait(record, Deadline::after_ms(10)) != Poll::record) return false;
        return consumer->release(record.ref);
    };
    const pid_t victim = start_self({"--bounded", ring.name(), "40"}, fault.plan());
    const auto take_until = [&](auto over) {
        for (const Deadline deadline = patience(); !over(); take()) {
            require(!deadline.passed(), "a producer waits for a place for good");
        }
    };
    take_until([&] { return look_at(victim) != 'r'; });
    bool struck = look_at(victim) == 's';
    if (struck) {
        await_stopped(victim);
        // A stopped producer delays no other longer than that one's deadline.
        const Push pushed = push_bounded(*peer, Deadline::now());
        require(pushed == Push::ok || pushed == Push::timed_out, "{}", peer->problem());
        kill(victim, SIGCONT);
        take_until([&] { return look_at(victim) == 'e'; });
        require(collect(victim) == 0, "the stopped producer did not go on");
    } else {
        struck = was_struck(fault, collect(victim));
    }
    while (take()) {
    }
    for (std::uint64_t i = 0; i < bound; i++) {
        require(push_bounded(*peer, patience()) == Push::ok, "{}", peer->problem());
    }
    require(push_bounded(*peer, Deadline::now()) == Push::timed_out, "the bound is passed");
    return struck;
}

}  // namespace rollring::test
