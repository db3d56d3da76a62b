// A producer stepped through its pushes, in lanes that are empty, about to wrap, pinned and full.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "parts.hpp"

namespace rollring::test {
namespace {

enum class Act : std::uint32_t { prepare, push, in_place, later, close, open };

RingOptions options() {
    return {.lanes = 1,
            .lane_bytes = 8 << 10,
            .soft_bytes = 1024,
            .journal_records = 8,
            .spill_bytes = 0,
            .group_rows = 1,
            .requests = 0};
}

class ProducerSteps {
  public:
    explicit ProducerSteps(std::uint64_t seed)
        : dice_{seed}, ring_("step-producer", options()), survivor_(options()) {
        auto consumer = Consumer::open(ring_.name(), {.spin = {}});
        require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
        consumer_.emplace(std::move(*consumer));
        stepper_ = std::make_unique<Stepper>("--step-producer", ring_.name());
    }

    Stepped run(std::uint64_t boundaries) {
        while (stepper_->boundaries() < boundaries) context();
        const auto stat = stat_ring(ring_.name());
        require(stat.has_value() && stat->lanes.size() == 1, "stat");
        const LaneStat& lane = stat->lanes[0];
        fmt::print(
            "producer: contexts={} boundaries={} images={} recoveries={} committed={} empty={} "
            "full={} reopened={} laps_soft={} laps_full={} jumps={}\n",
            contexts_, stepper_->boundaries(), stepper_->images(), survivor_.recoveries(), next_,
            empty_, full_, reopened_, lane.laps_soft, lane.laps_full, lane.jumps);
        for (const std::uint64_t one :
             {empty_, full_, reopened_, lane.laps_soft, lane.laps_full, lane.jumps}) {
            require(one > 0 || contexts_ < contexts_enough,
                    "the lane was not in all of its states");
        }
        return {stepper_->boundaries(), stepper_->images(), contexts_};
    }

  private:
    void context() {
        // Most are passed at full speed: they only lead to another state of the lane.
        const bool stepped = dice_.below(3) == 0;
        contexts_ += stepped ? 1 : 0;
        if (dice_.below(15) == 0) thirst_ = dice_.below(5);
        drain();
        empty_ += promise_.held.empty() ? 1 : 0;
        if (++turns_ % 100 == 0) return reopen();
        const Act act = dice_.below(3) == 0   ? Act::later
                        : dice_.below(2) == 0 ? Act::in_place
                                              : Act::push;
        promise_.arriving.clear();
        for (std::uint64_t i = 0; i < (act == Act::later ? 2 : 1); i++) {
            promise_.arriving.emplace_back(0, next_ + i);
        }
        put(orders(), promise_.arriving);
        order(Act::prepare, false);
        const Found end = order(act, stepped);
        const std::uint64_t committed = orders().result.load();
        require(!stepped || end.arrived == committed, "{} records were committed, {} are there",
                committed, end.arrived);
        full_ += committed < promise_.arriving.size() ? 1 : 0;
        for (std::uint64_t i = 0; i < committed; i++) promise_.held.emplace(0, next_++);
    }

    // Takes some records, and gives some of those that it holds back.
    void drain() {
        const bool all = thirst_ > 0 && dice_.below(6) == 0;
        Record record;
        for (std::uint64_t left = all ? 100 : dice_.below(1 + thirst_); left > 0; left--) {
            if (consumer_->poll(record) != Poll::record) break;
            const Id id = SmallLoad::id_of(record.view);
            promise_.delivered.insert(id);
            held_.emplace_back(id, record.ref);
        }
        // A pinned one now and then, so that the lane fills up and jumps.
        const std::uint64_t keep = all ? 0 : dice_.below(5) * dice_.below(3);
        while (held_.size() > keep) {
            std::swap(held_[dice_.below(held_.size())], held_.back());
            consumer_->release(held_.back().second);
            promise_.held.erase(held_.back().first);
            promise_.delivered.erase(held_.back().first);
            held_.pop_back();
        }
    }

    void reopen() {
        promise_.arriving.clear();
        order(Act::close, true);
        Record record;
        for (const Deadline deadline = patience(); consumer_->producers_active() > 0;) {
            require(!deadline.passed(), "a closed lane is not given back");
            if (consumer_->poll(record) != Poll::record) continue;
            const Id id = SmallLoad::id_of(record.view);
            promise_.delivered.insert(id);
            held_.emplace_back(id, record.ref);
        }
        order(Act::open, true);
        reopened_++;
    }

    Found order(Act act, bool stepped) {
        orders().what = static_cast<std::uint32_t>(act);
        Course course(survivor_, promise_);
        if (stepped) {
            stepper_->step([&](std::span<const std::byte> image) { course.see(image); });
        } else {
            stepper_->run();
        }
        return course.end();
    }
    Orders& orders() { return stepper_->orders(); }

    Dice dice_;
    ScratchRing ring_;
    Survivor survivor_;
    std::optional<Consumer> consumer_;
    std::unique_ptr<Stepper> stepper_;
    Promise promise_;
    std::vector<std::pair<Id, RecordRef>> held_;
    std::uint64_t thirst_ = 3;  // how much the consumer takes
    std::uint64_t next_ = 0;
    std::uint64_t turns_ = 0;
    std::uint64_t contexts_ = 0;  // stepped
    std::uint64_t empty_ = 0;
    std::uint64_t full_ = 0;
    std::uint64_t reopened_ = 0;
};

Producer open_producer(const std::string& ring) {
    auto producer = Producer::open(ring, {.spin = {}, .checksum = Checksum::xxh3});
    require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
    return std::move(*producer);
}

// The same as push, written in place, and shorter than reserved.
bool push_in_place(Producer& producer, Id id) {
    Draft shape("load");
    shape.meta.visit = id.first;
    shape.meta.repetition_id = static_cast<std::uint32_t>(id.second);
    const std::uint32_t count = SmallLoad::tokens(id);
    shape.add(
        {static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {count + 20, 0, 0, 0}, 1, nullptr});
    Reservation room;
    if (producer.reserve(shape, Deadline::now(), room) != Push::ok) return false;
    Load::fill(room.values<std::int32_t>(Std::token_ids).first(count), id.first, id.second);
    room.shrink(count);
    return room.commit() == Push::ok;
}

}  // namespace

Stepped step_producer(std::uint64_t seed, std::uint64_t boundaries) {
    return ProducerSteps(seed).run(boundaries);
}

int stepped_producer_role(const std::vector<std::string>& arguments) {
    const Shared<Orders> orders(arguments.at(0));
    std::optional<Producer> producer = open_producer(arguments.at(1));
    SmallLoad loads[2];
    std::optional<Draft> drafts[2];
    obey(*orders.operator->(), [&] {
        const std::vector<Id> ids = got(*orders.operator->());
        orders->result = 0;
        switch (static_cast<Act>(orders->what.load())) {
            case Act::prepare:
                for (std::size_t i = 0; i < ids.size(); i++) drafts[i] = loads[i].draft(ids[i]);
                break;
            case Act::push:
                orders->result = producer->push(*drafts[0], Deadline::now()) == Push::ok ? 1 : 0;
                break;
            case Act::in_place:
                orders->result = push_in_place(*producer, ids[0]) ? 1 : 0;
                break;
            case Act::later:
                for (std::size_t i = 0; i < ids.size(); i++) {
                    if (producer->push_later(*drafts[i], Deadline::now()) != Push::ok) break;
                    orders->result++;
                }
                producer->flush();
                break;
            case Act::close:
                producer->close();
                break;
            case Act::open:
                producer = open_producer(arguments.at(1));
                break;
        }
    });
    return 0;
}

}  // namespace rollring::test
