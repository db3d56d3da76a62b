// The public interface of a subscriber, over SubscriberImpl or ShardedEngine.

#include <utility>

#include "channel_names.hpp"
#include "gpus.hpp"
#include "greeting.hpp"
#include "ring_link.hpp"
#include "rollring/relay.hpp"
#include "rollring/weight_layout.hpp"
#include "sharded_engine.hpp"
#include "subscriber_impl.hpp"

namespace rollring {
namespace {

// A part that is being compared is not its caller's to return, either.
Result<void> check_views(const weights::EngineEnd& impl) {
    if (!impl.stages_by_difference()) return {};
    return refused(Errc::invalid_argument,
                   "an engine with Staging::delta loads with load(), not from views of parts");
}

}  // namespace

Result<Subscriber> Subscriber::attach(std::string_view ring, std::span<const WeightTensor> into,
                                      const SubscriberOptions& options, Deadline deadline) {
    const device::Gpus& gpus = device::gpus();
    if (options.rollback_when_asked && options.staging != Staging::delta) {
        return refused(Errc::invalid_argument,
                       "rollback_when_asked is for engines with Staging::delta: only they can go "
                       "back");
    }
    if (!options.layout.empty()) {
        auto sharded = weights::ShardedEngine::attach(ring, into, options, gpus, deadline);
        if (!sharded) return std::unexpected(sharded.error());
        return Subscriber(std::move(*sharded));
    }
    auto impl = weights::SubscriberImpl::attach(ring, into, options, gpus, deadline);
    if (!impl) return std::unexpected(impl.error());
    return Subscriber(std::move(*impl));
}

Result<std::vector<TensorInfo>> Subscriber::published(std::string_view ring,
                                                      const SubscriberOptions& options,
                                                      Deadline deadline) {
    return weights::SubscriberImpl::published(ring, options, device::gpus(), deadline);
}

Result<WeightLayout> Subscriber::published_layout(std::string_view ring,
                                                  const SubscriberOptions& options,
                                                  Deadline deadline) {
    return weights::ShardedEngine::published_layout(ring, options, deadline);
}

Subscriber::Subscriber(std::unique_ptr<weights::EngineEnd> impl) : impl_(std::move(impl)) {}
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
Subscriber::~Subscriber() {
    // Memory that the device may still read is leaked, rather than unmapped.
    if (impl_ && !impl_->shut_down()) [[maybe_unused]]
        auto* leaked = impl_.release();
}

Result<Update> Subscriber::next(Deadline deadline) {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    if (auto found = impl_->next(deadline); !found) return std::unexpected(found.error());
    return Update(impl_.get());
}

Result<void> Subscriber::check_memory(std::span<const WeightTensor> tensors) {
    if (auto ours = impl_->check_process(); !ours) return ours;
    return impl_->check_memory(tensors);
}

void Subscriber::refuse(std::string_view why) noexcept {
    impl_->refuse(why);
}

Result<void> Subscriber::rollback() {
    if (auto ours = impl_->check_process(); !ours) return ours;
    return impl_->rollback();
}

DeltaReport Subscriber::delta() const {
    return impl_->delta();
}

void Subscriber::interrupt() {
    impl_->interrupt();
}

std::int64_t Subscriber::live_version() const {
    return impl_->holding().live_version();
}
SubscriberState Subscriber::state() const {
    return impl_->holding().state();
}
std::string_view Subscriber::problem() const {
    return impl_->holding().problem();
}
std::span<const TensorInfo> Subscriber::tensors() const {
    return impl_->tensors();
}
std::int64_t Subscriber::publisher_id() const {
    return impl_->publisher_id();
}
Result<std::uint64_t> RelaySubscriber::part_bytes(const Subscriber& subscriber) {
    if (subscriber.memory() != PayloadMemory::direct) {
        return subscriber.impl_->manifest().packing.sums_offset;
    }
    return refused(Errc::unsupported,
                   "the trainer's tensors are read where they lie (PayloadMemory::direct), so its "
                   "versions cannot be handed on: publish them through slots");
}
PayloadMemory Subscriber::memory() const {
    return impl_->manifest().memory;
}
std::uint64_t Subscriber::staging_bytes() const {
    return impl_->staging_bytes();
}
std::string_view Subscriber::why_not_staged() const {
    return impl_->why_not_staged();
}

std::uint64_t Subscriber::imports() const {
    return impl_->imports();
}

std::string_view name(SubscriberState state) {
    switch (state) {
        case SubscriberState::ready:
            return "ready";
        case SubscriberState::reading:
            return "reading";
        case SubscriberState::staged:
            return "staged";
        case SubscriberState::poisoned:
            return "poisoned";
        case SubscriberState::closed:
            return "closed";
        case SubscriberState::expelled:
            return "expelled";
        case SubscriberState::refused:
            return "refused";
    }
    return "unknown";
}

std::string_view name(Staging staging) {
    return staging == Staging::delta ? "delta" : "copy";
}

std::string_view name(DeltaFallback fallback) {
    switch (fallback) {
        case DeltaFallback::refuse:
            return "refuse";
        case DeltaFallback::beside:
            return "beside";
        case DeltaFallback::in_place:
            return "in_place";
    }
    return "unknown";
}

std::string_view name(DeltaWay way) {
    switch (way) {
        case DeltaWay::list:
            return "list";
        case DeltaWay::beside:
            return "beside";
        case DeltaWay::in_place:
            return "in_place";
    }
    return "unknown";
}

Update::Update(weights::EngineEnd* impl)
    : impl_(impl), publication_(impl->update().publication), version_(impl->update().version) {}
Update::Update(Update&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)),
      publication_(other.publication_),
      version_(other.version_) {}
Update& Update::operator=(Update&& other) noexcept {
    std::swap(impl_, other.impl_);
    std::swap(publication_, other.publication_);
    std::swap(version_, other.version_);
    return *this;
}
Update::~Update() {
    reject("the engine dropped it");
}

bool Update::mine() const {
    return impl_ != nullptr && impl_->update().open && impl_->update().publication == publication_;
}

Result<void> Update::check_open() const {
    if (!mine()) return refused(Errc::invalid_argument, "this update is over");
    return impl_->check_process();
}

std::uint32_t Update::parts() const {
    return mine() ? static_cast<std::uint32_t>(impl_->manifest().packing.parts.size()) : 0;
}
Result<std::span<const TensorPiece>> Update::part(std::uint32_t part, Deadline deadline) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    if (auto views = check_views(*impl_); !views) return std::unexpected(views.error());
    return impl_->part(part, deadline);
}
Result<void> Update::done_reading(std::uint32_t part, Stream stream) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    if (auto views = check_views(*impl_); !views) return views;
    return impl_->done_reading(part, stream);
}
Result<void> Update::load(Deadline deadline, Stream stream) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    return impl_->load(deadline, stream);
}
Result<void> Update::stage(Deadline deadline) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    return impl_->stage(deadline);
}
Result<void> Update::wait_committed(Deadline deadline) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    return impl_->wait_committed(deadline);
}
Result<void> Update::adopt(Deadline deadline) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    auto adopted = impl_->adopt(deadline);
    if (adopted) impl_ = nullptr;  // over: the subscriber may end before this object
    return adopted;
}
void Update::reject(std::string_view why, std::string_view tensor) noexcept {
    if (mine()) impl_->reject(why, tensor);
    impl_ = nullptr;
}

Result<std::uint32_t> refuse_weights(std::string_view ring, std::string_view subscriber,
                                     std::string_view why) {
    const auto link = weights::RingLink::attach(ring, Deadline::now(), false);
    if (!link) return std::unexpected(link.error());
    std::uint32_t told = 0;
    for (const std::uint32_t rank : channel::ranks_of(ring)) {
        const auto socket = weights::connect_to(ring, rank);
        if (socket && weights::tell_refusal(socket->get(), *link, subscriber, why)) told++;
    }
    return told;
}

}  // namespace rollring
