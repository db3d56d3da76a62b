// A trainer's and a weight channel's work while the system refuses a call.

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "refusal_cases.hpp"
#include "rollring/stash.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {
namespace {

constexpr StashOptions stash_options{.group_size = 2, .batch = BatchTarget::groups(1)};

// Groups of two through a small lane, while a half one pins its head and must be evacuated.
// Acknowledged groups are not delivered again, and all others are.
class Trainer : public Case {
  public:
    Trainer() {
        auto opened = Producer::open(ring_.name());
        require_done(opened, "producer");
        producer_.emplace(std::move(*opened));
    }
    Result<void> act() override {
        auto opened = Stash::open(ring_.name(), stash_options,
                                  {.attach_timeout = std::chrono::milliseconds(30)});
        if (!opened) return outcome(opened);
        Stash& stash = **opened;
        require(send(0) == Push::ok, "the first record");
        for (std::uint64_t next = 2; acked_.size() < 2 * groups;) {
            if (next < 2 + 2 * groups && send(next) == Push::ok) next++;
            Batch batch;
            const NextBatch got = stash.next(batch, Deadline::now());
            require(got != NextBatch::closed, "the stash says that the ring is gone");
            require(!closed_, "the producer says: {}", producer_->problem());
            if (got == NextBatch::timed_out) {
                if (++idle_ > 20'000) return std::unexpected(timed_out());
                continue;
            }
            if (auto done = acknowledge(batch); !done) return done;
        }
        evacuated_ = stash.copies().evacuated_records;
        require(send(1) == Push::ok, "the last record");
        Batch batch;
        if (stash.next(batch, Deadline::after_ms(2'000)) != NextBatch::batch) {
            return std::unexpected(timed_out());
        }
        return acknowledge(batch);
    }
    void check(const Result<void>& acted, Call /*refused*/) override {
        require(!acted || (acked_.size() == 2 * groups + 2 && evacuated_ > 0),
                "{} acknowledged, {} evacuated", acked_.size(), evacuated_);
        require(!acted || sent_.size() == acked_.size(), "{} sent", sent_.size());
        auto opened = Consumer::open(ring_.name());
        require_done(opened, "the successor");
        const Deadline deadline = patience();
        while (sent_.size() > acked_.size()) {
            require(!deadline.passed(), "{} records are lost", sent_.size() - acked_.size());
            Record record;
            if (opened->wait(record, Deadline::after_ms(10)) != Poll::record) continue;
            Load::verify(record);
            const std::uint64_t number = Load::number_of(record);
            require(sent_.contains(number) && acked_.insert(number).second,
                    "record {} came again after its acknowledgement", number);
            opened->release(record.ref);
        }
        Record record;
        require(opened->poll(record) == Poll::empty, "a record too many");
    }
    void again() override {
        sent_.clear();
        acked_.clear();
        visit_ += 100;
        require_done(act(), "the same again");
    }

  private:
    static constexpr std::uint64_t groups = 40;

    static Error timed_out() { return {Errc::timed_out, 0, "no batch came"}; }

    // Record `number` belongs to group number / 2.
    Push send(std::uint64_t number) {
        Draft draft = load_.draft(0, number);
        draft.set_text(Std::instance_id, instance_ = fmt::format("{}-{}", visit_, number / 2));
        const Push pushed = producer_->push(draft, Deadline::now());
        closed_ = pushed == Push::closed;
        if (pushed == Push::ok) sent_.insert(number);
        return pushed;
    }
    Result<void> acknowledge(Batch& batch) {
        std::vector<std::uint64_t> numbers;
        for (const Sequence& one : batch.sequences()) {
            numbers.push_back(one.view.meta().repetition_id.value_or(0));
        }
        require(numbers.size() == 2 && numbers[0] / 2 == numbers[1] / 2, "a mixed group");
        auto done = batch.ack(step_++);
        if (!done) return done;
        for (const std::uint64_t number : numbers) {
            require(acked_.insert(number).second, "record {} is shipped twice", number);
        }
        return {};
    }

    ScratchRing ring_{"refused", refused_ring()};
    Load load_;
    std::optional<Producer> producer_;
    std::string instance_;
    std::uint64_t visit_ = 0;
    std::set<std::uint64_t> sent_;
    std::set<std::uint64_t> acked_;
    std::int64_t step_ = 1;
    std::uint64_t evacuated_ = 0;
    std::uint64_t idle_ = 0;
    bool closed_ = false;
};

// A publisher and a subscriber come, pass one version, and go.
class Weights : public Case {
  public:
    Result<void> act() override { return sync(800); }
    void check(const Result<void>& acted, Call refused) override {
        for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
            if (!entry.path().filename().string().starts_with("rollring-weights.")) continue;
            // A publisher that cannot remove it leaves the same as its death would: the next one
            // replaces it.
            require(refused == Call::unlinkat ||
                        !std::filesystem::exists(entry.path() / (ring_.name() + "@0")),
                    "the publisher's name stays");
        }
        const auto stat = stat_ring(ring_.name());
        require_done(stat, "stat");
        const bool committed = stat->policy_version == version_;
        require(committed || stat->policy_version == version_ - 1, "version {} is committed",
                stat->policy_version);
        require(committed || !committed_, "a committed version is not in the ring");
        const auto first = engine_[0];
        const bool whole = std::ranges::all_of(engine_, [&](float one) { return one == first; });
        require(whole || poisoned_, "a mix of versions");
        require(!acted || (committed && whole && first == value()), "the version did not arrive");
    }
    void again() override {
        poisoned_ = false;
        version_ = stat_ring(ring_.name())->policy_version;
        require_done(sync(20'000), "the same again");
        check({}, Call::count);
    }

  private:
    [[nodiscard]] float value() const { return static_cast<float>(version_ * 3 + 1); }

    Result<void> sync(std::int64_t deadline_ms) {
        version_++;
        committed_ = false;
        std::ranges::fill(trainer_, value());
        const auto tensors = [](std::vector<float>& memory) {
            return WeightTensor{
                .name = "w", .dtype = dtype_f32, .shape = {300}, .data = memory.data()};
        };
        const WeightTensor from = tensors(trainer_);
        const WeightTensor into = tensors(engine_);
        auto publisher = Publisher::create(ring_.name(), {&from, 1}, {.subscribers_max = 2});
        if (!publisher) return outcome(publisher);
        auto subscriber =
            Subscriber::attach(ring_.name(), {&into, 1}, {}, Deadline::after_ms(deadline_ms));
        if (!subscriber) return outcome(subscriber);
        const auto taken = pass(*publisher, *subscriber, Deadline::after_ms(deadline_ms));
        poisoned_ = subscriber->state() == SubscriberState::poisoned;
        return taken;
    }
    // One thread does it all: a version fits into the slots as a whole.
    Result<void> pass(Publisher& publisher, Subscriber& subscriber, Deadline deadline) {
        auto transaction = publisher.begin(version_);
        if (!transaction) return outcome(transaction);
        if (auto put = transaction->put_all(deadline); !put) return put;
        if (auto published = transaction->publish(); !published) return published;
        auto update = subscriber.next(deadline);
        if (!update) return outcome(update);
        if (auto loaded = update->load(deadline); !loaded) return loaded;
        if (auto staged = update->stage(deadline); !staged) return staged;
        if (auto report = transaction->commit(deadline); !report) return outcome(report);
        committed_ = true;
        return update->adopt(deadline);
    }

    ScratchRing ring_{"refused", refused_ring()};
    std::vector<float> trainer_ = std::vector<float>(300);
    std::vector<float> engine_ = std::vector<float>(300);
    std::int64_t version_ = -1;
    bool committed_ = false;
    bool poisoned_ = false;
};

}  // namespace

std::vector<NamedCase> stash_cases() {
    return {{"trainer", [] { return std::make_unique<Trainer>(); }},
            {"weights", [] { return std::make_unique<Weights>(); }}};
}

}  // namespace rollring::test
