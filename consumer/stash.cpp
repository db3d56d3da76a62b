#include "rollring/stash.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "group_stash.hpp"

namespace rollring {
namespace {

constexpr int records_per_turn = 64;  // between looks at the clock
constexpr std::int64_t tick_every_ns = 10'000'000;

Arrival arrival_of(const Record& record) {
    const Meta& meta = record.view.meta();
    Arrival arrival;
    arrival.ref = record.ref;
    arrival.producer_epoch = record.producer_epoch;
    arrival.key = record.view.group_key();
    arrival.repetition_id = meta.repetition_id;
    arrival.group_size = meta.group_size;
    arrival.segment_index = meta.segment_index;
    arrival.last_segment = meta.last_segment;
    arrival.attempt = meta.attempt;
    arrival.status = meta.status;
    arrival.n_tokens = record.view.n_tokens();
    arrival.policy_version_min = meta.policy_version_min;
    arrival.reward = meta.reward;
    arrival.source_id = meta.source_id.value_or(0);
    return arrival;
}

}  // namespace

struct Stash::Impl {
    Consumer consumer;
    GroupStash groups;
    Advantages advantages;
    Record record;
    std::deque<Event> events;
    std::int64_t ticked_ns = 0;

    Impl(Consumer reader, const StashOptions& options)
        : consumer(std::move(reader)), groups(options), advantages(options.advantages) {}

    void admit(std::int64_t now_ns) {
        groups.admit(arrival_of(record), now_ns, consumer.policy_version());
        release_dropped();
    }
    void release_dropped() {
        for (const Dropped& dropped : groups.dropped()) consumer.release(dropped.ref);
        groups.dropped().clear();
    }
    void tick(std::int64_t now_ns);
    void hear_events(std::int64_t now_ns);
};

Stash::Stash(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stash::~Stash() = default;

Result<std::unique_ptr<Stash>> Stash::open(std::string_view ring, const StashOptions& options,
                                           const ConsumerOptions& consumer_options) {
    if (auto valid = validate(options); !valid) return std::unexpected(valid.error());
    auto consumer = Consumer::open(ring, consumer_options);
    if (!consumer) return std::unexpected(consumer.error());
    return std::unique_ptr<Stash>(new Stash(std::make_unique<Impl>(std::move(*consumer), options)));
}

void Stash::Impl::tick(std::int64_t now_ns) {
    if (now_ns - ticked_ns < tick_every_ns) return;
    ticked_ns = now_ns;
    hear_events(now_ns);
    groups.tick(now_ns);
    release_dropped();
}

// A producer's end is told after its last record: what it has begun will not be finished.
void Stash::Impl::hear_events(std::int64_t now_ns) {
    Event event;
    while (consumer.next_event(event)) {
        if (event.kind == Event::Kind::producer_lost ||
            event.kind == Event::Kind::producer_closed) {
            groups.producer_gone(event.lane, event.epoch, now_ns);
        }
        events.push_back(std::move(event));
        if (events.size() > 1024) events.pop_front();
    }
}

NextBatch Stash::next_batch(Batch& batch, Deadline deadline) {
    batch = Batch();
    for (;;) {
        const std::int64_t now = monotonic_ns();
        impl_->tick(now);
        BatchPlan plan;
        const bool cut = impl_->groups.cut(now, impl_->consumer.policy_version(), plan);
        impl_->release_dropped();
        if (cut) {
            lease(plan, batch);
            return NextBatch::batch;
        }
        Poll got = Poll::empty;
        for (int i = 0; i < records_per_turn; i++) {
            got = impl_->consumer.poll(impl_->record);
            if (got != Poll::record) break;
            impl_->admit(now);
            if (impl_->groups.may_cut()) break;
        }
        if (got == Poll::closed) return NextBatch::closed;
        if (got == Poll::record) continue;
        if (monotonic_ns() >= deadline.at_ns) return NextBatch::timed_out;
        const std::int64_t until = std::min(deadline.at_ns, now + tick_every_ns * 5);
        got = impl_->consumer.wait(impl_->record, Deadline{until});
        if (got == Poll::record) impl_->admit(monotonic_ns());
    }
}

NextBatch Stash::rest(Batch& batch) {
    batch = Batch();
    const std::int64_t now = monotonic_ns();
    impl_->hear_events(now);
    BatchPlan plan;
    const bool cut = impl_->groups.cut_rest(now, impl_->consumer.policy_version(), plan);
    impl_->release_dropped();
    if (!cut) return NextBatch::timed_out;
    lease(plan, batch);
    return NextBatch::batch;
}

// Fills the batch from the plan: views over the records where they lie.
void Stash::lease(const BatchPlan& plan, Batch& batch) {
    batch.stash_ = this;
    batch.id_ = plan.id;
    batch.refs_ = plan.settled_marks;
    batch.cu_seqlens_.push_back(0);
    batch.group_offsets_.push_back(0);
    std::vector<double> rewards;
    std::vector<double> advantages;
    for (const BatchGroup& group : plan.groups) {
        rewards.clear();
        for (const BatchMember& member : group.members) {
            rewards.push_back(member.reward.value_or(std::numeric_limits<double>::quiet_NaN()));
        }
        advantages.assign(rewards.size(), 0.0);
        group_advantages(rewards, impl_->advantages, advantages);
        for (std::uint32_t m = 0; m < group.members.size(); m++) {
            const BatchMember& member = group.members[m];
            for (const MemberSegment& segment : member.segments) {
                Sequence& sequence = batch.sequences_.emplace_back();
                impl_->consumer.view(segment.ref, sequence.view);
                sequence.group = static_cast<std::uint32_t>(batch.groups_.size());
                sequence.member = m;
                sequence.advantage = advantages[m];
                sequence.withheld = member.withheld;
                batch.refs_.push_back(segment.ref);
                batch.cu_seqlens_.push_back(batch.cu_seqlens_.back() + segment.n_tokens);
            }
        }
        batch.groups_.push_back(
            {group.key, group.size, static_cast<std::uint32_t>(group.members.size())});
        batch.group_offsets_.push_back(static_cast<std::uint32_t>(batch.sequences_.size()));
    }
}

StashAccount Stash::account() const {
    return impl_->groups.account();
}
std::size_t Stash::open_groups() const {
    return impl_->groups.open_groups();
}
bool Stash::no_progress() const {
    return impl_->groups.no_progress(monotonic_ns());
}
const Consumer& Stash::consumer() const {
    return impl_->consumer;
}

std::vector<GroupReport> Stash::explain(std::size_t count) const {
    std::vector<GroupReport> reports;
    for (WaitingGroup& group : impl_->groups.explain(monotonic_ns(), count)) {
        reports.push_back({group.key, group.age_ns, group.size, group.live, group.failed,
                           std::move(group.missing)});
    }
    return reports;
}

bool Stash::next_event(Event& event) {
    if (impl_->events.empty()) return false;
    event = std::move(impl_->events.front());
    impl_->events.pop_front();
    return true;
}

Batch::Batch() = default;
Batch::Batch(Batch&& other) noexcept {
    *this = std::move(other);
}

Batch& Batch::operator=(Batch&& other) noexcept {
    if (this == &other) return *this;
    nack();
    stash_ = std::exchange(other.stash_, nullptr);
    id_ = other.id_;
    groups_ = std::move(other.groups_);
    sequences_ = std::move(other.sequences_);
    group_offsets_ = std::move(other.group_offsets_);
    cu_seqlens_ = std::move(other.cu_seqlens_);
    refs_ = std::move(other.refs_);
    return *this;
}

Batch::~Batch() {
    nack();
}

Result<void> Batch::ack(std::int64_t step) {
    ROLLRING_ASSERT(leased(), "a batch is acknowledged once");
    auto released = stash_->impl_->consumer.release_all(refs_, step);
    if (!released) return released;  // still leased: nothing was given back
    std::exchange(stash_, nullptr)->impl_->groups.ack(id_, monotonic_ns());
    return {};
}

void Batch::nack() {
    if (leased()) std::exchange(stash_, nullptr)->impl_->groups.nack(id_);
}

}  // namespace rollring
