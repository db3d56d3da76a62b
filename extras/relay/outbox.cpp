#include "outbox.hpp"

#include "rollring/relay.hpp"

namespace rollring::relay {

// Adjacent records share a span, frame headers included.
void Parcel::add(const Record& record) {
    constexpr std::ptrdiff_t frame_bytes = 64;
    const std::byte* const at = record.bytes.data();
    const bool follows = !spans.empty() && entries.back().lane == record.ref.lane &&
                         at == spans.back().data() + spans.back().size() + frame_bytes;
    if (follows) {
        spans.back() = {spans.back().data(), at + record.bytes.size()};
    } else {
        spans.push_back(record.bytes);
    }
    entries.push_back({.position = record.ref.position,
                       .sequence = record.sequence,
                       .offset = static_cast<std::uint64_t>(at - spans.back().data()),
                       .bytes = record.bytes.size(),
                       .lane = record.ref.lane,
                       .epoch = record.producer_epoch,
                       .span = static_cast<std::uint32_t>(spans.size() - 1),
                       .reserved = 0});
    bytes += record.bytes.size();
}

Result<Outbox> Outbox::open(std::string_view ring, std::optional<std::uint64_t> places) {
    auto consumer = Consumer::open(ring, {.attach_timeout = std::chrono::nanoseconds(0)});
    if (!consumer) return std::unexpected(consumer.error());
    if (places) RelayConsumer::bound_groups(*consumer, *places);
    return Outbox(std::move(*consumer));
}

Poll Outbox::collect(Parcel& parcel, std::uint64_t bytes, std::int64_t linger_ns,
                     Deadline deadline) {
    Record record;
    Poll answer = consumer_.wait(record, deadline);
    if (answer == Poll::timed_out) return Poll::timed_out;
    const Deadline until = Deadline::after_ns(linger_ns);
    while (answer == Poll::record) {
        parcel.add(record);
        held_.push_back(record.ref);
        if (parcel.bytes >= bytes) break;
        answer = consumer_.poll(record);
        if (answer == Poll::empty && !until.passed()) answer = consumer_.wait(record, until);
    }
    return answer == Poll::closed && parcel.entries.empty() ? Poll::closed : Poll::record;
}

void Outbox::release(std::uint64_t records) {
    for (; records != 0 && !held_.empty(); records--) {
        static_cast<void>(consumer_.release(held_.front()));
        held_.pop_front();
    }
}

void Outbox::bound_groups(std::uint64_t places) {
    RelayConsumer::bound_groups(consumer_, places);
}

std::uint64_t Outbox::announced_groups() const {
    return RelayConsumer::announced_groups(consumer_);
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Outbox::gone() {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> producers;
    Event event;
    while (consumer_.next_event(event)) {
        if (event.kind == Event::Kind::producer_closed ||
            event.kind == Event::Kind::producer_died) {
            producers.emplace_back(event.lane, event.epoch);
        }
    }
    return producers;
}

std::uint32_t Outbox::producers() const {
    return consumer_.producers_active();
}

std::string Outbox::problem() const {
    return consumer_.problem();
}

void Outbox::interrupt() {
    consumer_.interrupt();
}

}  // namespace rollring::relay
