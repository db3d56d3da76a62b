#include "world.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace bench::scale {
namespace {

constexpr double window_s = 60;  // over which the rate of training is looked at, or so many steps
constexpr std::int64_t window_steps = 8;
constexpr double recovered_share = 0.97;  // of the lowest rate before, less the lost share
constexpr double limit_share = 0.9;       // a part with this utilization is the limit

std::uint32_t batch_groups_of(const Settings& settings) {
    const std::uint32_t all = settings.batch_groups != 0
                                  ? settings.batch_groups
                                  : settings.all_workers() / settings.group_size / 4;
    return std::max(1U, all / settings.rings);
}

class World {
  public:
    explicit World(const Settings& settings);
    Outcome run();

  private:
    void run_for(double seconds) { events_.run_until(clock_ns + ns_of(seconds)); }
    void forget();
    void measure(Outcome& outcome);
    void name_limit(Outcome& outcome) const;
    void lose(Outcome& outcome);
    void find_lost(Loss& loss);
    void give_again(const std::vector<std::uint32_t>& lost);
    void judge_recovery(Outcome& outcome) const;
    void check(Outcome& outcome);
    [[nodiscard]] WorkerTimes worker_times() const;
    [[nodiscard]] double rate(std::int64_t begin_ns, std::int64_t end_ns) const;
    void trained(std::uint32_t number);

    const Settings& settings_;
    Events events_;
    Rollouts rollouts_;
    Fleet fleet_;
    std::vector<std::unique_ptr<Node>> nodes_;
    Trainer trainer_;
    std::int64_t begun_ns_ = clock_ns;  // of the measured part
    WorkerTimes times_before_;
    std::int64_t idle_before_ns_ = 0;
    std::uint64_t calls_before_ = 0;
    double open_sum_ = 0;
    std::uint64_t open_looks_ = 0;
    std::int64_t lost_ns_ = 0;
    std::int64_t redone_ns_ = 0;
    std::uint64_t redone_groups_ = 0;
};

double train_ns_of(const Settings& settings) {
    if (settings.train_ns != 0) return settings.train_ns;
    return 1e9 / (settings.train_load * settings.all_workers() * settings.tokens_per_s);
}

World::World(const Settings& settings)
    : settings_(settings),
      rollouts_(settings),
      fleet_{&settings, &events_, &rollouts_, {}, {}, {}},
      trainer_(fleet_, train_ns_of(settings), [this](std::uint32_t number) { trained(number); }) {
    const Receiver::Hears hears{[this](Parcel& parcel) {
                                    events_.after_us(settings_.round_trip_us / 2, [this, &parcel] {
                                        nodes_[parcel.node]->arrived(parcel);
                                    });
                                },
                                [this] { trainer_.came(); }};
    for (std::uint32_t ring = 0; ring < settings.rings; ring++) {
        fleet_.receivers.push_back(std::make_unique<Receiver>(
            settings, ring, batch_groups_of(settings), events_, rollouts_, hears));
    }
    for (std::uint32_t node = 0; node < settings.nodes; node++) {
        nodes_.push_back(std::make_unique<Node>(fleet_, node));
    }
}

Outcome World::run() {
    Outcome outcome;
    for (const auto& node : nodes_) node->look();
    trainer_.start();
    run_for(settings_.warm_s);
    forget();
    run_for(settings_.measure_s);
    measure(outcome);
    name_limit(outcome);
    if (settings_.loss_share > 0) {
        lose(outcome);
        run_for(std::max(0.0, settings_.after_s - settings_.detect_s));
        judge_recovery(outcome);
    }
    check(outcome);
    return outcome;
}

void World::forget() {
    begun_ns_ = clock_ns;
    times_before_ = worker_times();
    idle_before_ns_ = trainer_.idle_ns();
    calls_before_ = 0;
    for (const auto& receiver : fleet_.receivers) calls_before_ += receiver->asks().calls;
    for (const auto& node : nodes_) node->forget();
    for (const auto& receiver : fleet_.receivers) {
        receiver->link.forget();
        receiver->process.forget();
        receiver->copies.forget();
    }
    open_sum_ = 0;
    open_looks_ = 0;
}

WorkerTimes World::worker_times() const {
    WorkerTimes sum;
    for (const auto& node : nodes_) {
        const WorkerTimes one = node->times();
        sum.works_ns += one.works_ns;
        sum.place_ns += one.place_ns;
        sum.room_ns += one.room_ns;
    }
    return sum;
}

void World::trained(std::uint32_t number) {
    Group& group = rollouts_.group(rollouts_.group_of(number));
    if (++group.trained == settings_.group_size && group.hit) {
        redone_ns_ = clock_ns;
        redone_groups_++;
    }
    if (number % settings_.group_size != 0) return;
    for (const auto& receiver : fleet_.receivers) {
        open_sum_ += static_cast<double>(receiver->ring().open_groups());
        open_looks_++;
    }
}

// A step counts in so far as it lies between the two.
double World::rate(std::int64_t begin_ns, std::int64_t end_ns) const {
    double tokens = 0;
    for (const Step& step : trainer_.steps()) {
        const std::int64_t within_ns =
            std::min(step.end_ns, end_ns) - std::max(step.begin_ns, begin_ns);
        if (within_ns <= 0) continue;
        tokens += static_cast<double>(step.tokens) * seconds_of(within_ns) /
                  seconds_of(step.end_ns - step.begin_ns);
    }
    return tokens / seconds_of(end_ns - begin_ns);
}

void World::measure(Outcome& outcome) {
    const double seconds = seconds_of(clock_ns - begun_ns_);
    outcome.tokens_per_s = rate(begun_ns_, clock_ns);
    for (const Step& step : trainer_.steps()) {
        if (step.end_ns <= begun_ns_ || step.end_ns > clock_ns) continue;
        outcome.records_per_s += static_cast<double>(step.records) / seconds;
        outcome.steps++;
    }
    const WorkerTimes times = worker_times() - times_before_;
    const double all = seconds * settings_.all_workers();
    outcome.generated_share = seconds_of(times.works_ns) / all;
    outcome.place_share = seconds_of(times.place_ns) / all;
    outcome.room_share = seconds_of(times.room_ns) / all;
    outcome.idle_share = seconds_of(trainer_.idle_ns() - idle_before_ns_) / seconds;
    for (const auto& node : nodes_) {
        outcome.link_share = std::max(outcome.link_share, node->link.share_since(begun_ns_));
        outcome.node_bytes = std::max(outcome.node_bytes, static_cast<double>(node->bytes_most()));
        for (std::uint32_t ring = 0; ring < settings_.rings; ring++) {
            outcome.forwarder_share = std::max(
                outcome.forwarder_share, node->forwarder(ring).process.share_since(begun_ns_));
        }
    }
    outcome.node_reserved =
        static_cast<double>(settings_.workers * settings_.lane_bytes * settings_.rings);
    for (const auto& receiver : fleet_.receivers) {
        const auto most = [](double& value, auto other) {
            value = std::max(value, static_cast<double>(other));
        };
        most(outcome.trainer_link_share, receiver->link.share_since(begun_ns_));
        most(outcome.receiver_share, receiver->process.share_since(begun_ns_));
        most(outcome.copy_share, receiver->copies.share_since(begun_ns_));
        most(outcome.trainer_held, receiver->ring_bytes_most());
        most(outcome.trainer_waiting, receiver->waiting_bytes_most());
        most(outcome.trainer_reserved, receiver->ring().reserved_bytes());
        const rollring::StashCopies copies = receiver->ring().copies();
        outcome.spilled_bytes +=
            static_cast<double>(receiver->ring().scaled_up(copies.copied_bytes));
        outcome.calls += receiver->asks().calls;
        outcome.refused_room += receiver->asks().refused_room;
        outcome.refused_places += receiver->asks().refused_places;
        outcome.places = receiver->ring().places();
    }
    outcome.calls -= calls_before_;
    if (open_looks_ != 0) outcome.open_groups = open_sum_ / static_cast<double>(open_looks_);
}

// The trainer if it works all the time, as it shall; else the part that does. If no part does,
// workers wait: for a place, or for memory.
void World::name_limit(Outcome& outcome) const {
    const std::pair<double, const char*> shares[] = {
        {outcome.receiver_share, "receiver's process"},
        {outcome.copy_share, "copies into the ring"},
        {outcome.trainer_link_share, "trainer's link"},
        {outcome.link_share, "a node's link"},
        {outcome.forwarder_share, "a forwarder's process"},
        {outcome.generated_share, "workers"},
    };
    const auto* const busiest =
        std::ranges::max_element(shares, {}, [](const auto& one) { return one.first; });
    if (1 - outcome.idle_share >= limit_share) {
        outcome.limit = "trainer";
    } else if (busiest->first >= limit_share) {
        outcome.limit = busiest->second;
    } else if (outcome.place_share > 1 - limit_share) {
        outcome.limit =
            outcome.refused_room > outcome.refused_places ? "memory of the ring" : "places";
    } else {
        outcome.limit = "stragglers";
    }
}

void World::lose(Outcome& outcome) {
    Loss& loss = outcome.loss;
    loss.nodes = std::max(
        1U, static_cast<std::uint32_t>(std::lround(settings_.loss_share * settings_.nodes)));
    lost_ns_ = redone_ns_ = clock_ns;
    // Spread over the numbers: none is special.
    for (std::uint32_t i = 0; i < loss.nodes; i++) {
        nodes_[std::size_t{i} * (settings_.nodes / loss.nodes)]->die();
    }
    run_for(settings_.detect_s);
    for (std::uint32_t node = 0; node < settings_.nodes; node++) {
        if (nodes_[node]->alive()) continue;
        for (const auto& receiver : fleet_.receivers) receiver->close(node);
    }
    find_lost(loss);
    for (const auto& node : nodes_) node->look();
}

// Records that no node will send: of rollouts that were given to a node that is gone, those that
// have not reached the trainer's ring.
void World::find_lost(Loss& loss) {
    for (std::uint32_t number = 0; number < rollouts_.groups(); number++) {
        Group& group = rollouts_.group(number);
        std::vector<std::uint32_t> lost;
        for (std::uint32_t i = 0; i < settings_.group_size; i++) {
            const std::uint32_t one = rollouts_.first_of(number) + i;
            const Rollout& rollout = rollouts_[one];
            if (rollout.place == Place::ring || rollout.place == Place::trained) continue;
            const std::uint32_t node = rollout.place == Place::waiting ? group.node : rollout.node;
            if (!nodes_[node]->alive()) lost.push_back(one);
        }
        if (lost.empty()) continue;
        group.hit = true;
        loss.groups++;
        loss.rollouts += lost.size();
        give_again(lost);
    }
}

void World::give_again(const std::vector<std::uint32_t>& lost) {
    for (const std::uint32_t one : lost) {
        rollouts_.move(one, settings_.redo ? Place::waiting : Place::lost);
        rollouts_[one].in_advance = false;
    }
    if (!settings_.redo) return;
    if (lost.size() == settings_.group_size) {
        fleet_.groups_again.push_back(rollouts_.group_of(lost.front()));
    } else {
        for (const std::uint32_t one : lost) fleet_.rollouts_again.push_back(one);
    }
}

void World::judge_recovery(Outcome& outcome) const {
    Loss& loss = outcome.loss;
    loss.redone_groups = redone_groups_;
    loss.redone_s = seconds_of(redone_ns_ - lost_ns_);
    const double left = 1.0 - static_cast<double>(loss.nodes) / settings_.nodes;
    const double expected = left * outcome.tokens_per_s;
    if (expected <= 0) return;
    loss.rate_kept = rate(lost_ns_, clock_ns) / expected;
    // A minute, or some steps. The rate goes up and down without a loss, too.
    const auto steps = static_cast<std::int64_t>(std::max<std::uint64_t>(1, outcome.steps));
    const std::int64_t window_ns =
        std::max(ns_of(window_s), (lost_ns_ - begun_ns_) * window_steps / steps);
    double lowest = outcome.tokens_per_s;
    for (std::int64_t end = begun_ns_ + window_ns; end <= lost_ns_; end += window_ns / 8) {
        lowest = std::min(lowest, rate(end - window_ns, end));
    }
    for (std::int64_t end = lost_ns_ + window_ns; end <= clock_ns; end += window_ns / 8) {
        if (rate(end - window_ns, end) < recovered_share * left * lowest) {
            loss.recovered_s = seconds_of(end - lost_ns_);
        }
    }
}

void World::check(Outcome& outcome) {
    const auto must = [&](bool holds, std::string what) {
        if (!holds) outcome.broken.push_back(std::move(what));
    };
    const std::int64_t time_ns = clock_ns - clock_begin_ns;
    must(trainer_.idle_ns() + trainer_.busy_ns() == time_ns,
         fmt::format("the trainer was idle for {:.3f} s and busy for {:.3f} of {:.3f}",
                     seconds_of(trainer_.idle_ns()), seconds_of(trainer_.busy_ns()),
                     seconds_of(time_ns)));
    must(trainer_.surprises() == 0,
         fmt::format("{} rollouts came to the trainer that had not been sent, or came twice",
                     trainer_.surprises()));
    std::uint64_t accepted = 0;
    std::uint64_t shipped = 0;
    for (const auto& receiver : fleet_.receivers) {
        must(receiver->places_exceeded() == 0,
             fmt::format("more than {} groups were open, {} times", receiver->ring().places(),
                         receiver->places_exceeded()));
        const rollring::StashAccount account = receiver->ring().account();
        must(account.conserved(), "the stash's account is not conserved");
        accepted += account.accepted.records;
        shipped += account.shipped.records;
        for (const rollring::Amount& reason : account.dropped) outcome.dropped += reason.records;
    }
    const std::uint64_t trained = rollouts_.in(Place::trained);
    must(shipped == trained,
         fmt::format("{} records were shipped, and {} trained on", shipped, trained));
    const std::uint64_t sent = rollouts_.in(Place::ring) + trained;
    must(accepted <= sent,
         fmt::format("{} records were sent to rings, and {} came out of them", sent, accepted));
    must(outcome.dropped == 0 || !settings_.redo,
         fmt::format("{} records were dropped", outcome.dropped));
}

}  // namespace

Outcome simulate(const Settings& settings) {
    clock_ns = clock_begin_ns;
    World world(settings);
    return world.run();
}

}  // namespace bench::scale
