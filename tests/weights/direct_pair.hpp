#pragma once
// A trainer whose tensors engines read where they lie, and such engines, on fake GPUs.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "channel.hpp"
#include "fake_allocations.hpp"
#include "fake_device.hpp"

namespace rollring::test {

inline const PublisherOptions direct_on_gpu{.device = trainer_gpu, .memory = PayloadMemory::direct};

// Tensors that lie together in allocations, at odd places, with bytes of others between.
class PlacedTensors {
  public:
    // `gap`: bytes between two tensors; multiples of an element's are kept.
    explicit PlacedTensors(std::uint64_t allocation_bytes = 8192, std::uint64_t gap = 24)
        : allocation_bytes_(allocation_bytes), gap_(gap) {}

    void add(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
        std::uint64_t bytes = dtype.bytes();
        for (const std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
        std::uint64_t at = (used_ + dtype.bytes() - 1) / dtype.bytes() * dtype.bytes();
        if (allocations.empty() || at + bytes > allocations.back()->bytes()) {
            const std::uint64_t wanted = std::max(allocation_bytes_, bytes);
            allocations.push_back(std::make_unique<FakeAllocation>(wanted));
            at = 0;
        }
        list.push_back({.name = name, .dtype = dtype, .shape = std::move(shape), .data = nullptr});
        if (bytes != 0) list.back().data = allocations.back()->data() + at;
        sizes.push_back(bytes);
        used_ = at + bytes + gap_;
    }
    void fill(std::int64_t version) const {
        for (std::size_t i = 0; i < sizes.size(); i++) {
            for (std::size_t j = 0; j < sizes[i]; j++) {
                static_cast<std::byte*>(list[i].data)[j] = Tensors::byte_of(version, i, j);
            }
        }
    }

    std::vector<WeightTensor> list;
    std::vector<std::uint64_t> sizes;
    std::vector<std::unique_ptr<FakeAllocation>> allocations;

  private:
    std::uint64_t allocation_bytes_;
    std::uint64_t gap_;
    std::uint64_t used_ = 0;
};

// The tensors of small_model(), placed.
inline PlacedTensors placed_model() {
    PlacedTensors placed;
    Tensors model = small_model();
    for (const WeightTensor& tensor : model.list()) {
        placed.add(tensor.name, tensor.dtype, tensor.shape);
    }
    return placed;
}

struct DirectPair {
    explicit DirectPair(SubscriberOptions receiving = {},
                        const PublisherOptions& options = direct_on_gpu) {
        fake_device(trainer_gpu).reset();
        fake_device(engine_gpu).reset();
        auto made = Publisher::create(ring.name(), trainer.list, options);
        REQUIRE_OK(made);
        publisher.emplace(std::move(*made));
        subscriber.emplace(attach(std::move(receiving), engine));
    }
    Subscriber attach(SubscriberOptions receiving, Tensors& into) const {
        receiving.rank = 0;
        receiving.device = engine_gpu;
        return subscriber_on(ring, into, receiving);
    }
    // Begun and published, with the trainer's tensors as of this version.
    Transaction send(std::int64_t version) {
        trainer.fill(version);
        auto open = publisher->begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        return std::move(*open);
    }
    // The whole passage of a version to one engine. Afterwards the trainer writes to its tensors.
    void pass(std::int64_t version, Subscriber& to, const Tensors& into) {
        std::thread taking([&] { CHECK(take(to).value_or(-1) == version); });
        const auto committed = send(version).commit(patience());
        trainer.fill(version + 100);
        taking.join();
        REQUIRE_OK(committed);
        CHECK(into.holds(version));
    }
    void pass(std::int64_t version) { pass(version, *subscriber, engine); }

    TestRing ring{};
    PlacedTensors trainer = placed_model();
    Tensors engine = small_model();
    std::optional<Publisher> publisher;
    std::optional<Subscriber> subscriber;
};

}  // namespace rollring::test
