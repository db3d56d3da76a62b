// A consumer stepped through polls, releases in any order, releases of many as one, and recovery.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "parts.hpp"

namespace rollring::test {
namespace {

enum class Act : std::uint32_t { poll, release, release_all, reopen };

constexpr std::uint64_t streams = 2;

RingOptions options() {
    return {.lanes = streams,
            .lane_bytes = 8 << 10,
            .soft_bytes = 1024,
            .journal_records = 8,
            .spill_bytes = 0,
            .group_rows = 1,
            .requests = 0};
}

class ConsumerSteps {
  public:
    explicit ConsumerSteps(std::uint64_t seed)
        : dice_{seed}, ring_("step-consumer", options()), survivor_(options()) {
        for (std::uint64_t i = 0; i < streams; i++) {
            auto producer = Producer::open(ring_.name(), {.spin = {}, .checksum = Checksum::xxh3});
            require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
            producers_.push_back(std::move(*producer));
        }
        stepper_ = std::make_unique<Stepper>("--step-consumer", ring_.name());
    }

    Stepped run(std::uint64_t boundaries) {
        while (stepper_->boundaries() < boundaries) context();
        fmt::print(
            "consumer: contexts={} boundaries={} images={} recoveries={} polled={} released={} "
            "out_of_order={} acks={} full={} reopened={} cut_gone={} cut_back={}\n",
            contexts_, stepper_->boundaries(), stepper_->images(), survivor_.recoveries(), polled_,
            released_, out_of_order_, step_ + 1, full_, reopened_, gone_, back_);
        for (const std::uint64_t one : {polled_, released_, out_of_order_, full_, reopened_, gone_,
                                        back_, static_cast<std::uint64_t>(step_ + 1)}) {
            require(one > 0 || contexts_ < contexts_enough, "not everything was tried");
        }
        return {stepper_->boundaries(), stepper_->images(), contexts_};
    }

  private:
    void context() {
        // Most are passed at full speed: they only lead to another state of the lanes.
        stepped_ = dice_.below(3) == 0;
        contexts_ += stepped_ ? 1 : 0;
        push_some();
        promise_.leaving.clear();
        promise_.next_step = -1;
        if (++turns_ % 80 == 0) return reopen();
        const std::uint64_t roll = dice_.below(80);
        if (held_.empty() || (roll < 50 && held_.size() < 12)) return poll();
        release(roll % 3 == 0 ? 1 + dice_.below(std::min<std::uint64_t>(held_.size(), 6)) : 0);
    }

    void push_some() {
        for (std::uint64_t i = dice_.below(5); i > 0; i--) {
            const std::uint64_t stream = dice_.below(streams);
            const Id id{stream, sent_[stream]};
            const Push push = producers_[stream].push(load_.draft(id), Deadline::now());
            require(push == Push::ok || push == Push::timed_out, "push: {}", name(push));
            full_ += push == Push::ok ? 0 : 1;
            if (push != Push::ok) continue;
            sent_[stream]++;
            promise_.held.insert(id);
        }
    }

    void poll() {
        order(Act::poll);
        for (const Id& id : got(orders())) {
            promise_.delivered.insert(id);
            held_.push_back(id);
            polled_++;
        }
    }

    // `together`: so many as one event; 0: one by itself.
    void release(std::uint64_t together) {
        for (std::uint64_t i = 0; i < std::max<std::uint64_t>(together, 1); i++) {
            const std::size_t which = dice_.below(3) == 0 ? 0 : dice_.below(held_.size());
            const Id id = held_[which];
            out_of_order_ += which != 0 ? 1 : 0;
            promise_.leaving.insert(id);
            held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
        }
        put(orders(), promise_.leaving);
        if (together > 0) orders().step = promise_.next_step = promise_.step + 1;
        const Found end = order(together > 0 ? Act::release_all : Act::release);
        require(end.gone || !stepped_, "what was released is still there");
        for (const Id& id : promise_.leaving) {
            promise_.held.erase(id);
            promise_.delivered.erase(id);
        }
        released_ += promise_.leaving.size();
        if (together > 0) step_ = promise_.step = promise_.next_step;
    }

    void reopen() {
        order(Act::reopen);
        held_.clear();  // all are delivered again
        reopened_++;
    }

    Found order(Act act) {
        orders().what = static_cast<std::uint32_t>(act);
        if (act == Act::poll || act == Act::reopen) orders().count = 0;
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
    std::vector<Id> held_;  // by the stepped consumer, oldest first
    bool stepped_ = false;
    std::uint64_t sent_[streams]{};
    std::uint64_t turns_ = 0;
    std::uint64_t contexts_ = 0;  // stepped
    std::uint64_t polled_ = 0;
    std::uint64_t released_ = 0;
    std::uint64_t out_of_order_ = 0;
    std::uint64_t full_ = 0;
    std::uint64_t reopened_ = 0;
    std::uint64_t gone_ = 0;  // images in which the leaving records had gone
    std::uint64_t back_ = 0;  // and in which it had not
    std::int64_t step_ = -1;
};

}  // namespace

Stepped step_consumer(std::uint64_t seed, std::uint64_t boundaries) {
    return ConsumerSteps(seed).run(boundaries);
}

int stepped_consumer_role(const std::vector<std::string>& arguments) {
    const Shared<Orders> orders(arguments.at(0));
    const auto open = [&] {
        auto consumer = Consumer::open(arguments.at(1), {.spin = {}});
        require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
        return std::move(*consumer);
    };
    std::optional<Consumer> consumer = open();
    std::map<Id, RecordRef> refs;
    obey(*orders.operator->(), [&] {
        const std::vector<Id> ids = got(*orders.operator->());
        switch (static_cast<Act>(orders->what.load())) {
            case Act::poll: {
                Record record;
                if (consumer->poll(record) != Poll::record) break;
                const Id id = SmallLoad::id_of(record.view);
                refs[id] = record.ref;
                put(*orders.operator->(), std::vector<Id>{id});
                break;
            }
            case Act::release:
                consumer->release(refs.at(ids.at(0)));
                break;
            case Act::release_all: {
                std::vector<RecordRef> all;
                all.reserve(ids.size());
                for (const Id& id : ids) all.push_back(refs.at(id));
                const auto done = consumer->release_all(all, orders->step.load());
                require(done.has_value(), "{}", done ? "" : done.error().to_string());
                break;
            }
            case Act::reopen:
                consumer.reset();
                refs.clear();
                consumer = open();
                break;
        }
    });
    return 0;
}

}  // namespace rollring::test
