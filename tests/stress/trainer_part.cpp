// A trainer: reads every byte of every batch, and tells the content of each acknowledgement before
// and after it.

#include <memory>
#include <utility>

#include "journal.hpp"
#include "rollring/stash.hpp"
#include "support/load.hpp"

namespace rollring::test {
namespace {

StashOptions stash_options(std::string_view plant) {
    // The lie: as if every restart put the deadlines off.
    const bool overdue = plant == "overdue";
    return {.deadline =
                std::chrono::nanoseconds(overdue ? 1000 * group_deadline_ns : group_deadline_ns),
            .at_deadline = AtDeadline::drop,
            .on_failed = OnFailed::void_group,
            .order = Order::freshest,
            .batch = BatchTarget::groups(4),
            .max_open_groups = 2000};
}

class Trainer {
  public:
    Trainer(const Part& part, Journal& journal)
        : part_(part), journal_(journal), dice_{part.seed} {}

    int run() {
        open();
        Deadline deadline = patience();
        for (Batch batch;;) {
            const bool last = part_.board->trainer_ends != 0;
            NextBatch got = stash_->next(batch, Deadline::after_ms(last ? 1 : 20));
            if (got == NextBatch::timed_out && last) got = stash_->rest(batch);
            tell_events();
            tell_drops();
            require(stash_->account().conserved(), "not conserved: {}", account_text());
            if (got == NextBatch::batch) {
                if (last) deadline = patience();
                train(batch);
                continue;
            }
            require(got == NextBatch::timed_out, "next: closed");
            journal_.say(Kind::waiting);
            if (!last) {
                deadline = patience();
                continue;
            }
            if (stash_->open_groups() == 0 && stash_->producers_active() == 0) break;
            require(!deadline.passed(), "never over: {} lanes; {}", stash_->producers_active(),
                    waiting_for());
        }
        const StashAccount account = stash_->account();
        require(account.conserved() && account.held == Amount{} && account.leased == Amount{},
                "at the end: {}", account_text());
        journal_.say(Kind::account, static_cast<std::int64_t>(account.accepted.records),
                     static_cast<std::int64_t>(account.shipped.records));
        return 0;
    }

  private:
    void open() {
        for (const Deadline deadline = patience();;) {
            auto opened = Stash::open(part_.ring, stash_options(part_.plant),
                                      {.attach_timeout = std::chrono::milliseconds(10'000)});
            if (opened) {
                stash_ = std::move(*opened);
                break;
            }
            require(opened.error().code == Errc::not_enough_shared_memory && !deadline.passed(),
                    "no stash: {}", opened.error().to_string());
            journal_.say(Kind::refused, static_cast<std::int64_t>(opened.error().code));
        }
        step_ = stash_->last_acked_step();
        journal_.say(Kind::resumed, step_);
    }

    void train(Batch& batch) {
        look_at(batch);
        const std::uint64_t roll = dice_.below(16);
        if (roll == 0) batch.nack();
        if (roll == 1) batch = Batch();
        if (roll <= 1) return journal_.say(Kind::waiting);
        if (part_.plant == "silent" && step_ % 50 == 49) {
            require(batch.ack(step_).has_value(), "silent ack");
            return;
        }
        if (part_.plant == "foreign" && groups_.size() > 1) {
            std::swap(pieces_.front(), pieces_.back());
        }
        step_++;
        journal_.acking(step_, groups_, pieces_);
        const auto done = batch.ack(step_);
        require(done.has_value(), "ack: {}", done ? "" : done.error().to_string());
        journal_.say(Kind::acked, step_);
        if (part_.plant == "twice" && step_ % 100 == 99) {
            journal_.acking(++step_, groups_, pieces_);
            journal_.say(Kind::acked, step_);
        }
    }

    void look_at(const Batch& batch) {
        groups_.clear();
        pieces_.clear();
        for (std::size_t i = 0; i < batch.groups().size(); i++) {
            const BatchGroupInfo& info = batch.groups()[i];
            const std::uint32_t first = batch.group_offsets()[i];
            const std::uint32_t end = batch.group_offsets()[i + 1];
            const TrajectoryView& head = batch.sequences()[first].view;
            groups_.push_back({.key = info.key,
                               .life = life_of(head.instance_id()),
                               .visit = head.meta().visit,
                               .size = info.size,
                               .pieces = end - first});
            for (const Sequence& sequence : batch.sequences().subspan(first, end - first)) {
                const TrajectoryView& view = sequence.view;
                const Meta& meta = view.meta();
                const bool one = meta.policy_version_min == meta.policy_version_max;
                pieces_.push_back(
                    {.key = GroupKey::of(view.instance_id(), meta.visit),
                     .digest = content_digest(meta, view.token_ids(), view.logprobs()),
                     .version = one ? meta.policy_version_min : -2,
                     .repetition = meta.repetition_id.value_or(0),
                     .attempt = meta.attempt,
                     .subsequence = meta.subsequence_index,
                     .tokens = view.n_tokens()});
            }
        }
    }

    void tell_events() {
        Event event;
        while (stash_->next_event(event)) {
            if (event.kind >= Event::Kind::dropped) continue;  // drops are told by tell_drops()
            const std::uint64_t from = std::uint64_t{event.lane} << 32 | life_of(event.producer);
            journal_.say(Kind::event, static_cast<std::int64_t>(event.kind),
                         static_cast<std::int64_t>(from));
            if (part_.plant == "death" && event.kind == Event::Kind::producer_joined) {
                journal_.say(Kind::event, static_cast<std::int64_t>(Event::Kind::producer_died),
                             static_cast<std::int64_t>(from));
            }
        }
    }

    void tell_drops() {
        const StashAccount account = stash_->account();
        for (std::size_t i = 0; i < account.dropped.size(); i++) {
            const std::uint64_t more = account.dropped[i].records - dropped_[i].records;
            if (more != 0) {
                journal_.say(Kind::dropped, static_cast<std::int64_t>(i),
                             static_cast<std::int64_t>(more));
            }
        }
        dropped_ = account.dropped;
    }

    [[nodiscard]] std::string account_text() const {
        const StashAccount account = stash_->account();
        return fmt::format("accepted {} shipped {} dropped {} held {} leased {}; {}",
                           account.accepted.records, account.shipped.records,
                           account.dropped_total().records, account.held.records,
                           account.leased.records, waiting_for());
    }

    [[nodiscard]] std::string waiting_for() const {
        std::string text = fmt::format("{} groups open", stash_->open_groups());
        for (const GroupStat& group : stash_->explain(4)) text += "\n  " + group.to_string();
        return text;
    }

    const Part& part_;
    Journal& journal_;
    Dice dice_;
    std::unique_ptr<Stash> stash_;
    std::int64_t step_ = -1;
    decltype(StashAccount::dropped) dropped_{};
    std::vector<Shipped> groups_;
    std::vector<Piece> pieces_;
};

}  // namespace

int trainer_part(const Part& part, Journal& journal) {
    return Trainer(part, journal).run();
}

}  // namespace rollring::test
