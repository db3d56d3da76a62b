#include <fmt/format.h>

#include <utility>

#include "producer_impl.hpp"
#include "record_bytes.hpp"

namespace rollring {

Reservation::Reservation(Reservation&& other) noexcept
    : producer_(std::exchange(other.producer_, nullptr)),
      serial_(other.serial_),
      payload_(std::exchange(other.payload_, {})) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
    std::swap(producer_, other.producer_);
    std::swap(serial_, other.serial_);
    std::swap(payload_, other.payload_);
    return *this;
}

Reservation::~Reservation() {
    if (producer_ == nullptr || !producer_->impl_->usable()) return;
    // One that was overtaken has nothing to give up: the room is a later call's.
    if (producer_->impl_->serial == serial_) producer_->impl_->writer->abandon();
    add(producer_->impl_->owner().abandoned, std::uint64_t{1});
}

std::span<std::byte> Reservation::bytes(std::uint16_t column, DType dtype) const {
    return column_bytes(payload_, column, dtype);
}

void Reservation::shrink(std::uint32_t n_tokens) {
    payload_ = payload_.first(shrink_record(payload_, n_tokens, producer_->schema()));
}

TrajectoryView Reservation::view() const {
    TrajectoryView view;
    seal_record(payload_);
    static_cast<void>(view.parse(payload_, producer_->schema()));
    return view;
}

void Reservation::commit() {
    Producer* const producer = producer_;
    commit_later();
    producer->flush();
}

void Reservation::commit_later() {
    ROLLRING_ASSERT(producer_ != nullptr, "a reservation is committed once");
    Producer::Impl& impl = *std::exchange(producer_, nullptr)->impl_;
    if (!impl.usable()) return;
    ROLLRING_ASSERT(impl.serial == serial_,
                    "a reservation is committed before the next call on its producer");
    impl.stats.tokens += column_bytes(payload_, 0, dtype_i32).size() / sizeof(std::int32_t);
    impl.commit(payload_, payload_.size());
}

}  // namespace rollring
