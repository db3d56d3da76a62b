// The two ends of the weight channel as users make them: over the back ends of this build.

#include <utility>

#include "backends.hpp"
#include "publisher_impl.hpp"
#include "subscriber_impl.hpp"

namespace rollring {

Result<Publisher> Publisher::create(std::string_view ring, std::span<const WeightTensor> tensors,
                                    const PublisherOptions& options) {
    auto impl = weights::PublisherImpl::create(ring, tensors, options, cuda::gpus());
    if (!impl) return std::unexpected(impl.error());
    return Publisher(std::move(*impl));
}

Result<Subscriber> Subscriber::attach(std::string_view ring, std::span<const WeightTensor> into,
                                      const SubscriberOptions& options, Deadline deadline) {
    auto impl = weights::SubscriberImpl::attach(ring, into, options, cuda::gpus(), deadline);
    if (!impl) return std::unexpected(impl.error());
    return Subscriber(std::move(*impl));
}

Result<std::vector<TensorInfo>> Subscriber::published(std::string_view ring,
                                                      const SubscriberOptions& options,
                                                      Deadline deadline) {
    return weights::SubscriberImpl::published(ring, options, cuda::gpus(), deadline);
}

}  // namespace rollring
