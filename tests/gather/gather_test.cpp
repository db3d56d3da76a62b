// Goal: whatever the layout, each row of a gathered column is the one that the records and the
// layout say, by a reference that asks for one row at a time.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "gather_case.hpp"
#include "rollring/batch.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

std::vector<double> gathered(const GatherCase& given, GatherColumn column, const Layout& layout) {
    const auto shape = gathered_shape(given.batch, given.schema(), column, layout);
    REQUIRE(shape.has_value());
    CHECK(shape->dtype == column.dtype.value_or(shape->dtype));
    std::vector<std::byte> target(shape->elements() * shape->dtype.bytes(), std::byte{0xa5});
    column.to = target;
    REQUIRE(gather(given.batch, given.schema(), {&column, 1}, layout).has_value());
    return numbers_of(target, shape->dtype);
}

}  // namespace

TEST_CASE("gather: random layouts of random batches are what the reference says") {
    for (unsigned seed = 1; seed <= 6; seed++) {
        GatherCase given(seed);
        std::mt19937 dice(seed);
        for (int round = 0; round < 60; round++) {
            CAPTURE(seed);
            CAPTURE(round);
            std::vector<std::uint32_t> order;
            const Layout layout = random_layout(given.batch, order, dice);
            const GatherColumn column = random_column(layout, dice);
            REQUIRE(same(gathered(given, column, layout), wanted(given, column, layout)));
        }
    }
}

// More kinds of records than a batch has forms for: ids of many lengths, columns that only some
// have.
TEST_CASE("gather: where a record's columns lie is what its view says, of one form or of none") {
    const TestRing ring({.lanes = 2, .lane_bytes = 8 << 20});
    auto producer = Producer::open(ring.name());
    REQUIRE(producer.has_value());
    constexpr std::uint32_t records = 60;
    std::mt19937 dice(8);
    for (std::uint32_t i = 0; i < records; i++) {
        const std::string prompt = std::string(i % 3 == 0 ? 7 * i : 5, 'p') + std::to_string(i);
        const std::vector<std::int32_t> tokens(i % 7 == 6 ? 0 : below(dice, 300),
                                               static_cast<int>(i));
        const std::vector<float> values(tokens.size(), static_cast<float>(i));
        Draft draft(prompt);
        draft.meta.group_size = 1;
        if (i % 2 == 0) draft.set(Std::logprobs, values);
        draft.set(Std::token_ids, tokens);
        if (i % 5 == 0) draft.set(Std::logprobs, values);
        REQUIRE(producer->push(draft, patience()) == Push::ok);
    }
    auto stash = open_stash(ring, {.group_size = 1, .batch = BatchTarget::groups(records)});
    Batch batch;
    REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
    REQUIRE(batch.places().size() == records);
    std::uint32_t formless = 0;
    std::vector<std::int32_t> wanted_ids;
    for (std::uint32_t i = 0; i < records; i++) {
        const TrajectoryView& view = batch.sequences()[i].view;
        const auto ids = view.token_ids();
        wanted_ids.insert(wanted_ids.end(), ids.begin(), ids.end());
        const detail::RecordPlace& place = batch.places()[i];
        CHECK(place.tokens == view.n_tokens());
        if (place.form == detail::RecordPlace::no_form) {
            formless++;
            continue;
        }
        const auto& form = batch.forms()[place.form];
        REQUIRE(form.columns.size() == view.columns().size());
        const std::byte* at = place.columns;
        for (std::size_t column = 0; column < form.columns.size(); column++) {
            CHECK(view.columns()[column].data.data() == at);
            const std::uint64_t row_bytes = form.columns[column].row_bytes;
            at += row_bytes == 0 ? form.columns[column].bytes
                                 : detail::RecordForm::bytes_of(row_bytes, place.tokens);
        }
    }
    CHECK(batch.forms().size() == 8);
    CHECK(formless > 0);
    CHECK(formless < records / 2);
    std::vector<std::int32_t> ids(wanted_ids.size());
    const GatherColumn column{.column = token_ids, .to = std::as_writable_bytes(std::span(ids))};
    REQUIRE(gather(batch, stash->schema(), {&column, 1}, {}).has_value());
    CHECK(ids == wanted_ids);
    REQUIRE(batch.ack(0).has_value());
    CHECK(batch.places().empty());
    CHECK(batch.forms().empty());
}

TEST_CASE("gather: several columns at once, and the offsets of a part") {
    const GatherCase given(3);
    const Layout responses{.part = Part::response};
    const auto offsets = gathered_offsets(given.batch, responses);
    REQUIRE(offsets.has_value());
    REQUIRE(offsets->size() == given.batch.sequences().size() + 1);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(offsets->back()));
    std::vector<std::int32_t> numbers(ids.size());
    const std::vector<GatherColumn> columns = {
        {.column = token_ids, .dtype = dtype_i64, .to = std::as_writable_bytes(std::span(ids))},
        {.source = Source::position_ids,
         .dtype = dtype_i32,
         .to = std::as_writable_bytes(std::span(numbers))}};
    REQUIRE(gather(given.batch, given.schema(), columns, responses).has_value());
    for (std::size_t i = 0; i < given.batch.sequences().size(); i++) {
        const TrajectoryView& view = given.batch.sequences()[i].view;
        const auto tokens = view.token_ids().subspan(view.meta().n_prompt);
        const auto begin = static_cast<std::size_t>((*offsets)[i]);
        REQUIRE(static_cast<std::size_t>((*offsets)[i + 1]) == begin + tokens.size());
        for (std::size_t t = 0; t < tokens.size(); t++) {
            CHECK(ids[begin + t] == tokens[t]);
            CHECK(numbers[begin + t] == static_cast<std::int32_t>(view.meta().n_prompt + t));
        }
    }
}

TEST_CASE("gather: what cannot be is refused by name") {
    GatherCase given(2);
    const auto refusal = [&](const GatherColumn& column, const Layout& layout) {
        const auto shape = gathered_shape(given.batch, given.schema(), column, layout);
        if (!shape) return shape.error().message;
        std::vector<std::byte> target(shape->elements() * shape->dtype.bytes());
        GatherColumn with_target = column;
        with_target.to = target;
        const auto done = gather(given.batch, given.schema(), {&with_target, 1}, layout);
        return done ? std::string() : done.error().message;
    };
    const auto says = [](const std::string& text, std::string_view part) {
        CAPTURE(text);
        return text.find(part) != std::string::npos;
    };
    const std::vector<std::uint32_t> beyond = {0, 1'000'000};
    CHECK(says(refusal({.column = token_ids}, {.order = beyond}), "sequence 1000000 of a batch"));
    CHECK(says(refusal({.column = 99}, {}), "no column 99"));
    CHECK(says(refusal({.column = token_ids}, {.form = Form::per_sequence}),
               "does not have one value per sequence"));
    CHECK(says(refusal({.column = logprobs}, {}), "give a fill value for missing columns"));
    CHECK(says(refusal({.column = token_ids, .dtype = dtype_u8}, {}), "outside the range of u8"));
    CHECK(says(refusal({.column = static_cast<std::uint16_t>(Std::ref_logprobs)}, {}),
               "no sequence of the batch carries"));
    CHECK(refusal({.column = static_cast<std::uint16_t>(Std::ref_logprobs), .missing = 0}, {})
              .empty());
    CHECK(says(refusal({.column = token_ids}, {.form = Form::padded, .padding = {.length = 1}}),
               "more than the requested length of 1"));
    REQUIRE(given.batch.ack(0).has_value());
    CHECK(gathered_offsets(given.batch, {}).error().code == Errc::not_leased);
}

TEST_CASE("micro-batches: every sequence once, none above the budget, the same each time") {
    std::mt19937 dice(5);
    for (int round = 0; round < 200; round++) {
        CAPTURE(round);
        std::vector<std::uint32_t> lengths(below(dice, 60));
        for (auto& length : lengths) length = below(dice, 101);
        const auto made = micro_batches(lengths, 100);
        REQUIRE(made.has_value());
        std::vector<int> seen(lengths.size());
        std::uint64_t tokens = 0;
        for (const auto& bin : made->bins) {
            std::uint64_t held = 0;
            for (const std::uint32_t sequence : bin) {
                seen[sequence]++;
                held += lengths[sequence];
            }
            CHECK(held <= 100);
            CHECK(std::ranges::is_sorted(bin));
            tokens += held;
        }
        CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
        const std::uint64_t needed = (tokens + 99) / 100;
        const auto least = static_cast<double>(needed);
        CHECK(static_cast<double>(made->bins.size()) <= least * 1.8 + 1);  // zeros take no room
        if (!made->bins.empty()) {
            CHECK(made->fill == doctest::Approx(static_cast<double>(tokens) /
                                                static_cast<double>(made->bins.size() * 100)));
        }
        CHECK(micro_batches(lengths, 100)->bins == made->bins);
    }
    const std::vector<std::uint32_t> fits = {60, 50, 40, 50};
    CHECK(micro_batches(fits, 100)->bins ==
          std::vector<std::vector<std::uint32_t>>{{0, 2}, {1, 3}});
    CHECK(micro_batches(fits, 100)->fill == 1);
    CHECK(micro_batches(fits, 59).error().message.find("sequence 0 has 60 tokens") !=
          std::string::npos);
    CHECK(micro_batches(fits, 0).error().code == Errc::invalid_argument);
}
