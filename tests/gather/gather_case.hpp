#pragma once
// A batch of a real ring with columns of several kinds, layouts at random, and the wanted value of
// each gathered row, asked for one element at a time.

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rollring/gather.hpp"
#include "rollring/schema.hpp"
#include "support/pairs.hpp"

namespace rollring::test {

inline constexpr auto token_ids = static_cast<std::uint16_t>(Std::token_ids);
inline constexpr auto loss_mask = static_cast<std::uint16_t>(Std::loss_mask);
inline constexpr auto logprobs = static_cast<std::uint16_t>(Std::logprobs);
inline constexpr auto routed_experts = static_cast<std::uint16_t>(Std::routed_experts);
inline constexpr std::uint32_t layers = 3;
inline constexpr std::uint32_t experts = 2;

inline std::uint32_t below(std::mt19937& dice, std::uint32_t end) {
    return static_cast<std::uint32_t>(dice() % end);
}

// Ids that u8 cannot hold, logprobs in every second sequence only, experts u16[n, layers, experts].
struct GatherCase {
    TestRing ring{{.lanes = 2, .lane_bytes = 8 << 20}};
    std::unique_ptr<Stash> stash;
    Batch batch;

    explicit GatherCase(unsigned seed, std::uint32_t members = 12, std::uint32_t most = 90) {
        std::mt19937 dice(seed);
        auto producer = Producer::open(ring.name());
        REQUIRE(producer.has_value());
        for (std::uint32_t member = 0; member < members; member++) {
            const std::uint32_t count = member == 0 ? most : below(dice, most);
            push(*producer, member, members, count, dice);
        }
        stash = open_stash(ring, {.group_size = members, .batch = BatchTarget::groups(1)});
        REQUIRE(stash->next(batch, patience()) == NextBatch::batch);
        REQUIRE(batch.sequences().size() == members);
    }
    [[nodiscard]] const Schema& schema() const { return stash->schema(); }

  private:
    static void push(Producer& producer, std::uint32_t member, std::uint32_t members,
                     std::uint32_t count, std::mt19937& dice) {
        std::vector<std::int32_t> tokens(count);
        std::vector<std::uint8_t> mask(count);
        std::vector<float> values(count);
        std::vector<std::uint16_t> chosen(std::size_t{count} * layers * experts);
        for (auto& token : tokens) token = static_cast<std::int32_t>(1000 + below(dice, 100'000));
        for (auto& one : mask) one = static_cast<std::uint8_t>(below(dice, 2));
        for (auto& one : values) one = -static_cast<float>(below(dice, 10'000)) / 64;
        for (auto& one : chosen) one = static_cast<std::uint16_t>(below(dice, 65'536));
        Draft draft("prompt");
        draft.meta.repetition_id = member;
        draft.meta.group_size = members;
        draft.meta.n_prompt = count == 0 ? 0 : below(dice, count);
        draft.meta.reward = member * 0.5;
        draft.set(Std::token_ids, tokens).set(Std::loss_mask, mask);
        if (member % 2 == 0) draft.set(Std::logprobs, values);
        draft.add({.column = routed_experts,
                   .dtype = dtype_u16,
                   .shape = {count, layers, experts, 0},
                   .dims = 3,
                   .data = chosen.data()});
        REQUIRE(producer.push(draft, patience()) == Push::ok);
    }
};

inline std::vector<double> numbers_of(std::span<const std::byte> bytes, DType type) {
    std::vector<double> numbers(bytes.size() / type.bytes());
    REQUIRE(convert(type, bytes.data(), dtype_f64, reinterpret_cast<std::byte*>(numbers.data()),
                    numbers.size()));
    return numbers;
}

// The number as the dtype holds it.
inline double as_held(double number, DType type) {
    alignas(8) std::byte held[8];
    REQUIRE(fill(type, number, held, 1));
    return numbers_of({held, type.bytes()}, type)[0];
}

inline Layout random_layout(const Sequences& batch, std::vector<std::uint32_t>& order,
                            std::mt19937& dice) {
    Layout layout;
    layout.form = static_cast<Form>(below(dice, 3));
    layout.part = static_cast<Part>(below(dice, 3));
    layout.padding.side = below(dice, 2) == 0 ? Side::left : Side::right;
    layout.padding.value = below(dice, 100);
    if (below(dice, 2) == 0) layout.padding.multiple_of = 1 + below(dice, 64);
    if (below(dice, 3) == 0) layout.padding.length = 90 + below(dice, 40);
    if (below(dice, 2) == 0) {
        const auto count = static_cast<std::uint32_t>(batch.sequences().size());
        order.resize(1 + below(dice, 2 * count));
        for (std::uint32_t& one : order) one = below(dice, count);
        layout.order = order;
    }
    return layout;
}

// That a GPU converts, too.
inline GatherColumn random_column(const Layout& layout, std::mt19937& dice) {
    GatherColumn column;
    if (below(dice, 2) == 0) column.pad = static_cast<double>(below(dice, 200));
    if (layout.form == Form::per_sequence || below(dice, 5) == 0) {
        column.source = below(dice, 2) == 0 ? Source::advantages : Source::rewards;
        if (below(dice, 2) == 0) column.dtype = below(dice, 2) == 0 ? dtype_f32 : dtype_bf16;
        return column;
    }
    if (below(dice, 5) == 0) {
        column.source = Source::position_ids;
        if (below(dice, 2) == 0) column.dtype = dtype_i32;
        return column;
    }
    const auto one_of = [&](std::initializer_list<DType> types) {
        const std::uint32_t chosen = below(dice, static_cast<std::uint32_t>(types.size()) + 1);
        if (chosen < types.size()) column.dtype = types.begin()[chosen];
    };
    switch (below(dice, 4)) {
        case 0:
            column.column = token_ids;
            one_of({dtype_i64});
            break;
        case 1:
            column.column = loss_mask;
            one_of({DType{6, 8}, dtype_f32, dtype_i64, dtype_i32, dtype_bf16});
            break;
        case 2:
            column.column = logprobs;
            column.missing = -1;
            one_of({dtype_bf16});
            break;
        default:
            column.column = routed_experts;
            one_of({dtype_i32, dtype_i64});
            break;
    }
    if (below(dice, 3) == 0) {
        column.shift = static_cast<std::int32_t>(below(dice, 7)) - 3;
        column.beyond = below(dice, 100);
    }
    return column;
}

// Element `at` of the row of one token, whether the record has that token or not.
inline double element_of(const GatherCase& given, const GatherColumn& column,
                         std::uint32_t sequence, std::int64_t token, std::size_t at) {
    if (column.source == Source::position_ids) return static_cast<double>(token);
    if (column.source == Source::rewards) return given.batch.rewards()[sequence];
    if (column.source == Source::advantages) return given.batch.advantages()[sequence];
    const TrajectoryView& view = given.batch.sequences()[sequence].view;
    const ColumnView* found = view.find(column.column);
    if (found == nullptr) return *column.missing;
    const std::int64_t row = token + column.shift;
    if (row < 0 || row >= std::int64_t{view.n_tokens()}) return column.beyond;
    const std::size_t inner = found->data.size() / found->dtype.bytes() / view.n_tokens();
    const std::size_t bytes = found->dtype.bytes();
    const auto from = found->data.subspan((static_cast<std::size_t>(row) * inner + at) * bytes);
    return numbers_of(from.first(bytes), found->dtype)[0];
}

inline std::vector<double> wanted(const GatherCase& given, const GatherColumn& column,
                                  const Layout& layout) {
    struct One {
        std::uint32_t sequence, begin, end;
    };
    std::vector<One> all;
    std::uint64_t longest = layout.padding.length;
    all.reserve(given.batch.sequences().size());
    for (std::uint32_t i = 0; i < given.batch.sequences().size(); i++) all.push_back({i, 0, 0});
    if (layout.order) {
        all.clear();
        for (const std::uint32_t i : *layout.order) all.push_back({i, 0, 0});
    }
    for (One& one : all) {
        const TrajectoryView& view = given.batch.sequences()[one.sequence].view;
        one.begin = layout.part == Part::response ? view.meta().n_prompt : 0;
        one.end = layout.part == Part::prompt ? view.meta().n_prompt : view.n_tokens();
        longest = std::max<std::uint64_t>(longest, one.end - one.begin);
    }
    while (longest % layout.padding.multiple_of != 0) longest++;
    const bool wide = column.source == Source::column && column.column == routed_experts;
    const std::size_t inner = wide ? std::size_t{layers} * experts : 1;
    const DType own = column.source == Source::position_ids ? dtype_i64
                      : column.source != Source::column     ? dtype_f64
                      : wide                                ? dtype_u16
                      : column.column == token_ids          ? dtype_i32
                      : column.column == loss_mask          ? dtype_u8
                                                            : dtype_f32;
    std::vector<double> rows;
    const auto put = [&](double number) {
        rows.push_back(as_held(number, column.dtype.value_or(own)));
    };
    const auto put_padding = [&](std::uint64_t tokens) {
        for (std::uint64_t i = 0; i < tokens * inner; i++) {
            put(column.pad.value_or(layout.padding.value));
        }
    };
    for (const One& one : all) {
        if (layout.form == Form::per_sequence) {
            put(element_of(given, column, one.sequence, 0, 0));
            continue;
        }
        const std::uint64_t rest = longest - (one.end - one.begin);
        const bool padded = layout.form == Form::padded;
        if (padded && layout.padding.side == Side::left) put_padding(rest);
        for (std::int64_t token = one.begin; token < std::int64_t{one.end}; token++) {
            for (std::size_t at = 0; at < inner; at++) {
                put(element_of(given, column, one.sequence, token, at));
            }
        }
        if (padded && layout.padding.side == Side::right) put_padding(rest);
    }
    return rows;
}

// NaN is NaN.
inline bool same(const std::vector<double>& a, const std::vector<double>& b) {
    return std::ranges::equal(
        a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace rollring::test
