// The public interface of a publisher, over PublisherImpl.

#include <fmt/core.h>

#include <utility>

#include "gpus.hpp"
#include "publisher_impl.hpp"
#include "rollring/relay.hpp"

namespace rollring {

Result<Publisher> Publisher::create(std::string_view ring, std::span<const WeightTensor> tensors,
                                    const PublisherOptions& options) {
    auto impl = weights::PublisherImpl::create(ring, tensors, options, device::gpus());
    if (!impl) return std::unexpected(impl.error());
    return Publisher(std::move(*impl));
}

Publisher::Publisher(std::unique_ptr<weights::PublisherImpl> impl) : impl_(std::move(impl)) {}
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
Publisher::~Publisher() {
    // Memory that the device or another process may still touch is leaked, rather than freed.
    if (impl_ && !impl_->shut_down()) [[maybe_unused]]
        auto* leaked = impl_.release();
}

Result<void> Publisher::wait_subscribers(std::uint32_t count, Deadline deadline) {
    return impl_->wait_joined(count, deadline);
}

Result<void> Publisher::wait_live(std::uint32_t count, Deadline deadline) {
    return impl_->wait_live(count, deadline);
}
void Publisher::interrupt() {
    if (impl_->check_process()) impl_->interrupt();
}

Result<Transaction> Publisher::begin(std::int64_t version) {
    if (auto begun = impl_->begin(version); !begun) return std::unexpected(begun.error());
    return Transaction(impl_.get());
}

std::uint32_t Publisher::behind() const {
    return impl_->behind();
}

Result<Transaction> Publisher::begin_again() {
    if (auto begun = impl_->begin_again(); !begun) return std::unexpected(begun.error());
    return Transaction(impl_.get());
}

Result<void> Publisher::resume(std::int64_t version) {
    return impl_->resume(version);
}

Result<CommitReport> Publisher::resend(Deadline deadline, Stream stream) {
    auto again = begin_again();
    if (!again) return std::unexpected(again.error());
    auto done = again->put_all(deadline, stream);
    if (done) done = again->publish();
    if (!done) {
        again->abort("sending it again failed: " + done.error().message);
        return std::unexpected(done.error());
    }
    auto report = again->commit(deadline);
    if (!report) again->abort("sending it again failed: " + report.error().message);
    return report;
}

Result<void> Publisher::expel(std::string_view subscriber) {
    return impl_->expel(std::string(subscriber));
}

std::int64_t Publisher::committed_version() const {
    return impl_->publication().committed();
}
std::uint64_t Publisher::payload_bytes() const {
    return impl_->packing().payload_bytes;
}
std::uint32_t Publisher::parts() const {
    return static_cast<std::uint32_t>(impl_->packing().parts.size());
}
std::uint32_t Publisher::slots() const {
    return impl_->slots();
}
PayloadMemory Publisher::memory() const {
    return impl_->memory();
}
std::string_view Publisher::why_not_direct() const {
    return impl_->why_not_direct();
}
std::uint64_t Publisher::handles_passed() const {
    return impl_->publication().handles_passed();
}

Transaction::Transaction(weights::PublisherImpl* impl)
    : impl_(impl),
      publication_(impl->publication().number()),
      version_(impl->publication().version()) {}
Transaction::Transaction(Transaction&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)),
      publication_(other.publication_),
      version_(other.version_) {}
Transaction& Transaction::operator=(Transaction&& other) noexcept {
    std::swap(impl_, other.impl_);
    std::swap(publication_, other.publication_);
    std::swap(version_, other.version_);
    return *this;
}
Transaction::~Transaction() {
    abort();
}

bool Transaction::mine() const {
    return impl_ != nullptr && impl_->is_at(publication_);
}

// The only check: PublisherImpl's steps of a version rely on it.
Result<void> Transaction::check_open() const {
    if (mine()) return impl_->check_process();
    return refused(
        Errc::invalid_argument,
        fmt::format("version {} is over, committed or aborted: begin another one", version_));
}

Result<void> Transaction::put_all(Deadline deadline, Stream stream) {
    if (auto open = check_open(); !open) return open;
    return impl_->put_all(deadline, stream);
}

Result<void> Transaction::put(std::string_view tensor, const void* source, Deadline deadline,
                              Stream stream) {
    if (auto open = check_open(); !open) return open;
    return impl_->put(tensor, source, deadline, stream);
}

Result<std::span<std::byte>> RelayTransaction::lend_part(Transaction& transaction,
                                                         Deadline deadline) {
    if (auto open = transaction.check_open(); !open) return std::unexpected(open.error());
    return transaction.impl_->filler().lend(deadline);
}

Result<void> RelayTransaction::part_written(Transaction& transaction) {
    if (auto open = transaction.check_open(); !open) return open;
    return transaction.impl_->filler().written();
}

Result<void> Transaction::publish() {
    if (auto open = check_open(); !open) return open;
    return impl_->publish_all();
}

Result<CommitReport> Transaction::commit(Deadline deadline) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    auto report = impl_->commit(deadline);
    if (report) impl_ = nullptr;  // over: the publisher may end before this object
    return report;
}

Result<CommitReport> Transaction::decide(Deadline deadline) {
    if (auto open = check_open(); !open) return std::unexpected(open.error());
    return impl_->decide(deadline);
}

Result<void> Transaction::wait_staged(Deadline deadline) {
    if (auto open = check_open(); !open) return open;
    return impl_->wait_all_staged(deadline);
}

void Transaction::abort(std::string_view why) noexcept {
    if (mine()) impl_->abort(why);
    impl_ = nullptr;
}

}  // namespace rollring
