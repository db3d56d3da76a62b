// Memory that cannot be read where it lies: `direct` is refused by name, and `allow_direct` takes
// slots and says why.

#include <functional>
#include <thread>

#include "direct_pair.hpp"

namespace rollring::test {
namespace {

struct Case {
    std::string why;
    std::function<void(PlacedTensors&, PublisherOptions&)> change;
};

std::vector<Case> cases() {
    static const FakeAllocation unshared(20'000, false);
    static std::vector<std::byte> host(20'000);
    return {
        {"tensor 'layer.0.q': its memory has no handle",
         [](PlacedTensors& tensors, PublisherOptions&) { tensors.list[1].data = unshared.data(); }},
        {"tensor 'embed': its memory has no handle",
         [](PlacedTensors& tensors, PublisherOptions&) { tensors.list[0].data = host.data(); }},
        {"tensor 'embed': it spans several allocations",
         [](PlacedTensors& tensors, PublisherOptions&) {
             tensors.list[0].data = static_cast<std::byte*>(tensors.list[0].data) + 64;
         }},
        {"tensor 'layer.0.q': it is not contiguous",
         [](PlacedTensors& tensors, PublisherOptions&) { tensors.list[1].strides = {1, 40}; }},
        {"tensor 'embed': it is f32 and published as bf16",
         [](PlacedTensors& tensors, PublisherOptions&) {
             tensors.list[0].published_dtype = dtype_bf16;
         }},
        {"tensor 'ids': its address is not a multiple",
         [](PlacedTensors& tensors, PublisherOptions&) {
             tensors.list[6].data = static_cast<std::byte*>(tensors.list[6].data) + 4;
         }},
        {"checksums lie in slots",
         [](PlacedTensors&, PublisherOptions& options) { options.checksums = true; }},
        {"handed on lie in slots",
         [](PlacedTensors&, PublisherOptions& options) { options.handed_on = true; }},
    };
}

}  // namespace

TEST_CASE("tensors that cannot be read where they lie are named, and go through slots if allowed") {
    fake_device(trainer_gpu).reset();
    for (const Case& one : cases()) {
        CAPTURE(one.why);
        const TestRing ring;
        PlacedTensors tensors = placed_model();
        tensors.add("more", dtype_u8, {64});
        PublisherOptions options = direct_on_gpu;
        one.change(tensors, options);
        const auto refused = Publisher::create(ring.name(), tensors.list, options);
        REQUIRE(!refused);
        CHECK(refused.error().code == Errc::unsupported);
        CHECK_MESSAGE(refused.error().message.contains(one.why), refused.error().message);

        options.memory = PayloadMemory::automatic;
        options.allow_direct = true;
        const auto publisher = Publisher::create(ring.name(), tensors.list, options);
        REQUIRE_OK(publisher);
        CHECK(publisher->memory() == PayloadMemory::vmm);
        CHECK(publisher->why_not_direct().contains(one.why));
        CHECK(publisher->slots() == 2);
        const auto stat = stat_weights(ring.name());
        REQUIRE_OK(stat);
        CHECK(stat->front().memory == "vmm");
        CHECK(stat->front().why_not_direct == publisher->why_not_direct());
    }
}

TEST_CASE("a tensor without an address of its own is not read where it lies") {
    const TestRing ring;
    PlacedTensors tensors = placed_model();
    tensors.list[1].data = nullptr;
    const auto refused = Publisher::create(ring.name(), tensors.list, direct_on_gpu);
    REQUIRE(!refused);
    CHECK(refused.error().message.contains("'layer.0.q': it has no address"));
}

TEST_CASE("automatic reads where it lies only what it may, and slots need no reason") {
    const TestRing ring;
    PlacedTensors tensors = placed_model();
    {
        const auto slots = Publisher::create(ring.name(), tensors.list, {.device = trainer_gpu});
        REQUIRE_OK(slots);
        CHECK(slots->memory() == PayloadMemory::vmm);
        CHECK(slots->why_not_direct().empty());
    }
    {
        const auto direct = Publisher::create(ring.name(), tensors.list,
                                              {.device = trainer_gpu, .allow_direct = true});
        REQUIRE_OK(direct);
        CHECK(direct->memory() == PayloadMemory::direct);
    }
    const auto host = Publisher::create(ring.name(), tensors.list, {.allow_direct = true});
    REQUIRE_OK(host);
    CHECK(host->memory() == PayloadMemory::host);
    CHECK(host->why_not_direct().contains("host memory"));
    const auto none = Publisher::create(ring.name(), tensors.list,
                                        {.rank = 1, .ranks = 2, .memory = PayloadMemory::direct});
    REQUIRE(!none);
    CHECK(none.error().code == Errc::invalid_argument);
    CHECK(none.error().message.contains("needs a GPU"));
}

TEST_CASE("an engine on the host is told that it cannot read a GPU's memory") {
    const TestRing ring;
    PlacedTensors tensors = placed_model();
    Tensors engine = small_model();
    const auto publisher = Publisher::create(ring.name(), tensors.list, direct_on_gpu);
    REQUIRE_OK(publisher);
    const auto attached = Subscriber::attach(ring.name(), engine.list(), {}, patience());
    REQUIRE(!attached);
    CHECK(attached.error().code == Errc::unsupported);
    CHECK(attached.error().message.contains("GPU memory (direct)"));
}

TEST_CASE("tied tensors and several tensors at one address are read from the same bytes") {
    fake_device(trainer_gpu).reset();
    fake_device(engine_gpu).reset();
    const TestRing ring;
    PlacedTensors tensors;
    tensors.add("embed", dtype_f32, {20, 30});
    WeightTensor tied = tensors.list[0];
    tied.name = "lm_head";
    tied.tied = true;
    WeightTensor alias = tensors.list[0];
    alias.name = "alias";
    tensors.list.push_back(tied);
    tensors.list.push_back(alias);
    Tensors engine;
    for (const char* one : {"embed", "lm_head", "alias"}) engine.add(one, dtype_f32, {20, 30});
    auto publisher = Publisher::create(ring.name(), tensors.list, direct_on_gpu);
    REQUIRE_OK(publisher);
    CHECK(publisher->payload_bytes() == 2 * 2400);
    auto subscriber = Subscriber::attach(ring.name(), engine.list(),
                                         {.rank = 0, .device = engine_gpu}, patience());
    REQUIRE_OK(subscriber);
    tensors.fill(1);
    std::thread taking([&] { REQUIRE_OK(take(*subscriber)); });
    auto open = publisher->begin(1);
    REQUIRE_OK(open);
    REQUIRE_OK(open->put_all(patience()));
    REQUIRE_OK(open->publish());
    REQUIRE_OK(open->commit(patience()));
    taking.join();
    for (const auto& memory : engine.memory()) {
        CHECK(std::memcmp(memory.data(), tensors.list[0].data, memory.size()) == 0);
    }
}

}  // namespace rollring::test
