#include "rollout_kill.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "group_load.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t alive_at_once = 3;
constexpr std::uint32_t places = 8;
constexpr std::size_t mortals_max = 1 << 14;
constexpr std::uint32_t size = 3;  // of every group; a member has two segments
constexpr std::uint64_t pieces = 4 * std::uint64_t{size};  // of two groups
constexpr std::int64_t rollouts_stalled_ns = 20'000'000'000;

struct Mortals {
    // records of one life, in order: stored before the push, and after it has returned
    struct {
        std::atomic<std::uint64_t> attempted;
        std::atomic<std::uint64_t> committed;
        std::atomic<std::uint64_t> announced;  // groups up to this one, by open_group()
    } life[mortals_max];
};

// Record `n` of a life: its groups are sent in pairs, interleaved, segment by segment.
struct Piece {
    std::uint64_t group;
    std::uint32_t repetition;
    std::uint16_t segment;

    explicit Piece(std::uint64_t n)
        : group(n / pieces * 2 + n % 2),
          repetition(static_cast<std::uint32_t>(n / 4 % size)),
          segment(static_cast<std::uint16_t>(n / 2 % 2)) {}
    [[nodiscard]] std::uint64_t number() const {
        return group / 2 * pieces + std::uint64_t{repetition} * 4 + std::uint64_t{segment} * 2 +
               group % 2;
    }
};

std::string prompt(std::uint64_t life, std::uint64_t group) {
    return fmt::format("life{}-{}", life, group);
}

class RolloutKill {
  public:
    RolloutKill(std::uint64_t seed, std::uint64_t kills, AtDeadline at_deadline)
        : dice_{seed},
          kills_wanted_(kills),
          at_deadline_(at_deadline),
          ring_("rollouts",
                {.lanes = alive_at_once, .lane_bytes = 64 << 10, .spill_bytes = 64 << 10}) {
        auto opened = Stash::open(
            ring_.name(),
            {.group_size = size,
             .deadline = std::chrono::nanoseconds(10'000'000),
             .at_deadline = at_deadline,
             .min_size = 1,
             .on_failed = at_deadline == AtDeadline::ship ? OnFailed::shrink : OnFailed::void_group,
             .order = Order::freshest,
             .batch = BatchTarget::groups(1),
             .max_open_groups = places});
        require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
        stash_ = std::move(*opened);
    }
    RolloutKill(const RolloutKill&) = delete;
    RolloutKill& operator=(const RolloutKill&) = delete;
    ~RolloutKill() {
        for (const auto& [life, pid] : running_) kill_and_collect(pid);
    }

    void run() {
        for (std::uint32_t i = 0; i < alive_at_once; i++) start();
        std::int64_t next_ns = monotonic_ns();
        while (kills_ < kills_wanted_) {
            turn(1);
            if (monotonic_ns() < next_ns) continue;
            auto victim = running_.begin();
            std::advance(victim, dice_.below(running_.size()));
            strike(victim->first);
            start();
            next_ns =
                monotonic_ns() + 1'000'000 + static_cast<std::int64_t>(dice_.below(3'000'000));
        }
        while (!running_.empty()) strike(running_.begin()->first);
        const Deadline deadline = patience();
        while (stash_->producers_active() > 0 || stash_->open_groups() > 0) {
            require(!deadline.passed(), "{} groups and {} lanes are never over",
                    stash_->open_groups(), stash_->producers_active());
            turn(1);
        }
        report();
    }

  private:
    void start() {
        require(lives_ < mortals_max, "more than {} lives", mortals_max);
        running_[lives_] =
            start_self({"--mortal", paper_.fd(), ring_.name(), std::to_string(lives_)});
        lives_++;
    }

    void strike(std::uint64_t life) {
        require(kill_and_collect(running_.at(life)), "producer {} ended by itself", life);
        running_.erase(life);
        kills_++;
        const auto& wrote = paper_->life[life];
        const std::uint64_t begun = wrote.attempted.load();
        struck_in_group_ += begun % pieces != 0 ? 1 : 0;
        // It holds a place for a group of which it has not begun to send anything.
        struck_announced_ += wrote.announced.load() > (begun + pieces - 1) / pieces * 2 ? 1 : 0;
    }

    void turn(std::int64_t patience_ms) {
        Batch batch;
        const NextBatch got = stash_->next(batch, Deadline::after_ms(patience_ms));
        Event event;
        while (stash_->next_event(event)) {
            if (event.kind >= Event::Kind::dropped) continue;  // of records, by any sender
            require(event.kind == Event::Kind::producer_joined ||
                        event.kind == Event::Kind::producer_died,
                    "{} of {}: {}", name(event.kind), event.producer, event.detail);
            const auto one = running_.find(std::stoull(event.producer));
            require(event.kind != Event::Kind::producer_died || one == running_.end(),
                    "producer {} was taken for dead", event.producer);
        }
        most_open_ = std::max(most_open_, stash_->open_groups());
        const std::int64_t now_ns = monotonic_ns();
        if (got != NextBatch::batch) {
            require(got == NextBatch::timed_out, "next: closed");
            require(progress_ns_ == 0 || now_ns - progress_ns_ < rollouts_stalled_ns,
                    "the run has stalled: {} groups open", stash_->open_groups());
            return;
        }
        if (progress_ns_ != 0) gap_ns_ = std::max(gap_ns_, now_ns - progress_ns_);
        progress_ns_ = now_ns;
        take(batch);
        const auto done = batch.ack(static_cast<std::int64_t>(shipped_.size()));
        require(done.has_value(), "{}", done ? "" : done.error().to_string());
    }

    // Records of one group only, each once, each sent.
    void take(const Batch& batch) {
        require(batch.groups().size() == 1, "{} groups", batch.groups().size());
        const std::string group(batch.sequences()[0].view.instance_id());
        const std::uint64_t life = batch.sequences()[0].view.meta().visit;
        require(life < lives_ && shipped_.insert({group, 1}).second, "{} comes again", group);
        std::map<std::uint32_t, int> segments;
        for (const Sequence& sequence : batch.sequences()) {
            const TrajectoryView& view = sequence.view;
            require(view.instance_id() == group && view.meta().visit == life,
                    "{} holds a member of {}", group, view.instance_id());
            segments[view.meta().repetition_id.value_or(0)]++;
            const auto ids = view.token_ids();
            require(ids.size() == 60, "{} tokens", ids.size());
            const std::uint64_t number = static_cast<std::uint64_t>(ids[0]);
            const Piece piece(number);
            require(group == prompt(life, piece.group) &&
                        piece.repetition == view.meta().repetition_id &&
                        piece.segment == view.meta().subsequence_index &&
                        number < paper_->life[life].attempted.load(),
                    "{}: record {} is not of it", group, number);
        }
        require(segments.size() == batch.groups()[0].members, "{}: {} members", group,
                segments.size());
        for (const auto& [repetition, count] : segments) {
            require(count == 2, "{}: member {} has {} segments", group, repetition, count);
        }
        const bool whole = segments.size() == size;
        require(whole || at_deadline_ == AtDeadline::ship, "{} is not whole", group);
        partial_ += whole ? 0 : 1;
    }

    void report() {
        const StashAccount account = stash_->account();
        std::uint64_t committed = 0;
        std::uint64_t attempted = 0;
        for (std::uint64_t life = 0; life < lives_; life++) {
            committed += paper_->life[life].committed.load();
            attempted += paper_->life[life].attempted.load();
        }
        require(account.conserved() && account.held == Amount{} && account.leased == Amount{},
                "held {} leased {} of {} records", account.held.records, account.leased.records,
                account.accepted.records);
        require(account.accepted.records >= committed && account.accepted.records <= attempted,
                "{} records sent, {} begun, {} accepted", committed, attempted,
                account.accepted.records);
        const auto dropped = [&](DropReason reason) {
            return account.dropped[static_cast<std::size_t>(reason)].records;
        };
        fmt::print(
            "rollouts, {}: kills={} in_group={} announced={} records={} shipped={} partial={} "
            "dropped_groups={} unfinished={} late={} deadline={} most_open={} "
            "longest_gap_ms={:.1f}\n",
            at_deadline_ == AtDeadline::ship ? "ship" : "drop", kills_, struck_in_group_,
            struck_announced_, account.accepted.records, account.groups_shipped, partial_,
            account.groups_dropped, dropped(DropReason::unfinished), dropped(DropReason::late),
            dropped(DropReason::deadline), most_open_, static_cast<double>(gap_ns_) / 1e6);
        require(kills_ >= kills_wanted_, "only {} kills", kills_);
        require(struck_in_group_ >= kills_ / 4, "only {} kills in a group", struck_in_group_);
        require(struck_announced_ >= kills_ / 50, "only {} kills of announcers", struck_announced_);
        require(most_open_ <= places + alive_at_once, "{} groups were open", most_open_);
        require(account.groups_shipped >= kills_, "only {} groups", account.groups_shipped);
        const std::uint64_t over = partial_ + account.groups_dropped;
        require(over >= kills_ / 4, "only {} groups were over", over);
        require(dropped(DropReason::unfinished) >= kills_ / 50, "only {} unfinished records",
                dropped(DropReason::unfinished));
    }

    Dice dice_;
    std::uint64_t kills_wanted_;
    AtDeadline at_deadline_;
    Shared<Mortals> paper_;
    ScratchRing ring_;
    std::unique_ptr<Stash> stash_;
    std::map<std::uint64_t, pid_t> running_;  // by life
    std::map<std::string, int> shipped_;
    std::uint64_t lives_ = 0;
    std::uint64_t kills_ = 0;
    std::uint64_t struck_in_group_ = 0;
    std::uint64_t struck_announced_ = 0;
    std::uint64_t partial_ = 0;
    std::size_t most_open_ = 0;
    std::int64_t progress_ns_ = 0;
    std::int64_t gap_ns_ = 0;
};

}  // namespace

void kill_rollouts(std::uint64_t seed, std::uint64_t kills, AtDeadline at_deadline) {
    RolloutKill(seed, kills, at_deadline).run();
}

// Sends groups, two at a time, until it is killed.
int mortal_role(const std::vector<std::string>& arguments) {
    const Shared<Mortals> paper(arguments.at(0));
    const std::uint64_t life = std::stoull(arguments.at(2));
    auto& wrote = paper->life[life];
    auto producer = Producer::open(
        arguments.at(1),
        {.name = arguments.at(2), .attach_timeout = std::chrono::milliseconds(60'000)});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    for (std::uint64_t number = 0;; number++) {
        const Piece piece(number);
        // In the middle of two groups it takes places for the next two, one after the other.
        const std::uint64_t at = number % pieces;
        if (at == size || at == 3 * std::uint64_t{size}) {
            const std::uint64_t next = piece.group / 2 * 2 + (at == size ? 2 : 3);
            const Push push = producer->open_group(prompt(life, next), life, patience());
            require(push == Push::ok, "open_group: {}: {}", name(push), producer->problem());
            wrote.announced = next + 1;
        }
        const std::string instance = prompt(life, piece.group);
        const std::vector<std::int32_t> values(60, static_cast<std::int32_t>(piece.number()));
        Draft draft(instance);
        draft.meta.visit = life;
        draft.meta.repetition_id = piece.repetition;
        draft.meta.subsequence_index = piece.segment;
        draft.meta.last_subsequence = piece.segment == 1;
        draft.meta.reward = 1.0;
        draft.set(Std::token_ids, values);
        wrote.attempted = number + 1;
        const Push push = producer->push(draft, patience());
        require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
        wrote.committed = number + 1;
    }
}

}  // namespace rollring::test
