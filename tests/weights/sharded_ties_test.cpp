// Tensors of an engine that share memory, while ranks of the trainer have parts of each.

#include <thread>
#include <vector>

#include "channel.hpp"
#include "rollring/weight_layout.hpp"

namespace rollring::test {
namespace {

using Values = std::vector<float>;
constexpr std::int64_t shape[] = {4, 3};

// A layout of `embed` and `head`, of which this rank has these rows.
struct Part {
    std::uint32_t rank;
    bool tied;
    WeightLayout layout = {};
    std::vector<WeightTensor> list = {};

    void add(const char* name, std::int64_t row, Values& values, bool listed = true) {
        const bool ties = tied && std::string(name) == "head";
        const auto embed = layout.add_tensor("embed", shape);
        REQUIRE_OK(embed);
        const auto tensor =
            ties ? layout.add_tensor(name, shape, *embed) : layout.add_tensor(name, shape);
        REQUIRE_OK(tensor);
        if (!listed) return;
        const auto elements = static_cast<std::int64_t>(values.size());
        const auto memory = layout.add_memory(
            {.rank = rank, .name = name, .dtype = dtype_f32, .elements = values.size()});
        REQUIRE_OK(memory);
        const std::int64_t start[] = {row, 0};
        const std::int64_t length[] = {elements / 3, 3};
        const std::int64_t strides[] = {3, 1};
        REQUIRE_OK(layout.add_box({.tensor = *tensor,
                                   .memory = *memory,
                                   .start = start,
                                   .length = length,
                                   .strides = strides}));
        list.push_back(
            {.name = name, .dtype = dtype_f32, .shape = {elements}, .data = values.data()});
    }
};

Publisher publisher_of(const TestRing& ring, const Part& part) {
    auto made = Publisher::create(
        ring.name(), part.list, {.rank = part.rank, .ranks = 2, .layout = part.layout.to_bytes()});
    REQUIRE_OK(made);
    return std::move(*made);
}

void pass(std::vector<Publisher>& ranks, Subscriber& engine, std::int64_t version) {
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    for (Publisher& rank : ranks) {
        threads.emplace_back([&, version] {
            auto open = rank.begin(version);
            REQUIRE_OK(open);
            REQUIRE_OK(open->put_all(patience()));
            REQUIRE_OK(open->publish());
            REQUIRE_OK(open->commit(patience()));
        });
    }
    CHECK(take(engine).value_or(-1) == version);
    for (auto& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("tied parameters of one memory are exchanged once, though ranks have parts of them") {
    for (const Staging staging : {Staging::delta, Staging::copy}) {
        CAPTURE(name(staging));
        const TestRing ring;
        Values rows[2] = {Values(6, 1), Values(6, 2)};
        std::vector<Publisher> ranks;
        for (std::uint32_t rank = 0; rank < 2; rank++) {
            Part part{rank, true};
            part.add("embed", std::int64_t{rank} * 2, rows[rank]);
            part.add("head", 0, rows[rank], false);
            ranks.push_back(publisher_of(ring, part));
        }
        Values held(12);
        Part own{0, true};
        own.add("embed", 0, held);
        own.add("head", 0, held);
        auto engine =
            Subscriber::attach(ring.name(), own.list,
                               {.staging = staging, .layout = own.layout.to_bytes()}, patience());
        REQUIRE_OK(engine);
        pass(ranks, *engine, 1);
        const Values first{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2};
        CHECK(held == first);
        rows[0][4] = 7;
        rows[1][0] = 8;
        pass(ranks, *engine, 2);
        CHECK(held == Values{1, 1, 1, 1, 7, 1, 8, 2, 2, 2, 2, 2});
        if (staging == Staging::copy) continue;
        CHECK((engine->delta().changed == 2 && engine->delta().elements == 12));
        REQUIRE_OK(engine->rollback());
        CHECK(held == first);
    }
}

TEST_CASE("parameters of one memory that the trainer does not tie are refused by name") {
    const TestRing ring;
    // No rank has rows of both that meet in the engine.
    Values embed[2] = {Values(6, 1), Values(6, 2)};
    Values head[2] = {Values(6, 3), Values(6, 4)};
    std::vector<Publisher> ranks;
    for (std::uint32_t rank = 0; rank < 2; rank++) {
        Part part{rank, false};
        part.add("embed", std::int64_t{rank} * 2, embed[rank]);
        part.add("head", 2 - std::int64_t{rank} * 2, head[rank]);
        ranks.push_back(publisher_of(ring, part));
    }
    Values held(12);
    Part own{0, false};
    own.add("embed", 0, held);
    own.add("head", 0, held);
    for (const Staging staging : {Staging::delta, Staging::copy}) {
        CAPTURE(name(staging));
        const auto engine =
            Subscriber::attach(ring.name(), own.list,
                               {.staging = staging, .layout = own.layout.to_bytes()}, patience());
        REQUIRE(!engine);
        CHECK(engine.error().code == Errc::layout_mismatch);
        CHECK(engine.error().message.contains("tensors 'embed' and 'head' of the engine share"));
    }
    // Memory that only touches is two tensors'.
    Values both(24);
    Part apart{0, false};
    Values low(both.begin(), both.begin() + 12);
    apart.add("embed", 0, low);
    apart.add("head", 0, low);
    apart.list[0].data = both.data();
    apart.list[1].data = both.data() + 12;
    auto engine = Subscriber::attach(ring.name(), apart.list,
                                     {.staging = Staging::delta, .layout = apart.layout.to_bytes()},
                                     patience());
    REQUIRE_OK(engine);
    pass(ranks, *engine, 1);
    CHECK(both == Values{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3});
}

}  // namespace rollring::test
