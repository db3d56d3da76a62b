#pragma once
// A weight channel for tests: a trainer's tensors, an engine's, and the steps of one sync.

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "rollring/weights.hpp"
#include "support/test_ring.hpp"

namespace rollring::test {

#define REQUIRE_OK(result)                                                           \
    do {                                                                             \
        const auto& checked_result = (result);                                       \
        REQUIRE_MESSAGE(checked_result.has_value(),                                  \
                        (checked_result ? "" : checked_result.error().to_string())); \
    } while (false)

// Named tensors with memory behind them.
class Tensors {
  public:
    void add(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
        std::size_t bytes = dtype.bytes();
        for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
        memory_.emplace_back(bytes);
        list_.push_back({.name = name,
                         .dtype = dtype,
                         .shape = std::move(shape),
                         .data = memory_.back().data()});
    }
    // Every byte follows from the version, the tensor and its place.
    void fill(std::int64_t version) {
        for (std::size_t i = 0; i < memory_.size(); i++) {
            for (std::size_t j = 0; j < memory_[i].size(); j++) {
                memory_[i][j] = byte_of(version, i, j);
            }
        }
    }
    [[nodiscard]] bool holds(std::int64_t version) const {
        for (std::size_t i = 0; i < memory_.size(); i++) {
            for (std::size_t j = 0; j < memory_[i].size(); j++) {
                if (memory_[i][j] != byte_of(version, i, j)) return false;
            }
        }
        return true;
    }
    [[nodiscard]] std::vector<WeightTensor>& list() { return list_; }
    [[nodiscard]] std::vector<std::vector<std::byte>>& memory() { return memory_; }

    static std::byte byte_of(std::int64_t version, std::size_t tensor, std::size_t place) {
        return static_cast<std::byte>(static_cast<std::size_t>(version) * 131 + tensor * 31 +
                                      place * 7 + place / 251);
    }

  private:
    std::vector<WeightTensor> list_;
    std::vector<std::vector<std::byte>> memory_;
};

// A small model: 7 tensors, one of them larger than a slot of 4 KiB, one without elements.
inline Tensors small_model() {
    Tensors tensors;
    tensors.add("embed", dtype_f32, {33, 100});
    tensors.add("layer.0.q", dtype_bf16, {40, 7});
    tensors.add("layer.0.bias", dtype_f16, {5});
    tensors.add("empty", dtype_f32, {0, 12});
    tensors.add("scale", dtype_f64, {});
    tensors.add("quantized", dtype_f8_e4m3, {1111});
    tensors.add("ids", dtype_i64, {3, 3});
    return tensors;
}

inline Publisher publisher_on(const TestRing& ring, Tensors& tensors,
                              PublisherOptions options = {}) {
    auto made = Publisher::create(ring.name(), tensors.list(), options);
    REQUIRE_OK(made);
    return std::move(*made);
}

inline Subscriber subscriber_on(const TestRing& ring, Tensors& tensors,
                                const SubscriberOptions& options = {}) {
    auto made = Subscriber::attach(ring.name(), tensors.list(), options, patience());
    REQUIRE_OK(made);
    return std::move(*made);
}

// A trainer and an engine that has attached.
struct TrainerAndEngine {
    TestRing ring{};
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Subscriber subscriber = subscriber_on(ring, engine);
};

// begin, put and publish.
inline Transaction send(Publisher& publisher, Tensors& tensors, std::int64_t version) {
    tensors.fill(version);
    auto transaction = publisher.begin(version);
    REQUIRE_OK(transaction);
    REQUIRE_OK(transaction->put_all(patience()));
    REQUIRE_OK(transaction->publish());
    return std::move(*transaction);
}

// Finds a tensor's published bytes in this process's writable mappings of slots, and flips a bit.
void flip_bit_in_slots(const std::vector<std::byte>& bytes);

constexpr std::uint64_t small_slot = 4096;  // less than a small model

// A deadline that has to pass for the test to go on.
inline Deadline soon() {
    return Deadline::after_ms(60);
}

// An engine takes a version from start to end; returns its number.
inline Result<std::int64_t> take(Subscriber& subscriber, Deadline deadline = patience()) {
    auto update = subscriber.next(deadline);
    if (!update) return std::unexpected(update.error());
    const std::int64_t version = update->version();
    if (auto loaded = update->load(deadline); !loaded) return std::unexpected(loaded.error());
    if (auto staged = update->stage(deadline); !staged) return std::unexpected(staged.error());
    if (auto adopted = update->adopt(deadline); !adopted) return std::unexpected(adopted.error());
    return version;
}

}  // namespace rollring::test
