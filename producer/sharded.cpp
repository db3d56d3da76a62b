#include "rollring/producer.hpp"

namespace rollring {

Result<ShardedProducer> ShardedProducer::open(const std::vector<std::string>& rings,
                                              const ProducerOptions& options) {
    if (rings.empty()) {
        return std::unexpected(Error{Errc::invalid_argument, 0, "a sharded producer needs a ring"});
    }
    ShardedProducer sharded;
    for (const std::string& ring : rings) {
        auto producer = Producer::open(ring, options);
        if (!producer) return std::unexpected(producer.error());
        sharded.producers_.push_back(std::move(*producer));
    }
    return sharded;
}

std::size_t ShardedProducer::route(GroupKey key, std::size_t ring_count) {
    return static_cast<std::size_t>(key.low % ring_count);
}

Push ShardedProducer::push(const Draft& draft, Deadline deadline) {
    const GroupKey key = GroupKey::of(draft.instance_id(), draft.meta.visit);
    return producers_[route(key, producers_.size())].push(draft, deadline);
}

void ShardedProducer::flush() {
    for (Producer& producer : producers_) producer.flush();
}

void ShardedProducer::close() {
    for (Producer& producer : producers_) producer.close();
}

}  // namespace rollring
