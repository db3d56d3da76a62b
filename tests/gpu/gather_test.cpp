// Goal: the rows that a real GPU gathers are those of the reference, from lanes where they lie and
// through staging memory, and never from pages that a lane has given back.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <optional>
#include <string>

#include "../gather/gather_case.hpp"
#include "raw_gpu.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

struct Gathering {
    const RawGpu& gpu;
    Gatherer& gatherer;
};

std::vector<double> gathered(const Gathering& with, const Sequences& batch, const Schema& schema,
                             GatherColumn column, const Layout& layout) {
    const auto& [gpu, gatherer] = with;
    const ArrayShape shape = RawGpu::must(gathered_shape(batch, schema, column, layout));
    const std::uint64_t bytes = shape.elements() * shape.dtype.bytes();
    std::vector<std::byte> all(bytes + 1);
    const CUdeviceptr target = gpu.allocate(all.size());
    CUstream stream = gpu.stream();
    gpu.set(target, 0xa5, all.size(), stream);
    column.to = {std::bit_cast<std::byte*>(target), bytes};
    RawGpu::must(gatherer.gather(batch, schema, {&column, 1}, layout, {stream}));
    RawGpu::must(gatherer.wait(RawGpu::must(gatherer.mark({stream})), patience()));
    gpu.to_host(all.data(), std::bit_cast<void*>(target), all.size());
    gpu.api().cuMemFree(target);
    gpu.api().cuStreamDestroy(stream);
    CHECK(all.back() == std::byte{0xa5});
    all.pop_back();
    return numbers_of(all, shape.dtype);
}

void send_one(Producer& producer, const std::string& prompt, std::int32_t value) {
    const std::vector<std::int32_t> tokens(20'000, value);
    Draft draft(prompt);
    draft.meta.group_size = 1;
    draft.set(Std::token_ids, tokens);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
}

}  // namespace

TEST_CASE("gather: random layouts of random batches on a GPU") {
    const RawGpu gpu;
    for (unsigned seed = 21; seed <= 26; seed++) {
        GatherCase given(seed, 24, seed % 2 == 0 ? 90 : 5000);
        Gatherer gatherer = RawGpu::must(Gatherer::open(Device::cuda(0)));
        const bool at_once = seed % 3 != 0;  // else staged until its lane is registered
        if (at_once) RawGpu::must(gatherer.prepare(given.batch));
        std::mt19937 dice(seed);
        for (int round = 0; round < 40; round++) {
            CAPTURE(seed);
            CAPTURE(round);
            std::vector<std::uint32_t> order;
            Layout layout = random_layout(given.batch, order, dice);
            if (layout.padding.length != 0) layout.padding.length += 5000;
            const GatherColumn column = random_column(layout, dice);
            REQUIRE(same(gathered({gpu, gatherer}, given.batch, given.schema(), column, layout),
                         wanted(given, column, layout)));
        }
        const GatherStat stat = gatherer.stat();
        MESSAGE("read " << stat.read_bytes << ", staged " << stat.staged_bytes << ": "
                        << stat.why_staged);
        CHECK(stat.read_bytes + stat.staged_bytes != 0);
    }
}

// A gather may begin before the one ahead of it has ended: not so that it could be seen.
TEST_CASE("gather: what is queued on a stream, or on the default one, is done in order") {
    const RawGpu gpu;
    GatherCase given(27, 64, 5000);
    Gatherer gatherer = RawGpu::must(Gatherer::open(Device::cuda(0)));
    RawGpu::must(gatherer.prepare(given.batch));
    std::vector<std::int32_t> expected;
    for (const Sequence& sequence : given.batch.sequences()) {
        const auto tokens = sequence.view.token_ids();
        expected.insert(expected.end(), tokens.begin(), tokens.end());
    }
    std::vector<std::int32_t> ids(expected.size());
    const CUdeviceptr target = gpu.allocate(ids.size() * 4);
    CUstream stream = gpu.stream();
    GatherColumn column{.column = token_ids};
    column.to = {std::bit_cast<std::byte*>(target), ids.size() * 4};
    GatherColumn numbers{.source = Source::position_ids, .dtype = dtype_i32, .to = column.to};
    for (const bool named : {true, false}) {
        CAPTURE(named);
        const Stream on = named ? Stream{stream} : Stream{};
        for (int round = 0; round < 200; round++) {
            RawGpu::must(gatherer.gather(given.batch, given.schema(), {&numbers, 1}, {}, on));
            RawGpu::must(gatherer.gather(given.batch, given.schema(), {&column, 1}, {}, on));
            RawGpu::must(gatherer.wait(RawGpu::must(gatherer.mark(on)), patience()));
            gpu.to_host(ids.data(), std::bit_cast<void*>(target), ids.size() * 4);
            REQUIRE(ids == expected);
        }
    }
    gpu.api().cuMemFree(target);
    gpu.api().cuStreamDestroy(stream);
}

TEST_CASE("gather: a lane whose pages went back to the system is read anew") {
    const RawGpu gpu;
    const TestRing ring({.lanes = 1, .lane_bytes = 4 << 20});
    Gatherer gatherer = RawGpu::must(Gatherer::open(Device::cuda(0)));
    std::optional<Producer> producer(RawGpu::must(Producer::open(ring.name())));
    auto stash = open_stash(ring, {.group_size = 1, .batch = BatchTarget::groups(1)});
    const Schema& schema = stash->schema();
    Batch batch;
    for (std::int32_t life = 1; life <= 40; life++) {
        CAPTURE(life);
        send_one(*producer, "prompt " + std::to_string(life), life);
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        if (life % 2 == 1)
            RawGpu::must(gatherer.prepare(batch));  // every second time it is staged, maybe
        const auto rows = gathered({gpu, gatherer}, batch, schema, {.column = token_ids}, {});
        REQUIRE(rows.size() == 20'000);
        REQUIRE(std::ranges::all_of(rows, [&](double row) { return row == life; }));
        REQUIRE(batch.ack(life).has_value());
        producer.reset();
        Event event{};
        for (bool closed = false; !closed;) {
            REQUIRE(stash->next(batch, Deadline::after_ms(20)) == NextBatch::timed_out);
            while (stash->next_event(event)) closed |= event.kind == Event::Kind::producer_closed;
        }
        producer.emplace(RawGpu::must(Producer::open(ring.name())));
    }
    CHECK(gatherer.stat().read_bytes >= std::uint64_t{20} * 20'000 * 4);
}

TEST_CASE("gather: a lane that cannot be registered goes through pinned memory, and it is said") {
    const RawGpu gpu;
    GatherCase given(9);
    const auto lanes = given.batch.lease().lanes();
    for (std::size_t i = 0; i < lanes->count(); i++) {
        // CUDA registers no byte twice: so it refuses all of the lane.
        auto* page = const_cast<std::byte*>(lanes->lane(i).data);
        gpu.must(gpu.api().cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_READ_ONLY),
                 "cuMemHostRegister");
    }
    Gatherer gatherer = RawGpu::must(Gatherer::open(Device::cuda(0)));
    const auto prepared = gatherer.prepare(given.batch);
    REQUIRE_FALSE(prepared.has_value());
    const GatherColumn ids{.column = token_ids, .dtype = dtype_i64};
    CHECK(same(gathered({gpu, gatherer}, given.batch, given.schema(), ids, {}),
               wanted(given, ids, {})));
    const GatherStat stat = gatherer.stat();
    CHECK(stat.staged_bytes == static_cast<std::uint64_t>(given.batch.cu_seqlens().back()) * 4);
    CHECK(stat.read_bytes == 0);
    CHECK(stat.registered_bytes == 0);
    CHECK(stat.why_staged.find("cannot register") != std::string::npos);
    MESSAGE(stat.why_staged);
    for (std::size_t i = 0; i < lanes->count(); i++) {
        gpu.api().cuMemHostUnregister(const_cast<std::byte*>(lanes->lane(i).data));
    }
}

TEST_CASE("gather: a failed GPU, a wrong conversion and a given-back batch are errors") {
    const RawGpu gpu;
    GatherCase given(7);
    Gatherer gatherer = RawGpu::must(Gatherer::open(Device::cuda(0)));
    GatherColumn column{.column = token_ids, .dtype = dtype_f16};
    const auto tokens = static_cast<std::size_t>(given.batch.cu_seqlens().back());
    column.to = {reinterpret_cast<std::byte*>(256), 2 * tokens};  // refused before
    const auto refusal = gatherer.gather(given.batch, given.schema(), {&column, 1}, {});
    REQUIRE_FALSE(refusal.has_value());
    CHECK(refusal.error().code == Errc::unsupported);
    REQUIRE(given.batch.ack(0).has_value());
    CHECK(gatherer.gather(given.batch, given.schema(), {&column, 1}, {}).error().code ==
          Errc::not_leased);
}

int main(int argc, char** argv) {
    if (const std::string why = why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    return doctest::Context(argc, argv).run();
}
