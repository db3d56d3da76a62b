#pragma once
// A trainer and an engine on fake GPUs.

#include <optional>

#include "channel.hpp"
#include "fake_device.hpp"

namespace rollring::test {

// 2 slots, and more parts.
inline const PublisherOptions on_gpu{.device = trainer_gpu, .slot_bytes = 4096};

// Each on a fake GPU of its own.
struct DevicePair {
    explicit DevicePair(const PublisherOptions& options = on_gpu,
                        SubscriberOptions receiving = {}) {
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
        publisher.emplace(publisher_on(ring, trainer, options));
        receiving.rank = 0;
        receiving.device = engine_gpu;
        subscriber.emplace(subscriber_on(ring, engine, receiving));
    }
    TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    std::optional<Publisher> publisher;
    std::optional<Subscriber> subscriber;
};

inline PublisherOptions with_all_in_slots() {
    PublisherOptions options = on_gpu;
    options.slots = 16;
    return options;
}

}  // namespace rollring::test
