// Goal: two names share bytes only where that was declared, and memory that two tensors would both
// be written to is refused.
#include <thread>

#include "channel.hpp"

using namespace rollring;
using namespace rollring::test;

TEST_CASE("tied tensors go once and arrive everywhere") {
    std::vector<float> shared(1000, 3.0F);
    std::vector<float> one(1000);
    std::vector<float> two(1000);
    std::vector<WeightTensor> from{
        {.name = "embed", .dtype = dtype_f32, .shape = {10, 100}, .data = shared.data()},
        {.name = "head",
         .dtype = dtype_f32,
         .shape = {10, 100},
         .data = shared.data(),
         .tied = true}};
    std::vector<WeightTensor> into{
        {.name = "head", .dtype = dtype_f32, .shape = {10, 100}, .data = two.data()},
        {.name = "embed", .dtype = dtype_f32, .shape = {10, 100}, .data = one.data()}};
    const TestRing ring;
    auto publisher = Publisher::create(ring.name(), from);
    REQUIRE_OK(publisher);
    CHECK(publisher->payload_bytes() == 4000);
    auto subscriber = Subscriber::attach(ring.name(), into, {}, patience());
    REQUIRE_OK(subscriber);
    CHECK(subscriber->tensors()[1].tied_to == 0);
    std::thread engine([&] { REQUIRE_OK(take(*subscriber)); });
    auto transaction = publisher->begin(1);
    REQUIRE_OK(transaction);
    REQUIRE_OK(transaction->put("embed", nullptr, patience()));
    const auto other = transaction->put("head", one.data(), patience());
    REQUIRE(!other);
    CHECK(other.error().code == Errc::invalid_argument);
    CHECK(other.error().message.find("'head' is tied to 'embed'") != std::string::npos);
    REQUIRE_OK(transaction->put("head", nullptr, patience()));
    REQUIRE_OK(transaction->put("head", shared.data(), patience()));
    REQUIRE_OK(transaction->publish());
    REQUIRE_OK(transaction->commit(patience()));
    engine.join();
    CHECK((one == shared && two == shared));
}

TEST_CASE("tensors at one address that nobody declared as tied each have values of their own") {
    std::vector<float> buffer(100);
    std::vector<std::vector<float>> layers(3, std::vector<float>(100));
    std::vector<WeightTensor> from;
    std::vector<WeightTensor> into;
    for (std::size_t i = 0; i < layers.size(); i++) {
        const std::string name = "layers." + std::to_string(i);
        from.push_back({.name = name, .dtype = dtype_f32, .shape = {100}, .data = buffer.data()});
        into.push_back(
            {.name = name, .dtype = dtype_f32, .shape = {100}, .data = layers[i].data()});
    }
    const TestRing ring;
    auto publisher = Publisher::create(ring.name(), from);
    REQUIRE_OK(publisher);
    auto subscriber = Subscriber::attach(ring.name(), into, {}, patience());
    REQUIRE_OK(subscriber);
    std::thread engine([&] { REQUIRE_OK(take(*subscriber)); });
    auto transaction = publisher->begin(1);
    REQUIRE_OK(transaction);
    for (std::size_t i = 0; i < layers.size(); i++) {
        buffer.assign(100, static_cast<float>(i + 1));  // a trainer that gathers layer by layer
        REQUIRE_OK(transaction->put(from[i].name, buffer.data(), patience()));
    }
    REQUIRE_OK(transaction->publish());
    REQUIRE_OK(transaction->commit(patience()));
    engine.join();
    for (std::size_t i = 0; i < layers.size(); i++) {
        CHECK(layers[i] == std::vector<float>(100, static_cast<float>(i + 1)));
    }
}

TEST_CASE("an engine's tensors that share memory and are two in the publisher are refused") {
    std::vector<float> a(64);
    std::vector<float> b(64);
    const std::vector<WeightTensor> from{
        {.name = "a", .dtype = dtype_f32, .shape = {8, 8}, .data = a.data()},
        {.name = "b", .dtype = dtype_f32, .shape = {8, 8}, .data = b.data()}};
    const TestRing ring;
    const auto publisher = Publisher::create(ring.name(), from);
    REQUIRE_OK(publisher);
    std::vector<float> memory(1024);
    const auto refusal = [&](std::size_t first, std::vector<std::int64_t> strides,
                             std::size_t second, std::vector<std::int64_t> others) {
        const std::vector<WeightTensor> into{{.name = "a",
                                              .dtype = dtype_f32,
                                              .shape = {8, 8},
                                              .strides = std::move(strides),
                                              .data = &memory[first]},
                                             {.name = "b",
                                              .dtype = dtype_f32,
                                              .shape = {8, 8},
                                              .strides = std::move(others),
                                              .data = &memory[second]}};
        const auto made = Subscriber::attach(ring.name(), into, {}, patience());
        return made ? std::string() : made.error().message;
    };
    const std::string both = "tensors 'a' and 'b' of the engine share memory";
    CHECK(refusal(0, {}, 0, {}).find(both) == 0);
    CHECK(refusal(0, {}, 63, {}).find(both) == 0);
    CHECK(refusal(0, {}, 64, {}).empty());
    // Columns of one matrix, side by side, and one column too far to the left.
    CHECK(refusal(0, {16, 1}, 8, {16, 1}).empty());
    CHECK(refusal(0, {16, 1}, 7, {16, 1}).find(both) == 0);
    // Every other element, as it lies and transposed.
    CHECK(refusal(0, {16, 2}, 1, {2, 16}).empty());
    CHECK(refusal(0, {16, 2}, 16, {2, 16}).find(both) == 0);
}

TEST_CASE("a tie that is declared and is none is refused by name") {
    std::vector<float> one(100);
    std::vector<float> two(100);
    const std::vector<WeightTensor> from{
        {.name = "embed", .dtype = dtype_f32, .shape = {100}, .data = one.data()},
        {.name = "head", .dtype = dtype_f32, .shape = {100}, .data = two.data(), .tied = true}};
    const TestRing ring;
    const auto publisher = Publisher::create(ring.name(), from);
    REQUIRE(!publisher);
    CHECK(publisher.error().code == Errc::invalid_argument);
    CHECK(publisher.error().message.find("'head'") != std::string::npos);
}
