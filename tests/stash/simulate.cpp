// Goal: promises P5 and P6 hold at every step, whatever happens to rollouts.
// Method: a seeded world with a fake clock (interleaving, duplicates, losses, reordering, retries,
// failures, subsequences, version bumps, dying producers, lazy and nacking trainers) against the
// real machine, with an oracle that follows every single record by its number.
//
//   simulate --seeds 100000 [--first N]     a failing seed prints the command that replays it

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <unordered_map>

#include "group_stash.hpp"
#include "support/process.hpp"

using namespace rollring;

namespace {

enum class Fate { held, dropped, leased, shipped };

struct Sent {
    Arrival arrival;
    Fate fate = Fate::held;
};

struct Counts {
    std::uint64_t records = 0;
    std::uint64_t batches = 0;
    std::uint64_t groups = 0;
    std::map<DropReason, std::uint64_t> dropped;
};

class World {
  public:
    World(std::uint64_t seed, Counts& counts)
        : seed_(seed),
          random_(seed),
          options_(draw_options()),
          records_max_(chance(0.2) ? 4 + below(20) : ~std::uint64_t{0}),
          stash_(options_, records_max_),
          counts_(counts) {}

    void run() {
        make_rollouts();
        for (const Arrival& planned : plan_) {
            if (chance(0.03)) version_++;
            now_ns_ += static_cast<std::int64_t>(below(2'000'000));
            if (chance(0.01)) now_ns_ += options_.due_after().count();
            send(planned);
            if (chance(0.08)) send(planned);  // a duplicate
            if (chance(0.02)) kill_producer();
            stash_.tick(now_ns_);
            check_account();
            check_deadlines();
            if (chance(0.1)) check_movable();
            trainer();
        }
        finish();
    }

  private:
    std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
    bool chance(double probability) {
        return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
    }
    template <class T>
    T one_of(std::initializer_list<T> values) {
        return values.begin()[below(values.size())];
    }

    StashOptions draw_options() {
        StashOptions options;
        options.group_size = 1 + static_cast<std::uint32_t>(below(6));
        options.extra = static_cast<std::uint32_t>(below(3));
        options.advanced.select = one_of({Select::first, Select::uniform});
        options.advanced.seed = seed_;
        options.deadline = std::chrono::nanoseconds(
            one_of<std::int64_t>({20'000'000, 100'000'000, 10'000'000'000}));
        options.at_deadline = one_of({AtDeadline::ship, AtDeadline::drop, AtDeadline::hold});
        if (chance(0.2)) {  // none is asked for
            options.deadline.reset();
            options.at_deadline.reset();
        }
        options.min_size = 1 + static_cast<std::uint32_t>(below(3));
        options.on_failed = one_of({OnFailed::shrink, OnFailed::void_group, OnFailed::hold});
        options.bad_reward = one_of({BadReward::fail, BadReward::void_group, BadReward::absent});
        options.zero_variance = one_of({ZeroVariance::keep, ZeroVariance::drop});
        options.advanced.zero_variance_run = 3;
        options.max_lag = one_of<std::int64_t>({-1, 0, 2});
        options.stale = one_of({Stale::drop, Stale::withhold});
        options.order = one_of({Order::windowed, Order::fifo, Order::freshest});
        switch (below(3)) {
            case 0:
                options.batch = BatchTarget::groups(1 + static_cast<std::uint32_t>(below(4)));
                break;
            case 1:
                options.batch = BatchTarget::sequences(1 + static_cast<std::uint32_t>(below(12)));
                break;
            default:
                options.batch = BatchTarget::tokens(1 + below(600));
                break;
        }
        options.advanced.tombstones = one_of({4U, 1U << 16});
        if (chance(0.5)) options.advanced.source_weights = {{1, 3.0}, {2, 0.5}};
        return options;
    }

    void make_rollouts() {
        const std::uint64_t groups = 1 + below(20);
        for (std::uint64_t group = 0; group < groups; group++) {
            const auto size = static_cast<std::uint32_t>(chance(0.3) ? 1 + below(8) : 0);
            const std::uint32_t members =
                (size != 0 ? size : options_.group_size) + static_cast<std::uint32_t>(below(3));
            for (std::uint32_t member = 0; member < members; member++) {
                if (chance(0.05)) continue;  // lost before it was sent
                add_member(group, member, size, 0);
                if (chance(0.1)) add_member(group, member, size, 1);
            }
        }
        // Bounded disorder, as interleaved workers make it.
        for (std::size_t i = 0; i + 1 < plan_.size(); i++) {
            const std::size_t reach = std::min<std::size_t>(plan_.size() - i, 12);
            std::swap(plan_[i], plan_[i + below(reach)]);
        }
    }

    void add_member(std::uint64_t group, std::uint32_t member, std::uint32_t size,
                    std::uint32_t attempt) {
        const std::uint64_t subsequences = chance(0.2) ? 2 + below(2) : 1;
        const bool fails = chance(0.1);
        for (std::uint64_t subsequence = 0; subsequence < subsequences; subsequence++) {
            Arrival arrival;
            arrival.key = {group / 2, group % 2};  // two visits of each instance
            arrival.producer_lane = static_cast<std::uint32_t>(below(3));
            arrival.repetition_id = member;
            // Some groups have no numbers, and some producers take another view of that.
            arrival.numbered = subsequences != 1 || (group % 5 == 0) == chance(0.01);
            arrival.group_size = size;
            arrival.subsequence_index = static_cast<std::uint16_t>(subsequence);
            arrival.last_subsequence = subsequence + 1 == subsequences;
            arrival.attempt = attempt;
            arrival.status = fails && arrival.last_subsequence ? Status::failed : Status::completed;
            arrival.n_tokens = static_cast<std::uint32_t>(1 + below(50));
            if (chance(0.9)) arrival.reward = static_cast<double>(below(2));
            if (chance(0.03)) arrival.reward = one_of({std::nan(""), HUGE_VAL, -HUGE_VAL});
            arrival.source_id = static_cast<std::int64_t>(group % 3);
            arrival.policy_version_min = static_cast<std::int64_t>(below(3)) - 1;
            plan_.push_back(arrival);
        }
    }

    void send(const Arrival& planned) {
        Arrival arrival = planned;
        arrival.record = static_cast<std::uint32_t>(sent_.size());
        arrival.producer_epoch = epochs_[arrival.producer_lane];
        if (arrival.policy_version_min >= 0) {
            arrival.policy_version_min =
                std::max<std::int64_t>(0, version_ - arrival.policy_version_min * 2);
        }
        // As after a restart; the clocks of others are not to be believed.
        if (chance(0.1)) {
            arrival.sent_ns = now_ns_ + 1'000'000 -
                              static_cast<std::int64_t>(below(2 * options_.due_after().count()));
        }
        sent_.push_back({arrival});
        counts_.records++;
        stash_.admit(arrival, now_ns_, version_);
    }

    void kill_producer() {
        const auto lane = static_cast<std::uint32_t>(below(3));
        stash_.producer_gone(lane, epochs_[lane]++, now_ns_);
    }

    // A record that pins its lane may be copied elsewhere; a leased one stays where it is.
    void check_movable() {
        const auto number = static_cast<std::uint32_t>(below(sent_.size()));
        const Sent& record = sent_[number];
        const auto found =
            stash_.movable(record.arrival.key, [&](std::uint32_t one) { return one == number; });
        expect(found.has_value() == (record.fate == Fate::held), "movable is what is held");
        expect(!found || *found == number, "what is movable is another");
    }

    void check_deadlines() {
        for (const GroupStash::Index index : stash_.oldest_open(1000)) {
            const Group& group = stash_.group(index);
            expect(group.due_ns > now_ns_ || options_.when_due() == AtDeadline::hold,
                   "a group is open past its deadline");
            expect(group.opened_ns <= now_ns_, "a group was opened in the future");
        }
    }

    // Of a Dropped or a Subsequence.
    void move(const auto& moved, Fate from, Fate to) {
        Sent& record = sent_.at(moved.record);
        expect(record.fate == from, "a record moved that was elsewhere");
        record.fate = to;
    }

    // P5, by our own count of every record.
    void check_account() {
        for (const Dropped& dropped : stash_.dropped()) {
            move(dropped, Fate::held, Fate::dropped);
            counts_.dropped[dropped.reason]++;
        }
        stash_.dropped().clear();
        Amount by_fate[4];
        for (const Sent& record : sent_) {
            by_fate[static_cast<int>(record.fate)] += {1, record.arrival.n_tokens};
        }
        const StashAccount& account = stash_.account();
        expect(account.conserved(), "accepted = shipped + dropped + held + leased");
        expect(by_fate[0] == account.held, "held");
        expect(by_fate[1] == account.dropped_total(), "dropped");
        expect(by_fate[2] == account.leased, "leased");
        expect(by_fate[3] == account.shipped, "shipped");
    }

    void trainer() {
        if (chance(0.3)) {
            BatchPlan batch;
            if (stash_.cut(now_ns_, version_, batch)) lease(batch, false);
        }
        if (!leases_.empty() && chance(0.3)) end_lease(chance(0.2));
        check_account();
    }

    void lease(const BatchPlan& batch, bool rest) {
        take_dropped_before_lease(batch);
        std::uint64_t sequences = 0;
        std::uint64_t tokens = 0;
        for (const BatchGroup& group : batch.groups) check_group(batch, group, sequences, tokens);
        const std::uint64_t records = batch.subsequences.size() + batch.failure_marks.size();
        expect(records <= records_max_, "more records than the journal holds");
        if (!rest && records_max_ == ~std::uint64_t{0}) {
            expect(batch.groups.size() >= options_.batch.of(BatchTarget::Unit::groups),
                   "batch by groups");
            expect(sequences >= options_.batch.of(BatchTarget::Unit::sequences),
                   "batch by sequences");
            expect(tokens >= options_.batch.of(BatchTarget::Unit::tokens), "batch by tokens");
        }
        leases_.push_back(batch);
        counts_.batches++;
        counts_.groups += batch.groups.size();
    }

    void take_dropped_before_lease(const BatchPlan& batch) {
        for (const Dropped& dropped : stash_.dropped()) {
            move(dropped, Fate::held, Fate::dropped);
            counts_.dropped[dropped.reason]++;
        }
        stash_.dropped().clear();
        for (const Subsequence& mark : batch.failure_marks) {
            move(mark, Fate::held, Fate::leased);
        }
    }

    // P6: one key, whole members, each once, no more than asked for, none too stale to train on.
    void check_group(const BatchPlan& batch, const BatchGroup& group, std::uint64_t& sequences,
                     std::uint64_t& tokens) {
        std::set<std::uint32_t> repetitions;
        const BatchMember& front = batch.members_of(group).front();
        const bool numbered =
            sent_.at(batch.subsequences_of(front).front().record).arrival.numbered;
        expect(group.member_count <= group.size, "more members than the group's size");
        expect(group.member_count >= std::min(options_.min_size, group.size), "too few members");
        for (const BatchMember& member : batch.members_of(group)) {
            expect(repetitions.insert(member.repetition_id).second, "a repetition comes twice");
            std::uint16_t index = 0;
            for (const Subsequence& one : batch.subsequences_of(member)) {
                const Arrival& arrival = sent_.at(one.record).arrival;
                move(one, Fate::held, Fate::leased);
                expect(arrival.key == group.key, "a member of another prompt");
                expect(!numbered || arrival.repetition_id == member.repetition_id,
                       "another repetition");
                expect(arrival.numbered == numbered, "numbered and unnumbered members");
                expect(arrival.attempt == member.attempt, "another attempt");
                expect(one.index == index++, "a subsequence is missing");
                sequences++;
                tokens += one.n_tokens;
                const bool stale = options_.max_lag >= 0 && arrival.policy_version_min >= 0 &&
                                   version_ - arrival.policy_version_min > options_.max_lag;
                expect(!stale || member.withheld, "a stale member was shipped");
            }
            expect(!member.reward || std::isfinite(*member.reward), "a bad reward was shipped");
            const Subsequence& last = batch.subsequences_of(member).back();
            expect(sent_.at(last.record).arrival.last_subsequence, "a member is not finished");
        }
    }

    void end_lease(bool give_back) {
        const std::size_t which = below(leases_.size());
        const BatchPlan batch = leases_[which];
        leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(which));
        for (const BatchGroup& group : batch.groups) {
            if (!give_back)
                expect(shipped_.insert({group.key.low, group.key.high}).second ||
                           options_.advanced.tombstones < 100,
                       "a group was shipped twice");
            for (const BatchMember& member : batch.members_of(group)) {
                for (const Subsequence& one : batch.subsequences_of(member)) {
                    move(one, Fate::leased, give_back ? Fate::held : Fate::shipped);
                }
            }
        }
        for (const Subsequence& mark : batch.failure_marks) {
            move(mark, Fate::leased, give_back ? Fate::held : Fate::dropped);
        }
        if (give_back) {
            stash_.nack(batch.id);
        } else {
            stash_.ack(batch.id, now_ns_);
        }
    }

    void finish() {
        while (!leases_.empty()) end_lease(false);
        now_ns_ += 2 * options_.due_after().count();
        stash_.tick(now_ns_);
        BatchPlan batch;
        while (stash_.cut_rest(now_ns_, version_, batch)) {
            lease(batch, true);
            end_lease(false);
        }
        check_account();
        expect(stash_.ready_groups() == 0, "complete groups were left behind");
        if (options_.when_due() != AtDeadline::hold) {
            expect(stash_.account().held == Amount{}, "held after the last deadline");
            expect(stash_.open_groups() == 0, "open after the last deadline");
        }
    }

    void expect(bool holds, const char* what) const {
        if (holds) return;
        fmt::print("seed {}: violated: {}\n  replay: simulate --first {} --seeds 1\n", seed_, what,
                   seed_);
        // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread ends the process
        std::exit(1);
    }

    std::uint64_t seed_;
    std::mt19937_64 random_;
    StashOptions options_;
    std::uint64_t records_max_;  // of the journal
    GroupStash stash_;
    Counts& counts_;
    std::int64_t now_ns_ = 1;
    std::int64_t version_ = 4;
    std::uint32_t epochs_[3] = {1, 1, 1};
    std::vector<Arrival> plan_;
    std::vector<Sent> sent_;
    std::vector<BatchPlan> leases_;
    std::set<std::pair<std::uint64_t, std::uint64_t>> shipped_;
};

}  // namespace

int main(int argc, char** argv) {
    test::Arguments arguments(argc, argv, "simulate [--seeds N] [--first SEED]");
    const std::uint64_t seeds = arguments.number("--seeds", 1000);
    const std::uint64_t first = arguments.number("--first", 1);
    arguments.end();
    Counts counts;
    for (std::uint64_t seed = first; seed < first + seeds; seed++) World(seed, counts).run();
    fmt::print("{} worlds, {} records, {} batches, {} groups shipped; dropped", seeds,
               counts.records, counts.batches, counts.groups);
    for (const auto& [reason, count] : counts.dropped) fmt::print(" {} {}", name(reason), count);
    fmt::print("\n");
    if (seeds >= 1000 && counts.dropped.size() != static_cast<std::size_t>(DropReason::count) - 0) {
        // Failure marks of shipped groups leave with their batch, not through dropped().
        fmt::print("some drop reason never happened: the simulation has lost its teeth\n");
        return 1;
    }
    return 0;
}
