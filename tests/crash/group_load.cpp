#include "group_load.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace rollring::test {
namespace {

constexpr std::string_view instance = "group";
constexpr std::int64_t stalled_ns = 30'000'000'000;

struct Sent {
    std::uint64_t group;
    std::uint32_t repetition;
};

// One trainer's life: the batches that it finds, receives and gives back.
class Trainer {
  public:
    Trainer(GroupPaper& paper, const std::string& ring, std::uint64_t seed)
        : paper_(paper), dice_{seed} {
        auto opened = Stash::open(ring, group_options());
        require(opened.has_value(), "{}", opened ? "" : opened.error().to_string());
        stash_ = std::move(*opened);
    }

    // The acknowledgement that a predecessor was at work on is done or not: its step says so.
    void resume() {
        const std::int64_t step = stash_->last_acked_step();
        if (const std::uint64_t count = paper_.set_count.load(); count != 0) {
            const bool whole = step == paper_.set_step.load();
            require(whole || step == paper_.step_done.load(), "step {}: neither {} nor {}", step,
                    paper_.set_step.load(), paper_.step_done.load());
            (whole ? paper_.cut_done : paper_.cut_undone)++;
            if (whole) note_acked();
            paper_.set_count = 0;
        }
        require(step == paper_.step_done.load(), "last acknowledged step is {}, not {}", step,
                paper_.step_done.load());
    }

    void run() {
        std::int64_t progress_ns = monotonic_ns();
        for (;;) {
            const bool last_round = paper_.senders_ended.load() == paper_.senders.load();
            Batch batch;
            NextBatch got = stash_->next(batch, Deadline::after_ms(last_round ? 0 : 20));
            if (got == NextBatch::timed_out && last_round) got = stash_->rest(batch);
            note_copies();
            if (got == NextBatch::batch) {
                progress_ns = monotonic_ns();
                train(batch);
            } else {
                require(got == NextBatch::timed_out, "next: closed");
                if (last_round) break;
                require(monotonic_ns() - progress_ns < stalled_ns, "nothing came for long: {}",
                        waiting());
            }
        }
        require(stash_->open_groups() == 0, "groups stay open: {}", waiting());
        const StashAccount account = stash_->account();
        require(account.conserved() && account.held == Amount{} && account.leased == Amount{},
                "held {} leased {} of {} records, {}", account.held.records, account.leased.records,
                account.accepted.records, account.conserved() ? "conserved" : "not conserved");
    }

  private:
    void train(Batch& batch) {
        for (std::size_t i = 0; i < batch.groups().size(); i++) {
            const auto& first = batch.sequences()[batch.group_offsets()[i]].view;
            const GroupPlan plan{first.meta().visit};
            require(plan.who() <= rollouts && plan.number() < groups_max, "a group of nobody's");
            plan.verify(batch, i);
            require(paper_.shipped[plan.who()][plan.number()] == 0, "group {}/{} comes again",
                    plan.who(), plan.number());
            paper_.set[i] = plan.id;
        }
        switch (dice_.below(10)) {
            case 0:
                batch.nack();
                paper_.nacks++;
                return;
            case 1:
                paper_.forsaken++;
                return;
            default:
                break;
        }
        const std::uint64_t members = batch.sequences().size();
        const std::int64_t step = paper_.step_done.load() + 1;
        paper_.set_step = step;
        paper_.set_count = batch.groups().size();
        const auto done = batch.ack(step);
        require(done.has_value(), "{}", done ? "" : done.error().to_string());
        note_acked();
        paper_.set_count = 0;
        paper_.members += members;
    }

    void note_acked() {
        for (std::uint64_t i = 0; i < paper_.set_count.load(); i++) {
            const GroupPlan plan{paper_.set[i].load()};
            // Killed in here, our successor does it again.
            if (paper_.shipped[plan.who()][plan.number()].exchange(1) == 0) paper_.groups++;
        }
        paper_.step_done = paper_.set_step.load();
    }

    void note_copies() {
        const StashCopies now = stash_->copies();
        paper_.evacuated += now.evacuated_records - copies_.evacuated_records;
        paper_.copied_bytes += now.copied_bytes - copies_.copied_bytes;
        copies_ = now;
    }

    [[nodiscard]] std::string waiting() const {
        std::string text = fmt::format("{} open", stash_->open_groups());
        for (const GroupStat& group : stash_->explain(4)) text += "\n  " + group.to_string();
        return text;
    }

    GroupPaper& paper_;
    Dice dice_;
    std::unique_ptr<Stash> stash_;
    StashCopies copies_{};
};

}  // namespace

RingOptions group_ring() {
    return {.lanes = 2 * rollouts + 2,  // two for a guest
            .lane_bytes = 64 << 10,
            .soft_bytes = 16 << 10,
            .journal_records = 64,
            .spill_bytes = 1 << 20,
            .group_rows = 1024};
}

StashOptions group_options() {
    return {.on_failed = OnFailed::void_group,
            .order = Order::freshest,
            .batch = BatchTarget::groups(groups_at_once)};
}

Draft GroupPlan::member(std::uint32_t repetition, std::vector<std::int32_t>& values) const {
    values.resize(tokens(repetition));
    Load::fill(values, id, repetition);
    Draft draft;
    draft.set_text(Std::instance_id, instance);
    draft.meta.visit = id;
    draft.meta.repetition_id = repetition;
    draft.meta.group_size = size();
    draft.meta.reward = repetition;
    if (is_void() && repetition + 1 == size()) draft.meta.status = Status::failed;
    draft.set(Std::token_ids, values);
    return draft;
}

void GroupPlan::verify(const Batch& batch, std::size_t group) const {
    const std::uint32_t first = batch.group_offsets()[group];
    const std::uint32_t count = batch.group_offsets()[group + 1] - first;
    require(!is_void(), "group {}/{} was voided", who(), number());
    require(batch.groups()[group].key == GroupKey::of(instance, id) &&
                batch.groups()[group].size == size() && count == size(),
            "group {}/{} has {} members of {}", who(), number(), count, size());
    for (std::uint32_t repetition = 0; repetition < count; repetition++) {
        const TrajectoryView& view = batch.sequences()[first + repetition].view;
        require(view.instance_id() == instance && view.meta().visit == id &&
                    view.meta().repetition_id == repetition,
                "group {}/{}: member {} is {} of {}", who(), number(), repetition,
                view.meta().repetition_id.value_or(0), view.meta().visit);
        const auto ids = view.token_ids();
        bool whole = ids.size() == tokens(repetition);
        for (std::uint32_t i = 0; whole && i < ids.size(); i++) {
            whole = ids[i] == Load::token(id, repetition, i);
        }
        require(whole, "group {}/{}: member {} has other tokens", who(), number(), repetition);
    }
}

void check_all_shipped(const GroupPaper& paper, const std::string& ring) {
    for (std::uint64_t who = 0; who <= rollouts; who++) {
        for (std::uint64_t number = 0; number < paper.begun[who].load(); number++) {
            const GroupPlan plan{GroupPlan::id_of(who, number)};
            const bool shipped = paper.shipped[who][number].load() != 0;
            require(shipped != plan.is_void(), "group {}/{} is lost", who, number);
        }
    }
    auto consumer = Consumer::open(ring);  // reads the spill, too
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Record record;
    const bool empty = consumer->poll(record) == Poll::empty;
    require(empty, "a record is left");
    const auto stat = stat_ring(ring);
    require(stat.has_value(), "{}", stat ? "" : stat.error().to_string());
    for (const LaneStat& lane : stat->lanes) {
        require(lane.lost == 0 && lane.duplicates == 0 && lane.torn == 0 && lane.depth_bytes == 0,
                "lane {}: lost {} duplicates {} torn {} depth {}", lane.lane, lane.lost,
                lane.duplicates, lane.torn, lane.depth_bytes);
    }
}

namespace {

// Tombstones are bounded in number: a slow sender's echo must not outlive those of its group.
bool too_far_ahead(const GroupPaper& paper, std::uint64_t number) {
    if (paper.senders_ended.load() != 0 || number >= paper.end.load()) return false;
    std::uint64_t slowest = number;
    for (std::uint32_t i = 0; i < rollouts; i++) slowest = std::min(slowest, paper.begun[i].load());
    return number - slowest > 400;
}

}  // namespace

// Begins groups until told to stop, sends each member when it is due, and all that are begun.
int rollouts_role(const std::vector<std::string>& arguments) {
    const Shared<GroupPaper> paper(arguments.at(0));
    const std::uint64_t who = std::stoull(arguments.at(2));
    std::vector<Producer> lanes;
    for (int i = 0; i < 2; i++) {
        auto producer = Producer::open(arguments.at(1), {.checksum = Checksum::xxh3});
        require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
        lanes.push_back(std::move(*producer));
    }
    std::multimap<std::uint64_t, Sent> due;
    std::vector<std::int32_t> values;
    std::uint64_t number = 0;
    bool begins = true;
    while (begins || !due.empty()) {
        begins = begins && number < paper->end.load();
        while (begins && too_far_ahead(*paper.operator->(), number)) std::this_thread::yield();
        if (begins) {
            require(number < groups_max, "{} groups are too few for so many kills", groups_max);
            const GroupPlan plan{GroupPlan::id_of(who, number)};
            paper->begun[who] = number + 1;
            for (std::uint32_t r = 0; r < plan.size(); r++) {
                due.insert({number + plan.delay(r), {plan.id, r}});
            }
            if (plan.echo() != 0) due.insert({number + plan.delay(0) + plan.echo(), {plan.id, 0}});
        }
        while (!due.empty() && (!begins || due.begin()->first <= number)) {
            const Sent sent = due.begin()->second;
            due.erase(due.begin());
            Producer& lane = lanes[(sent.group + sent.repetition) % lanes.size()];
            const Push push =
                lane.push(GroupPlan{sent.group}.member(sent.repetition, values), patience());
            require(push == Push::ok, "push: {}: {}", name(push), lane.problem());
        }
        number++;
    }
    lanes.clear();
    paper->senders_ended++;
    return 0;
}

int trainer_role(const std::vector<std::string>& arguments) {
    const Shared<GroupPaper> paper(arguments.at(0));
    Trainer trainer(*paper.operator->(), arguments.at(1), std::stoull(arguments.at(2)));
    trainer.resume();
    require(write(std::stoi(arguments.at(3)), "a", 1) == 1, "pipe: {}", errno);
    trainer.run();
    return 0;
}

}  // namespace rollring::test
