#include <fmt/core.h>

#include <utility>

#include "producer_impl.hpp"
#include "record_bytes.hpp"

namespace rollring {

Reservation::Reservation(Reservation&& other) noexcept
    : impl_(std::move(other.impl_)),
      serial_(other.serial_),
      payload_(std::exchange(other.payload_, {})),
      versions_named_(other.versions_named_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
    std::swap(impl_, other.impl_);
    std::swap(serial_, other.serial_);
    std::swap(payload_, other.payload_);
    std::swap(versions_named_, other.versions_named_);
    return *this;
}

Reservation::~Reservation() {
    if (impl_ == nullptr || !impl_->usable()) return;
    // A superseded reservation owns no room: the room belongs to a later call.
    if (impl_->serial == serial_) impl_->writer->abandon();
}

bool Reservation::good() const {
    return impl_ != nullptr && impl_->usable() && impl_->serial == serial_;
}

std::span<std::byte> Reservation::bytes(std::uint16_t column, DType dtype) const {
    if (!good()) return {};
    return column_bytes(payload_, column, dtype);
}

void Reservation::shrink(std::uint32_t n_tokens) {
    if (!good()) return;
    payload_ = payload_.first(shrink_record(payload_, n_tokens, impl_->map.schema()));
}

bool Reservation::set(const RolloutOutcome& outcome) {
    if (!good() || !set_outcome(payload_, outcome)) return false;
    versions_named_ |= outcome.policy_version_min || outcome.policy_version_max;
    return true;
}

TrajectoryView Reservation::view() const {
    TrajectoryView view;
    if (!good()) return view;
    seal_record(payload_);
    static_cast<void>(view.parse(payload_, impl_->map.schema()));
    return view;
}

Push Reservation::commit() {
    return commit(true);
}

Push Reservation::commit_later() {
    return commit(false);
}

Push Reservation::commit(bool now) {
    const Producer::Shared impl = std::move(impl_);
    if (impl == nullptr) return Push::not_reserved;
    if (!impl->usable()) return impl->refuse_closed();
    if (impl->serial != serial_) {
        return impl->refuse(
            Push::not_reserved,
            "a later call on this producer has reused the room of this reservation");
    }
    if (!versions_named_) {
        if (const auto problem = take_versions(payload_); !problem.empty()) {
            impl->writer->abandon();
            return impl->refuse(Push::bad_record, fmt::format("'policy_version': {}", problem));
        }
    }
    impl->stats.tokens += column_bytes(payload_, 0, dtype_i32).size() / sizeof(std::int32_t);
    impl->commit(payload_, payload_.size());
    if (!now) return Push::ok;
    impl->show();
    return impl->check_shown();
}

}  // namespace rollring
