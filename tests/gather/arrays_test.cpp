// Goal: a batch's columns as one array are its sequences' columns, on any copying path, and a
// column that cannot be one is refused by name.
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "rollring/gather.hpp"
#include "support/pairs.hpp"

using namespace rollring;
using rollring::test::open_stash;
using rollring::test::patience;
using rollring::test::TestRing;

namespace {

constexpr auto ids_column = static_cast<std::uint16_t>(Std::token_ids);
constexpr auto logprobs_column = static_cast<std::uint16_t>(Std::logprobs);

void send_tokens(Producer& producer, std::uint32_t member, std::uint32_t count,
                 bool with_logprobs) {
    std::vector<std::int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(1'000 * member));
    const std::vector<float> values(count, -0.5F);
    Draft draft("prompt");
    draft.meta.repetition_id = member;
    draft.meta.group_size = 2;
    draft.set(Std::token_ids, tokens);
    if (with_logprobs) draft.set(Std::logprobs, values);
    REQUIRE(producer.push(draft, patience()) == Push::ok);
}

bool refused(const Result<void>& result, const std::string& part) {
    return !result && result.error().code == Errc::invalid_argument &&
           result.error().message.find(part) != std::string::npos;
}

// One column of a batch into `to`.
Result<void> copy(const Batch& batch, const Schema& schema, GatherColumn column,
                  std::span<std::byte> to, const Layout& layout = {}) {
    column.to = to;
    return gather(batch, schema, {&column, 1}, layout);
}

}  // namespace

TEST_CASE("arrays: packed and padded hold every sequence at its place") {
    const TestRing ring({.lanes = 1, .lane_bytes = 4 << 20});
    auto producer = Producer::open(ring.name());
    REQUIRE(producer.has_value());
    send_tokens(*producer, 0, 5, true);
    send_tokens(*producer, 1, 3, false);
    auto stash = open_stash(ring, {.group_size = 2, .batch = BatchTarget::groups(1)});
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    const Schema& schema = stash->schema();
    const GatherColumn ids{.column = ids_column};

    const auto shape = gathered_shape(batch, schema, ids, {});
    REQUIRE(shape.has_value());
    CHECK(shape->elements() == 8);
    std::vector<std::int64_t> packed(8);
    const auto to = std::as_writable_bytes(std::span(packed));
    const GatherColumn wide{.column = ids_column, .dtype = dtype_i64, .to = to};
    for (const std::uint32_t threads : {0U, 1U, 3U}) {
        std::ranges::fill(packed, -1);
        REQUIRE(gather(batch, schema, {&wide, 1}, {}, threads));
        CHECK(packed == std::vector<std::int64_t>{0, 1, 2, 3, 4, 1000, 1001, 1002});
    }
    std::vector<std::int32_t> padded(16);
    const Layout left{.form = Form::padded,
                      .padding = {.value = -7, .side = Side::left, .multiple_of = 8}};
    REQUIRE(copy(batch, schema, ids, std::as_writable_bytes(std::span(padded)), left));
    CHECK(padded == std::vector<std::int32_t>{-7, -7, -7, 0, 1, 2, 3, 4, -7, -7, -7, -7, -7, 1000,
                                              1001, 1002});

    CHECK(refused(copy(batch, schema, ids, to.first(8)), "8 B, but 32 are needed"));
    CHECK(refused(copy(batch, schema, ids, to.subspan(1, 32)), "not aligned"));
    std::vector<float> values(8);
    const auto floats = std::as_writable_bytes(std::span(values));
    CHECK(refused(copy(batch, schema, {.column = logprobs_column}, floats), "repetition 1"));
    REQUIRE(copy(batch, schema, {.column = logprobs_column, .missing = 2.0}, floats));
    CHECK(values == std::vector<float>{-0.5F, -0.5F, -0.5F, -0.5F, -0.5F, 2.0F, 2.0F, 2.0F});
    const Layout shorter{.form = Form::padded, .padding = {.length = 4}};
    CHECK_FALSE(gathered_shape(batch, schema, ids, shorter).has_value());
    const GatherColumn text{.column = static_cast<std::uint16_t>(Std::instance_id)};
    const auto none = gathered_shape(batch, schema, text, {});
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().message.find("does not have one row per token") != std::string::npos);
    REQUIRE(batch.ack(0));
    CHECK(gathered_shape(batch, schema, ids, {}).error().code == Errc::not_leased);
}
