// A trainer stepped through next() (which moves stragglers to the spill), ack and nack, of
// batches of which some are shared.

#include <algorithm>
#include <memory>
#include <utility>

#include "parts.hpp"
#include "rollring/stash.hpp"

namespace rollring::test {
namespace {

enum class Act : std::uint32_t { batch, share, ack, nack, reopen };

constexpr std::uint64_t streams = 2;
constexpr std::size_t late_max = 5;

RingOptions options() {
    return {.lanes = streams,
            .lane_bytes = 8 << 10,
            .soft_bytes = 2048,
            .journal_records = 16,
            .spill_bytes = 8 << 10,
            .group_rows = 32,
            .requests = 0};
}

class TrainerSteps {
  public:
    explicit TrainerSteps(std::uint64_t seed)
        : dice_{seed}, ring_("step-trainer", options()), survivor_(options()) {
        promise_.in_order = false;
        for (std::uint64_t i = 0; i < streams; i++) {
            auto producer = Producer::open(ring_.name(), {.spin = {}, .checksum = Checksum::xxh3});
            require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
            producers_.push_back(std::move(*producer));
        }
        stepper_ = std::make_unique<Stepper>("--step-trainer", ring_.name());
    }

    Stepped run(std::uint64_t boundaries) {
        while (stepper_->boundaries() < boundaries) context();
        fmt::print(
            "trainer: contexts={} boundaries={} images={} recoveries={} batches={} acks={} "
            "nacks={} shared={} evacuated={} reopened={} cut_gone={} cut_back={}\n",
            contexts_, stepper_->boundaries(), stepper_->images(), survivor_.recoveries(), batches_,
            promise_.step + 1, nacks_, shared_, evacuated_, reopened_, gone_, back_);
        for (const std::uint64_t one : {batches_, static_cast<std::uint64_t>(promise_.step + 1),
                                        nacks_, shared_, evacuated_, reopened_, gone_, back_}) {
            require(one > 0 || contexts_ < contexts_enough / 4, "not everything was tried");
        }
        return {stepper_->boundaries(), stepper_->images(), contexts_};
    }

  private:
    void context() {
        // Most are passed at full speed: they only lead to another state of the stash.
        stepped_ = dice_.below(4) == 0;
        contexts_ += stepped_ ? 1 : 0;
        push_some();
        promise_.leaving.clear();
        promise_.next_step = -1;
        if (++turns_ % 60 == 0) {
            order(Act::reopen);
            reopened_++;
            leased_.clear();
        } else if (leased_.empty()) {
            order(Act::batch);
            leased_ = got(orders());
            batches_ += leased_.empty() ? 0 : 1;
            evacuated_ = std::max<std::uint64_t>(evacuated_, orders().result.load());
            is_shared_ = false;
        } else if (!is_shared_ && dice_.below(2) == 0) {
            order(Act::share);
            is_shared_ = true;
            shared_++;
        } else if (dice_.below(5) == 0) {
            order(Act::nack);
            nacks_++;
            leased_.clear();
        } else {
            acknowledge();
        }
    }

    void acknowledge() {
        promise_.leaving.insert(leased_.begin(), leased_.end());
        orders().step = promise_.next_step = promise_.step + 1;
        const Found end = order(Act::ack);
        require(end.gone || !stepped_, "what was acknowledged is still there");
        for (const Id& id : leased_) promise_.held.erase(id);
        promise_.step = promise_.next_step;
        leased_.clear();
    }

    // Groups of two; the second member of some comes much later, and their first is in the way.
    void push_some() {
        for (std::uint64_t i = dice_.below(6); i > 0; i--) {
            const std::uint64_t stream = dice_.below(streams);
            if (late_.size() == late_max || (!late_.empty() && dice_.below(12) == 0)) {
                const Id id = late_[dice_.below(late_.size())];
                if (push(id)) std::erase(late_, id);
                continue;
            }
            const Id id{stream, next_[stream]};
            if (!push(id)) continue;
            next_[stream]++;
            const bool second_is_late = id.second % 2 == 0 && dice_.below(6) == 0;
            if (second_is_late) late_.emplace_back(stream, next_[stream]++);
        }
    }

    bool push(Id id) {
        const Push push = producers_[id.first].push(load_.draft(id, true), Deadline::now());
        require(push == Push::ok || push == Push::timed_out, "push: {}", name(push));
        if (push == Push::ok) promise_.held.insert(id);
        return push == Push::ok;
    }

    Found order(Act act) {
        orders().what = static_cast<std::uint32_t>(act);
        orders().count = 0;
        Course course(survivor_, promise_);
        if (!stepped_) {
            stepper_->run();
            return {};
        }
        stepper_->step([&](std::span<const std::byte> image) {
            course.see(image);
            if (!promise_.leaving.empty()) (course.end().gone ? gone_ : back_)++;
        });
        return course.end();
    }
    Orders& orders() { return stepper_->orders(); }

    Dice dice_;
    ScratchRing ring_;
    Survivor survivor_;
    SmallLoad load_;
    std::vector<Producer> producers_;
    std::unique_ptr<Stepper> stepper_;
    Promise promise_;
    std::vector<Id> late_;
    std::vector<Id> leased_;
    bool stepped_ = false;
    bool is_shared_ = false;  // the leased batch
    std::uint64_t next_[streams]{};
    std::uint64_t turns_ = 0;
    std::uint64_t contexts_ = 0;  // stepped
    std::uint64_t batches_ = 0;
    std::uint64_t nacks_ = 0;
    std::uint64_t shared_ = 0;
    std::uint64_t evacuated_ = 0;
    std::uint64_t reopened_ = 0;
    std::uint64_t gone_ = 0;
    std::uint64_t back_ = 0;
};

}  // namespace

Stepped step_trainer(std::uint64_t seed, std::uint64_t boundaries) {
    return TrainerSteps(seed).run(boundaries);
}

int stepped_trainer_role(const std::vector<std::string>& arguments) {
    const Shared<Orders> orders(arguments.at(0));
    const auto open = [&] {
        auto stash = Stash::open(arguments.at(1),
                                 {.group_size = 2, .batch = BatchTarget::groups(2)}, {.spin = {}});
        require(stash.has_value(), "{}", stash ? "" : stash.error().to_string());
        return std::move(*stash);
    };
    std::unique_ptr<Stash> stash = open();
    Batch batch;
    obey(*orders.operator->(), [&] {
        switch (static_cast<Act>(orders->what.load())) {
            case Act::batch: {
                if (stash->next(batch, Deadline::now()) == NextBatch::batch) {
                    std::vector<Id> ids;
                    for (const Sequence& one : batch.sequences()) {
                        ids.push_back(SmallLoad::id_of(one.view));
                    }
                    put(*orders.operator->(), ids);
                }
                orders->result = static_cast<std::uint32_t>(stash->copies().evacuated_records);
                break;
            }
            case Act::share: {
                const auto ticket = batch.ticket();
                require(ticket.has_value(), "{}", ticket ? "" : ticket.error().to_string());
                break;
            }
            case Act::ack: {
                const auto done = batch.ack(orders->step.load());
                require(done.has_value(), "{}", done ? "" : done.error().to_string());
                break;
            }
            case Act::nack:
                batch.nack();
                break;
            case Act::reopen:
                batch.nack();
                stash.reset();
                stash = open();
                break;
        }
    });
    return 0;
}

}  // namespace rollring::test
