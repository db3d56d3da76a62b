#include "inbox.hpp"
#include "rollring/relay.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace rollring::relay {
namespace {

// Waits for place or room are short, so that records that need neither can pass.
constexpr std::int64_t room_slice_ns = 20'000'000;
constexpr std::int64_t place_slice_ns = 2'000'000;
constexpr std::size_t alignment = 64;  // of a record

bool is_aligned(std::span<const std::byte> span) {
    return reinterpret_cast<std::uintptr_t>(span.data()) % alignment == 0;
}

// The columns stay in the view's memory.
void show(const TrajectoryView& view, Draft& draft) {
    draft.clear();
    draft.meta = view.meta();
    for (const ColumnView& column : view.columns()) {
        draft.add({.column = column.column,
                   .dtype = column.dtype,
                   .shape = column.shape,
                   .dims = column.dims,
                   .data = column.data.data()});
    }
}

}  // namespace

Result<std::unique_ptr<Inbox>> Inbox::open(std::string_view ring, const ProducerOptions& options,
                                           Carried carried) {
    auto producer = Producer::open(ring, options);
    if (!producer) return std::unexpected(producer.error());
    if (RelayProducer::ring_id(*producer) != carried.destination()) {
        return refused(Errc::closed, "ring " + std::string(ring) + " was removed and made again");
    }
    return std::unique_ptr<Inbox>(new Inbox(std::move(*producer), std::move(carried)));
}

Inbox::Inbox(Producer producer, Carried carried)
    : producer_(std::move(producer)), carried_(std::move(carried)) {
    const RecordRef last = producer_.last();
    for (const Places::Place& place : carried_.recover(last.lane, last.position)) {
        RelayProducer::inherit_place(producer_, place.key, place.plan);
        if (place.worker == Places::nobody) spare_.inherit(place.key);
    }
    lanes_.resize(carried_.lanes());
}

std::string_view Inbox::give(std::uint64_t number, std::vector<ParcelEntry> entries,
                             const std::vector<std::span<const std::byte>>& spans,
                             std::uint64_t spare) {
    for (const ParcelEntry& entry : entries) {
        if (entry.span >= spans.size() || entry.lane >= lanes_.size() ||
            entry.offset % alignment != 0 || entry.bytes > spans[entry.span].size() ||
            entry.offset > spans[entry.span].size() - entry.bytes) {
            return "its index names memory that it does not have";
        }
    }
    auto parcel = std::make_shared<Parcel>(number, std::move(entries), spans, spare);
    parcel->left = parcel->entries.size();
    for (auto& span : parcel->spans) {
        if (is_aligned(span) || span.empty()) continue;
        auto& copy = parcel->aligned.emplace_back((span.size() + sizeof(Line) - 1) / sizeof(Line));
        std::memcpy(copy.data(), span.data(), span.size());
        span = {copy.data()->bytes, span.size()};
    }
    const std::scoped_lock lock(mutex_);
    parcels_.push_back(std::move(parcel));
    given_.notify_one();
    return {};
}

void Inbox::ask(Asked asked) {
    const std::scoped_lock lock(mutex_);
    new_asked_.push_back(std::move(asked));
    given_.notify_one();
}

void Inbox::forget(std::uint64_t asked) {
    const std::scoped_lock lock(mutex_);
    forgotten_.push_back(asked);
}

void Inbox::cancel(std::uint64_t worker, const GroupKey& key) {
    const std::scoped_lock lock(mutex_);
    cancelled_.push_back({worker, key});
    given_.notify_one();
}

void Inbox::worker_gone(std::uint64_t worker) {
    const std::scoped_lock lock(mutex_);
    cancelled_.push_back({worker, {}});
    given_.notify_one();
}

void Inbox::drop_parcels() {
    const std::scoped_lock lock(mutex_);
    parcels_.clear();
    for (auto& lane : lanes_) lane.clear();
    stats_.waiting = 0;
}

void Inbox::interrupt() {
    const std::scoped_lock lock(mutex_);
    interrupted_ = true;
    given_.notify_one();
}

void Inbox::take_in(News& news) {
    const std::scoped_lock lock(mutex_);
    for (auto& parcel : parcels_) {
        spare_.want(parcel->spare);
        if (parcel->entries.empty()) news.sent.push_back(parcel->number);
        for (const ParcelEntry& entry : parcel->entries) {
            lanes_[entry.lane].push_back({parcel, &entry});
        }
        stats_.waiting += parcel->entries.size();
    }
    parcels_.clear();
    for (Asked& one : new_asked_) asked_.push_back(std::move(one));
    new_asked_.clear();
    for (const std::uint64_t number : forgotten_) {
        std::erase_if(asked_, [&](const Asked& one) { return one.number == number; });
    }
    forgotten_.clear();
    for (const Cancelled& cancelled : cancelled_) give_back(cancelled);
    cancelled_.clear();
    shown_ = stats_;
}

void Inbox::give_back(const Cancelled& cancelled) {
    if (!cancelled.key) {
        std::erase_if(asked_, [&](const Asked& one) { return one.worker == cancelled.worker; });
    }
    Places& places = carried_.places();
    for (const GroupKey& key : places.of(cancelled.worker)) {
        if (cancelled.key && key != *cancelled.key) continue;
        static_cast<void>(producer_.cancel_group(key));
        places.remove(key);
    }
}

// Makes every logged record visible.
void Inbox::settle() {
    producer_.flush();
    carried_.settle();
}

void Inbox::answer_asked(News& news) {
    Places& places = carried_.places();
    std::erase_if(asked_, [&](const Asked& one) {
        if (places.is_full()) settle();
        if (places.is_full()) return false;
        const Push push =
            producer_.open_group(one.instance_id, one.visit, Deadline::now(), one.plan);
        if (push == Push::timed_out) return false;
        const GroupKey key = GroupKey::of(one.instance_id, one.visit);
        if (RelayProducer::holds_place(producer_, key) && !places.has(key)) {
            places.add({key, one.plan, one.worker});
        }
        news.answers.push_back({one.number, push, push == Push::ok ? "" : producer_.problem()});
        return true;
    });
}

bool Inbox::look(const Item& item) {
    const ParcelEntry& entry = *item.entry;
    const auto bytes = item.parcel->spans[entry.span].subspan(entry.offset, entry.bytes);
    return view_.parse(bytes, producer_.schema()).empty();
}

// A record that can never be sent is skipped, because its producer has continued.
Inbox::Went Inbox::send(const Item& item, Deadline deadline) {
    const ParcelEntry& entry = *item.entry;
    if (carried_.has(entry.lane, entry.position)) {
        stats_.repeated++;
        return Went::on;
    }
    if (!look(item)) {
        stats_.refused++;
        return Went::on;
    }
    show(view_, draft_);
    const Meta& meta = draft_.meta;
    spare_.pass(view_.group_key(), meta.group_size, std::uint64_t{entry.epoch} << 32 | entry.lane);
    if (!producer_.may_send(view_.instance_id(), meta.visit, {meta.group_size, 0})) {
        return Went::no_place;
    }
    if (carried_.is_full()) settle();
    switch (producer_.push_later(draft_, deadline)) {
        case Push::ok:
            break;
        case Push::timed_out:
            return Went::no_room;
        case Push::closed:
        case Push::not_reserved:
            return Went::closed;
        case Push::too_large:
        case Push::bad_record:
            stats_.refused++;
            return Went::on;
    }
    // Log it before any call that could make it visible.
    const std::uint64_t to = producer_.last().position;
    carried_.note(entry.lane, entry.position, to);
    carried_.places().note_sent(view_.group_key(), to);
    stats_.records++;
    stats_.tokens += view_.n_tokens();
    stats_.bytes += entry.bytes;
    return Went::on;
}

Inbox::Went Inbox::send_next(std::size_t lane, Deadline deadline, News& news) {
    const Item& item = lanes_[lane].front();
    const Went went = send(item, deadline);
    if (went != Went::on) return went;
    stats_.waiting--;
    if (--item.parcel->left == 0) news.sent.push_back(item.parcel->number);
    lanes_[lane].pop_front();
    return went;
}

// Sends as much of each lane as possible; `first`: a lane that is blocked.
Inbox::Went Inbox::send_all(News& news, std::size_t& first) {
    Went found = Went::on;
    for (std::size_t i = 0; i < lanes_.size(); i++) {
        const std::size_t number = (turn_ + i) % lanes_.size();
        while (!lanes_[number].empty()) {
            const Went went = send_next(number, Deadline::now(), news);
            if (went == Went::on) continue;
            if (found == Went::on || went != Went::no_place) {
                found = went;
                first = number;
            }
            if (went != Went::no_place) return found;
            break;
        }
    }
    turn_ = (turn_ + 1) % lanes_.size();
    return found;
}

void Inbox::wait(Went why, std::size_t first, Deadline deadline, News& news) {
    const auto within = [&](std::int64_t slice_ns) {
        return Deadline{std::min(deadline.at_ns, Deadline::after_ns(slice_ns).at_ns)};
    };
    if (why == Went::no_room) {
        static_cast<void>(send_next(first, within(room_slice_ns), news));
    } else if (why == Went::no_place) {
        if (!look(lanes_[first].front())) return;
        static_cast<void>(producer_.open_group(view_.instance_id(), view_.meta().visit,
                                               within(place_slice_ns),
                                               {view_.meta().group_size, 0}));
    } else if (!asked_.empty() && !carried_.places().is_full()) {
        const Asked& one = asked_.front();
        static_cast<void>(
            producer_.open_group(one.instance_id, one.visit, within(place_slice_ns), one.plan));
    } else {
        std::unique_lock lock(mutex_);
        const auto woken = [&] {
            return interrupted_ || !parcels_.empty() || !new_asked_.empty() || !cancelled_.empty();
        };
        const std::int64_t rest = deadline.at_ns - monotonic_ns();
        given_.wait_for(lock, std::chrono::nanoseconds(std::max<std::int64_t>(rest, 0)), woken);
    }
}

Inbox::News Inbox::step(Deadline deadline) {
    News news;
    while (true) {
        take_in(news);
        answer_asked(news);
        std::size_t first = 0;
        const Went went = send_all(news, first);
        spare_.settle();
        producer_.flush();
        if (went == Went::closed) {
            news.problem = Push::closed;
            news.why = producer_.problem();
            return news;
        }
        if (!news.sent.empty() || !news.answers.empty() || deadline.passed()) break;
        wait(went, first, deadline, news);
        const std::scoped_lock lock(mutex_);
        if (std::exchange(interrupted_, false)) break;
    }
    producer_.flush();  // records sent during the wait are reported as sent
    news.spare = spare_.count();
    news.is_short = !asked_.empty() || spare_.is_short();
    const std::scoped_lock lock(mutex_);
    shown_ = stats_;
    return news;
}

void Inbox::close() {
    settle();
    spare_.want(0);
    spare_.settle();
    for (const std::uint64_t worker : workers()) give_back({worker, {}});  // for other producers
    producer_.close();
}

InboxStats Inbox::stats() const {
    const std::scoped_lock lock(mutex_);
    return shown_;
}

}  // namespace rollring::relay
