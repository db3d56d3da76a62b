// Faults of a trainer that forms groups, and of a producer that waits for a place.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

#include "fault_runs.hpp"
#include "group_load.hpp"

namespace rollring::test {
namespace {

constexpr std::uint64_t groups_each = 1000;
constexpr std::uint64_t guest_groups = 4;

// The first members of a guest's groups, or the others. A group that has begun has its room, so the
// others find theirs whatever the trainer does; a new group would wait for him once the room for
// groups is taken.
enum class Part : std::uint8_t { first, others };

void send_as_guest(GroupPaper& paper, const std::string& ring, Part part) {
    auto producer = Producer::open(ring, {.attach_timeout = std::chrono::milliseconds(5000)});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    paper.begun[guest] = guest_groups;
    std::vector<std::int32_t> values;
    for (std::uint64_t number = 0; number < guest_groups; number++) {
        const GroupPlan plan{GroupPlan::id_of(guest, number)};
        const bool first = part == Part::first;
        for (std::uint32_t r = first ? 0 : 1; r < (first ? 1 : plan.size()); r++) {
            const Push push = producer->push(plan.member(r, values), patience());
            require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
        }
    }
}

// Processes that are gone when the run is over, also when it fails.
struct Brood {
    std::vector<pid_t> all;
    Brood() = default;
    Brood(const Brood&) = delete;
    Brood& operator=(const Brood&) = delete;
    ~Brood() {
        for (const pid_t pid : all) kill_and_collect(pid);
    }
    pid_t add(pid_t pid) {
        all.push_back(pid);
        return pid;
    }
    int collected(pid_t pid) {
        std::erase(all, pid);
        return collect(pid);
    }
};

}  // namespace

bool stash_run(const Fault& fault, Dice& dice) {
    const ScratchRing ring("stash", group_ring());
    const Shared<GroupPaper> paper;
    paper->step_done = -1;
    paper->end = groups_each;
    const bool stops = fault.action == "stop";
    paper->senders = rollouts + (stops ? 1 : 0);
    if (stops) send_as_guest(*paper.operator->(), ring.name(), Part::first);
    Brood brood;
    int attached[2];
    require(pipe(attached) == 0, "pipe: {}", errno);
    const auto start = [&](const std::string& plan) {
        return brood.add(start_self({"--trainer", paper.fd(), ring.name(),
                                     std::to_string(dice.next()), std::to_string(attached[1])},
                                    plan));
    };
    for (std::uint32_t i = 0; i < rollouts; i++) {
        brood.add(start_self({"--rollouts", paper.fd(), ring.name(), std::to_string(i)}));
    }
    // There must be something to recover: a move, or an acknowledgement.
    const bool of_move = fault.point.starts_with("spill.");
    if (of_move || fault.point.starts_with("recover.")) {
        const bool either = of_move || dice.below(2) == 0;
        const int status = brood.collected(
            start(either ? "evacuate.before_tail:kill:3" : "ack.while_marking:kill:3"));
        require(status == 128 + SIGKILL, "nothing to recover: status {}", status);
    }
    pid_t victim = start(fault.plan());
    bool struck = await_end_or_stop(victim) == 's';
    if (struck) {
        await_stopped(victim);
        auto second = Stash::open(ring.name(), group_options(),
                                  {.attach_timeout = std::chrono::milliseconds(2)});
        require(!second && second.error().code == Errc::busy, "the seat of a stopped trainer");
        const std::uint64_t groups = paper->groups.load();
        send_as_guest(*paper.operator->(), ring.name(), Part::others);
        require(paper->groups.load() == groups, "a stopped trainer has acknowledged something");
        paper->senders_ended++;
        kill(victim, SIGCONT);
    } else {
        struck = was_struck(fault, brood.collected(victim));
        if (struck) victim = start({});
    }
    if (struck) {
        const bool ended = ended_within(victim, 40'000'000'000);
        if (!ended) kill(victim, SIGKILL);
        const int status = brood.collected(victim);
        require(ended && status == 0, "the last trainer {} with status {}",
                ended ? "ended" : "never ended", status);
    }
    for (const pid_t pid : std::exchange(brood.all, {})) {
        require(collect(pid) == 0, "a sender failed");
    }
    close(attached[0]);
    close(attached[1]);
    check_all_shipped(*paper.operator->(), ring.name());
    require(paper->evacuated.load() >= 50, "only {} records evacuated", paper->evacuated.load());
    return struck;
}

// A trainer that has two places, and a producer that wants more.
bool admit_run(const Fault& fault, Dice& /*dice*/) {
    const ScratchRing ring("admit", {.lanes = 2, .lane_bytes = 64 << 10});
    auto opened = Stash::open(ring.name(), {.group_size = 2,
                                            .deadline = std::chrono::nanoseconds(20'000'000),
                                            .at_deadline = AtDeadline::drop,
                                            .batch = BatchTarget::groups(1),
                                            .max_open_groups = 2});
    require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
    Stash& stash = **opened;
    bool lost = false;
    const auto turn = [&] {
        Batch batch;
        require(stash.next(batch, Deadline::after_ms(1)) == NextBatch::timed_out,
                "a batch of halves");
        Event event;
        while (stash.next_event(event)) lost |= event.kind == Event::Kind::producer_died;
    };
    const auto until_ended = [&](pid_t pid) {
        for (const Deadline deadline = patience(); look_at(pid) != 'e'; turn()) {
            require(!deadline.passed(), "a producer waits for a place for good");
        }
    };
    Brood brood;
    const pid_t victim = brood.add(start_self({"--opener", ring.name(), "7"}, fault.plan()));
    for (const Deadline deadline = patience(); look_at(victim) == 'r'; turn()) {
        require(!deadline.passed(), "the producer never waits");
    }
    bool struck = look_at(victim) == 's';
    std::uint64_t sent = 7;
    if (struck) {
        await_stopped(victim);
        for (int i = 0; i < 30; i++) turn();
        require(!lost, "the stopped producer was taken for dead");
        kill(victim, SIGCONT);
        until_ended(victim);
        require(brood.collected(victim) == 0, "the stopped producer did not go on");
    } else {
        struck = was_struck(fault, brood.collected(victim));
        sent = 0;
    }
    const pid_t next = brood.add(start_self({"--opener", ring.name(), "5"}));
    until_ended(next);
    require(brood.collected(next) == 0, "the next producer failed");
    const Deadline deadline = patience();
    while (stash.open_groups() > 0 || stash.producers_active() > 0) {
        require(!deadline.passed(), "{} groups are never over", stash.open_groups());
        turn();
    }
    const StashAccount account = stash.account();
    require(account.conserved() && account.held == Amount{}, "held {}", account.held.records);
    require(account.groups_dropped >= sent + 5 && account.groups_dropped == account.groups_opened,
            "{} groups dropped of {}", account.groups_dropped, account.groups_opened);
    return struck;
}

int opener_role(const std::vector<std::string>& arguments) {
    auto producer = Producer::open(arguments.at(1));
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    for (std::uint64_t i = 0; i < std::stoull(arguments.at(2)); i++) {
        const std::string instance = fmt::format("{}-{}", getpid(), i);
        Draft draft(instance);
        const std::vector<std::int32_t> values(20, 1);
        draft.set(Std::token_ids, values);
        const Push push = producer->push(draft, patience());
        require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
    }
    return 0;
}

}  // namespace rollring::test
