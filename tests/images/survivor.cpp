#include "survivor.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rollring::test {
namespace {

constexpr std::uint64_t newcomer = 1'000'000;  // its stream

std::string text_of(const std::set<Id>& ids) {
    std::string text;
    for (const Id& id : ids) text += fmt::format(" {}/{}", id.first, id.second);
    return text;
}

}  // namespace

Segment attach_whole(const std::string& ring) {
    auto segment = Segment::attach(ring, patience());
    require(segment.has_value(), "{}", segment ? "" : segment.error().to_string());
    const auto reserved = segment->reserve(0, segment->geometry().share_seats_offset());
    require(reserved.has_value(), "{}", reserved ? "" : reserved.error().to_string());
    return std::move(*segment);
}

Mapping map_writable(const Segment& segment) {
    auto mapping = segment.map(0, segment.geometry().segment_bytes(), true);
    require(mapping.has_value(), "{}", mapping ? "" : mapping.error().to_string());
    return std::move(*mapping);
}

Draft SmallLoad::draft(Id id, bool group) {
    values_.resize(tokens(id));
    Load::fill(values_, id.first, id.second);
    instance_ = group ? fmt::format("g{}", id.second / 2) : "load";
    Draft draft(instance_);
    draft.meta.visit = id.first;
    draft.meta.repetition_id = static_cast<std::uint32_t>(id.second);
    draft.set(Std::token_ids, values_);
    return draft;
}

void SmallLoad::verify(const TrajectoryView& view) {
    const Id id = id_of(view);
    const auto ids = view.token_ids();
    bool whole = ids.size() == tokens(id);
    for (std::uint32_t i = 0; whole && i < ids.size(); i++) {
        whole = ids[i] == Load::token(id.first, id.second, i);
    }
    require(whole, "record {}/{} is torn", id.first, id.second);
}

Survivor::Survivor(const RingOptions& options)
    : options_(options),
      ring_("image", options),
      segment_(attach_whole(ring_.name())),
      memory_(map_writable(segment_)) {}

Found Survivor::recover(std::span<const std::byte> image, const Promise& promise, bool in_order) {
    require(image.size() == memory_.bytes(), "an image of another ring");
    std::memcpy(memory_.data(), image.data(), image.size());
    recoveries_++;
    auto consumer = Consumer::open(ring_.name(), {.attach_timeout = {}});
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Found found;
    const std::int64_t step = consumer->last_acked_step();
    const std::vector<Record> records = read_all(*consumer, promise, found);
    require(step == (found.gone && promise.next_step >= 0 ? promise.next_step : promise.step),
            "the last acknowledged step is {} where they are {}", step,
            found.gone ? "gone" : "still here");
    found.records = records.size();
    for (std::size_t i = 0; i < records.size(); i++) {
        consumer->release(records[in_order ? i : records.size() - 1 - i].ref);
    }
    retire_all(*consumer);
    require_no_bits();
    const ConsumerStats stats = consumer->stats();
    require(stats.lost + stats.duplicates + stats.torn + stats.quarantines == 0,
            "lost {} duplicates {} torn {} quarantines {}", stats.lost, stats.duplicates,
            stats.torn, stats.quarantines);
    use_all_lanes(*consumer);
    return found;
}

std::vector<Record> Survivor::read_all(Consumer& consumer, const Promise& promise,
                                       Found& found) const {
    std::vector<Record> records;
    std::set<Id> got;
    std::map<std::uint64_t, std::uint64_t> next;  // number, by stream
    Record record;
    while (consumer.poll(record) == Poll::record) {
        SmallLoad::verify(record.view);
        const Id id = SmallLoad::id_of(record.view);
        require(got.insert(id).second, "record {}/{} came twice", id.first, id.second);
        require(!promise.in_order || id.second >= next[id.first], "record {}/{} came late",
                id.first, id.second);
        next[id.first] = id.second + 1;
        require(record.redelivered || !promise.delivered.contains(id),
                "record {}/{} was delivered and is not marked so", id.first, id.second);
        records.push_back(record);
    }
    std::set<Id> missing;
    std::ranges::set_difference(promise.held, got, std::inserter(missing, missing.end()));
    found.gone = !missing.empty();
    require(missing.empty() || missing == promise.leaving, "missing:{}; leaving:{}",
            text_of(missing), text_of(promise.leaving));
    std::set<Id> extra;
    std::ranges::set_difference(got, promise.held, std::inserter(extra, extra.end()));
    found.arrived = extra.size();
    const auto come = std::min(found.arrived, promise.arriving.size());
    const std::set<Id> due(promise.arriving.begin(),
                           promise.arriving.begin() + static_cast<std::ptrdiff_t>(come));
    require(extra == due, "came:{}; on their way:{}", text_of(extra), text_of(due));
    return records;
}

// All producers are dead in this image: their lanes come free at the first look.
void Survivor::retire_all(Consumer& consumer) {
    auto& bell = memory_.at<Bell>(segment_.geometry().bells_offset());
    Record record;
    for (int look = 0; look < 3; look++) {
        bell.lane_changes++;
        const bool empty = consumer.poll(record) == Poll::empty;
        require(empty, "a record came after the last");
    }
    require(consumer.producers_active() == 0, "{} lanes are not given back",
            consumer.producers_active());
}

// Released-bits of an empty lane would let a successor pass over the next record there.
void Survivor::require_no_bits() const {
    const Geometry& geometry = segment_.geometry();
    for (std::uint32_t lane = 0; lane <= geometry.spill_lane(); lane++) {
        for (std::uint64_t at = 0; at < geometry.capacity(lane) / line_bytes / 8; at += 8) {
            const auto word = memory_.at<std::uint64_t>(geometry.bits_offset(lane) + at);
            require(word == 0, "lane {} is empty and has released-bits", lane);
        }
    }
}

void Survivor::use_all_lanes(Consumer& consumer) {
    std::vector<Producer> producers;
    for (std::uint32_t i = 0; i < options_.lanes; i++) {
        auto producer = Producer::open(ring_.name(), {.attach_timeout = {}, .spin = {}});
        require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
        const Push push = producer->push(load_.draft({newcomer + i, 0}), Deadline::now());
        require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
        producers.push_back(std::move(*producer));
    }
    for (std::uint32_t i = 0; i < options_.lanes; i++) {
        Record record;
        require(consumer.poll(record) == Poll::record, "a lane is dead");
        SmallLoad::verify(record.view);
        require(SmallLoad::id_of(record.view).first >= newcomer, "an old record came back");
        consumer.release(record.ref);
    }
}

}  // namespace rollring::test
