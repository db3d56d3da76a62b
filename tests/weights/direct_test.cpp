// Goal: an engine that reads the trainer's tensors where they lie gets the bytes that were put, of
// every version and in every way of loading; and never bytes that the trainer wrote afterwards.

#include <algorithm>
#include <random>
#include <thread>

#include "direct_pair.hpp"

namespace rollring::test {
namespace {

// Each way in which an engine with tensors of its own can take versions.
std::vector<SubscriberOptions> ways() {
    using enum DeltaFallback;
    std::vector<SubscriberOptions> all{{.in_place = true}, {.in_place = false}};
    for (const DeltaFallback fallback : {refuse, beside, in_place}) {
        all.push_back({.staging = Staging::delta, .delta_fallback = fallback});
    }
    return all;
}

bool says(const Error& error, std::string_view what) {
    return error.message.contains(what);
}

}  // namespace

TEST_CASE("engines get each version from the trainer's own memory, in every way of loading") {
    for (const SubscriberOptions& way : ways()) {
        CAPTURE(name(way.staging));
        CAPTURE(name(way.delta_fallback));
        CAPTURE(way.in_place);
        {
            DirectPair pair(way);
            CHECK(pair.publisher->memory() == PayloadMemory::direct);
            CHECK(pair.subscriber->memory() == PayloadMemory::direct);
            CHECK(pair.publisher->why_not_direct().empty());
            CHECK(pair.publisher->parts() == 1);
            CHECK(pair.publisher->slots() == 1);
            REQUIRE(pair.trainer.allocations.size() == 2);
            CHECK(open_allocations() == 2);
            const std::uint64_t passed = pair.publisher->handles_passed();
            const std::uint64_t imports = pair.subscriber->imports();
            for (std::int64_t version = 1; version <= 4; version++) {
                pair.pass(version);
                if (way.staging != Staging::delta || version % 2 != 0) continue;
                REQUIRE_OK(pair.subscriber->rollback());
                CHECK(pair.engine.holds(version - 1));
            }
            CHECK(pair.publisher->handles_passed() == passed);
            CHECK(pair.subscriber->imports() == imports);
            const auto stat = stat_weights(pair.ring.name());
            REQUIRE_OK(stat);
            CHECK(stat->front().memory == "direct");
            CHECK(stat->front().why_not_direct.empty());
        }
        CHECK(open_allocations() == 0);
    }
}

TEST_CASE("tensors of any shape in many allocations arrive, also as views of parts of them") {
    std::mt19937_64 dice(11);
    constexpr DType dtypes[] = {dtype_f32, dtype_bf16, dtype_f64, dtype_u8, dtype_f16};
    for (int round = 0; round < 20; round++) {
        CAPTURE(round);
        const TestRing ring;
        PlacedTensors trainer(1 + dice() % 5000, dice() % 40);
        Tensors engine;
        const std::size_t count = 1 + dice() % 40;
        for (std::size_t i = 0; i < count; i++) {
            const DType dtype = dtypes[dice() % std::size(dtypes)];
            const std::vector<std::int64_t> shape{static_cast<std::int64_t>(dice() % 30),
                                                  1 + static_cast<std::int64_t>(dice() % 30)};
            trainer.add("t" + std::to_string(i), dtype, shape);
            engine.add("t" + std::to_string(i), dtype, shape);
        }
        constexpr std::size_t half_elements = std::size_t{9} * 14;
        // In halves of its rows, and with its columns in the other order.
        Tensors cut;
        cut.add("half", dtype_bf16, {9, 14});
        cut.add("turned", dtype_bf16, {14, 18});
        trainer.add("viewed", dtype_bf16, {18, 14});
        WeightTensor half = cut.list()[0];
        half.name = "viewed";
        half.view = TensorView{.offset = half_elements};
        WeightTensor turned = cut.list()[1];
        turned.name = "viewed";
        turned.view = TensorView{.offset = 0, .strides = {1, 14}};
        std::vector<WeightTensor> into = engine.list();
        into.push_back(half);
        into.push_back(turned);

        auto publisher = Publisher::create(ring.name(), trainer.list, direct_on_gpu);
        REQUIRE_OK(publisher);
        SubscriberOptions way = ways()[dice() % 4];
        way.rank = 0;
        way.device = engine_gpu;
        way.delta_fallback = DeltaFallback::beside;
        auto subscriber = Subscriber::attach(ring.name(), into, way, patience());
        REQUIRE_OK(subscriber);
        for (std::int64_t version = 1; version <= 3; version++) {
            trainer.fill(version);
            std::thread taking([&] { REQUIRE_OK(take(*subscriber)); });
            auto open = publisher->begin(version);
            REQUIRE_OK(open);
            REQUIRE_OK(open->put_all(patience()));
            REQUIRE_OK(open->publish());
            REQUIRE_OK(open->commit(patience()));
            taking.join();
            CHECK(engine.holds(version));
            const auto* sent = static_cast<const std::uint16_t*>(trainer.list.back().data);
            const auto* half_of = reinterpret_cast<const std::uint16_t*>(half.data);
            const auto* turned_of = reinterpret_cast<const std::uint16_t*>(turned.data);
            bool same = std::equal(half_of, half_of + half_elements, sent + half_elements);
            for (std::size_t i = 0; i < std::size_t{14} * 18; i++) {
                same = same && turned_of[i] == sent[i % 18 * 14 + i / 18];
            }
            CHECK(same);
        }
    }
}

TEST_CASE(
    "an engine that loads by itself is lent the trainer's tensors, and several load at once") {
    DirectPair pair;
    Tensors second = small_model();
    Subscriber other = pair.attach({.name = "other", .staging = Staging::delta}, second);
    Transaction version = pair.send(1);
    std::thread taking([&] { REQUIRE_OK(take(other)); });
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    REQUIRE(update->parts() == 1);
    const auto pieces = update->part(0, patience());
    REQUIRE_OK(pieces);
    REQUIRE(pieces->size() == 6);
    for (const TensorPiece& piece : *pieces) {
        const std::size_t bytes = pair.trainer.sizes[piece.tensor];
        CHECK(piece.data != pair.trainer.list[piece.tensor].data);  // mapped elsewhere
        CHECK(std::memcmp(piece.data, pair.trainer.list[piece.tensor].data, bytes) == 0);
    }
    REQUIRE_OK(update->done_reading(0));
    REQUIRE_OK(update->stage(patience()));
    const auto report = version.commit(patience());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 2);
    REQUIRE_OK(update->adopt(patience()));
    taking.join();
    CHECK(second.holds(1));
}

TEST_CASE("a stream of the trainer that has not got there keeps its tensors unread") {
    DirectPair pair;
    FakeDevice& gpu = fake_device(trainer_gpu);
    gpu.stopped = true;
    Transaction version = pair.send(1);
    CHECK(version.commit(soon()).error().code == Errc::timed_out);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    CHECK(update->part(0, soon()).error().code == Errc::timed_out);
    pair.trainer.fill(2);  // as the work that is still queued would
    gpu.go_on();
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(version.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(pair.engine.holds(2));
}

TEST_CASE("the trainer writes to its tensors while an engine reads no more: not before it staged") {
    DirectPair pair({.staging = Staging::delta});
    pair.pass(1);
    FakeDevice& gpu = fake_device(engine_gpu);
    Transaction version = pair.send(2);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    CHECK(update->load(soon()).error().code == Errc::timed_out);
    const auto held = version.commit(soon());
    REQUIRE(!held);
    CHECK(held.error().code == Errc::timed_out);
    CHECK(says(held.error(), "'engine'"));
    CHECK(version.wait_staged(soon()).error().code == Errc::timed_out);
    gpu.go_on();
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(version.wait_staged(patience()));
    pair.trainer.fill(77);
    REQUIRE_OK(version.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(pair.engine.holds(2));
}

TEST_CASE("a tensor that has moved is refused by name, and nothing of it is read") {
    DirectPair pair;
    pair.pass(1);
    pair.trainer.fill(2);
    auto version = pair.publisher->begin(2);
    REQUIRE_OK(version);
    std::vector<std::byte> elsewhere(20'000);
    const auto& tensors = pair.trainer.list;
    REQUIRE_OK(version->put(tensors[0].name, tensors[0].data, patience()));
    const auto moved = version->put(tensors[1].name, elsewhere.data(), patience());
    REQUIRE(!moved);
    CHECK(moved.error().code == Errc::unsupported);
    CHECK(says(moved.error(), "'layer.0.q'"));
    CHECK(says(moved.error(), "has moved"));
    CHECK(pair.subscriber->next(soon()).error().code == Errc::timed_out);
    // Where they lie all of them can be put one by one.
    for (std::size_t i = 1; i < tensors.size(); i++) {
        REQUIRE_OK(
            version->put(tensors[i].name, i % 2 == 0 ? nullptr : tensors[i].data, patience()));
    }
    REQUIRE_OK(version->publish());
    std::thread taking([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(version->commit(patience()));
    taking.join();
    CHECK(pair.engine.holds(2));
}

TEST_CASE("an allocation that was freed and made anew at its address is refused by name") {
    DirectPair pair({.staging = Staging::delta});
    pair.pass(1);
    const auto refused_by_name = [](const Result<void>& result) {
        REQUIRE(!result);
        CHECK(result.error().code == Errc::already_released);
        CHECK(says(result.error(), "'layer.0.q'"));
    };
    SUBCASE("before the version") {
        pair.trainer.allocations[1]->make_anew();
        auto version = pair.publisher->begin(2);
        REQUIRE_OK(version);
        refused_by_name(version->put_all(patience()));
        refused_by_name(version->put("embed", nullptr, patience()));
    }
    SUBCASE("freed before the version") {
        pair.trainer.allocations[1]->free_it();
        auto version = pair.publisher->begin(2);
        REQUIRE_OK(version);
        refused_by_name(version->put_all(patience()));
    }
    SUBCASE("while engines read it") {
        Transaction version = pair.send(2);
        auto update = pair.subscriber->next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        pair.trainer.allocations[1]->make_anew();
        REQUIRE_OK(update->stage(patience()));
        const auto committed = version.commit(patience());
        REQUIRE(!committed);
        CHECK(committed.error().code == Errc::already_released);
        CHECK(says(committed.error(), "'layer.0.q'"));
        version.abort("freed");
        CHECK(update->wait_committed(patience()).error().code == Errc::aborted);
    }
    CHECK(pair.subscriber->next(soon()).error().code == Errc::timed_out);
    CHECK(pair.engine.holds(1));
    CHECK(pair.subscriber->state() == SubscriberState::ready);
    CHECK(stat_ring(pair.ring.name())->policy_version == 1);
}

}  // namespace rollring::test
