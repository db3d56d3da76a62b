#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "record_bytes.hpp"
#include "rollring/trajectory.hpp"
#include "support/splitmix64.hpp"
#include "wire.hpp"

using namespace rollring;

namespace {

// An encoded record, in memory with the alignment of a lane.
struct Encoded {
    explicit Encoded(const Draft& draft, const Schema& schema = Schema::standard(),
                     Checksum checksum = Checksum::none) {
        const Encoder encoder(draft, schema, checksum);
        problem = encoder.problem();
        if (!problem.empty()) return;
        storage.resize(encoder.bytes() / 64);
        encoder.write(bytes(), 1, -1);
    }
    std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(storage)); }

    struct alignas(64) Line {
        std::byte bytes[64];
    };
    std::vector<Line> storage;
    std::string_view problem;
};

}  // namespace

// Programs that are older than optional numbers use it as a plain number.
TEST_CASE("record: a repetition_id reads as a number, and says whether it is one") {
    static_assert(!std::is_constructible_v<bool, RepetitionId>);
    static_assert(std::is_convertible_v<RepetitionId, std::uint32_t>);
    constexpr RepetitionId none;
    constexpr RepetitionId zero = 0;
    const RepetitionId seven = 7;
    CHECK(std::array{1, 2, 3}[none] == 1);
    CHECK(seven * 31 + 1 == 218);
    CHECK_FALSE(none.has_value());
    CHECK(zero.has_value());
    CHECK(none.value_or(5) == 5);
    CHECK(zero.value_or(5) == 0);
    CHECK(none != zero);
    CHECK(none != 0);
    CHECK(zero == 0);
    CHECK(seven == 7U);
    CHECK(seven != -1);
    CHECK(none == RepetitionId());
}

TEST_CASE("record: every header field survives") {
    Draft draft("gsm8k/test/0");
    draft.meta = {.visit = 3,
                  .repetition_id = 7,
                  .group_size = 16,
                  .subsequence_index = 2,
                  .last_subsequence = false,
                  .attempt = 9,
                  .source_id = -4,
                  .status = Status::truncated,
                  .n_prompt = 2,
                  .policy_version_min = 5,
                  .policy_version_max = 6,
                  .reward = -1.25,
                  .created_ns = 11,
                  .finished_ns = 12,
                  .origin = 2,
                  .user_is_text = true};
    const std::vector<std::int32_t> tokens{1, 2, 3};
    draft.set(Std::token_ids, tokens);
    Encoded encoded(draft);
    TrajectoryView view;
    REQUIRE(view.parse(encoded.bytes(), Schema::standard()).empty());
    const Meta& meta = view.meta();
    CHECK(meta.visit == 3);
    CHECK(meta.repetition_id == 7);
    CHECK(meta.group_size == 16);
    CHECK(meta.subsequence_index == 2);
    CHECK_FALSE(meta.last_subsequence);
    CHECK(meta.attempt == 9);
    CHECK(meta.source_id == -4);
    CHECK(meta.status == Status::truncated);
    CHECK(meta.n_prompt == 2);
    CHECK(meta.policy_version_min == 5);
    CHECK(meta.policy_version_max == 6);
    CHECK(meta.reward == -1.25);
    CHECK(meta.created_ns == 11);
    CHECK(meta.finished_ns == 12);
    CHECK(meta.origin == 2);
    CHECK(meta.user_is_text);
    CHECK(view.group_key() == GroupKey::of("gsm8k/test/0", 3));
    CHECK_FALSE(view.group_key() == GroupKey::of("gsm8k/test/0", 4));
}

TEST_CASE("record: an absent reward is not NaN, and NaN is kept") {
    const std::vector<std::int32_t> tokens{1};
    Draft draft("p");
    draft.set(Std::token_ids, tokens);
    TrajectoryView view;
    Encoded absent(draft);
    REQUIRE(view.parse(absent.bytes(), Schema::standard()).empty());
    CHECK_FALSE(view.meta().reward.has_value());
    draft.meta.reward = std::numeric_limits<double>::quiet_NaN();
    Encoded nan(draft);
    REQUIRE(view.parse(nan.bytes(), Schema::standard()).empty());
    REQUIRE(view.meta().reward.has_value());
    CHECK(*view.meta().reward != *view.meta().reward);
}

TEST_CASE("record: empty tokens, a failure without tokens, a 100 KB id") {
    TrajectoryView view;
    const std::vector<std::int32_t> none;
    Draft empty("p");
    empty.set(Std::token_ids, none);
    Encoded no_tokens(empty);
    REQUIRE(view.parse(no_tokens.bytes(), Schema::standard()).empty());
    CHECK(view.n_tokens() == 0);

    Draft failed("p");
    CHECK(Encoded(failed).problem == "a required column is missing");
    failed.meta.status = Status::failed;
    Encoded failure(failed);
    REQUIRE(view.parse(failure.bytes(), Schema::standard()).empty());
    CHECK(view.meta().status == Status::failed);

    const std::string id(100'000, 'x');
    Draft longest(id);
    longest.set(Std::token_ids, none);
    Encoded long_id(longest);
    REQUIRE(view.parse(long_id.bytes(), Schema::standard()).empty());
    CHECK(view.instance_id() == id);
}

TEST_CASE("record: what the schema forbids is refused by name") {
    const std::vector<std::int32_t> tokens{1, 2, 3};
    const std::vector<float> two{0.5F, 0.25F};
    Draft draft("p");
    draft.set(Std::token_ids, tokens).set(Std::logprobs, two);
    CHECK(Encoded(draft).problem == "the number of rows of a per-token column is not n_tokens");
    CHECK(Encoder(draft, Schema::standard(), Checksum::none).problem_column() == "logprobs");
    CHECK(Encoder(Draft("p"), Schema::standard(), Checksum::none).problem_column() == "token_ids");
    Draft typed("p");
    typed.set(Std::token_ids, tokens).set(Std::loss_mask, two);
    CHECK(Encoded(typed).problem == "a column's dtype differs from its declaration");
    Draft nameless("");
    nameless.set(Std::token_ids, tokens);
    CHECK(Encoded(nameless).problem == "instance_id is empty");
    Draft prompt("p");
    prompt.set(Std::token_ids, tokens);
    prompt.meta.n_prompt = 4;
    CHECK(Encoded(prompt).problem == "n_prompt is greater than n_tokens");
}

TEST_CASE("record: a header that claims what cannot be is refused on both sides by its field") {
    const std::vector<std::int32_t> tokens{1, 2, 3};
    Draft draft("p");
    draft.set(Std::token_ids, tokens);
    Encoded whole(draft);
    auto& header = *reinterpret_cast<RecordHeader*>(whole.bytes().data());
    TrajectoryView view;
    const auto read = [&] { return view.parse(whole.bytes(), Schema::standard()); };

    draft.meta.group_size = header.group_size = group_size_max;
    CHECK(Encoded(draft).problem.empty());
    CHECK(read().empty());
    for (const std::uint32_t size : {group_size_max + 1, ~std::uint32_t{0}}) {
        draft.meta.group_size = header.group_size = size;
        CHECK(Encoded(draft).problem == "group_size is greater than 65536");
        CHECK(read() == Encoded(draft).problem);
    }
    draft.meta.group_size = header.group_size = 8;
    header.status = 77;
    draft.meta.status = static_cast<Status>(header.status);
    CHECK(Encoded(draft).problem == "status is unknown");
    CHECK(read() == Encoded(draft).problem);
    header.status = 0;
    draft.meta.status = Status::completed;
    header.checksum_kind = 9;
    CHECK(Encoded(draft, Schema::standard(), static_cast<Checksum>(9)).problem ==
          "checksum is unknown");
    CHECK(read() == "checksum is unknown");
    header.checksum_kind = 0;
    header.n_prompt = 4;
    CHECK(read() == "n_prompt is greater than n_tokens");
}

// Seeded: the view accepts every draft that the encoder lets through, whatever the draft claims.
TEST_CASE("record: what may be pushed may be read") {
    rollring::test::Dice dice{4};
    const auto next = [&] { return dice.next() >> 33; };
    // Small numbers, and those at the ends of their range.
    const auto number = [&] {
        const std::uint64_t small = next() % 5;
        return next() % 3 == 0 ? ~std::uint64_t{0} - small : small;
    };
    const std::vector<std::int32_t> tokens(5, 1);
    std::size_t taken = 0;
    for (int i = 0; i < 20'000; i++) {
        Draft draft("p");
        Meta& meta = draft.meta;
        meta.visit = number();
        meta.repetition_id = static_cast<std::uint32_t>(number());
        meta.group_size = static_cast<std::uint32_t>(number());
        meta.subsequence_index = static_cast<std::uint16_t>(number());
        meta.last_subsequence = next() % 2 == 0;
        meta.attempt = static_cast<std::uint32_t>(number());
        meta.status = static_cast<Status>(next() % 8);
        meta.n_prompt = static_cast<std::uint32_t>(number());
        meta.policy_version_min = static_cast<std::int64_t>(number());
        meta.policy_version_max = static_cast<std::int64_t>(number());
        meta.created_ns = static_cast<std::int64_t>(number());
        meta.origin = static_cast<std::uint16_t>(number());
        const std::span<const std::int32_t> some(tokens.data(), next() % 6);
        if (next() % 4 != 0) draft.set(Std::token_ids, some);
        if (next() % 4 == 0) {
            draft.add({static_cast<std::uint16_t>(next() % 18),
                       {static_cast<std::uint8_t>(next() % 4),
                        static_cast<std::uint8_t>(8 << next() % 4)},
                       {static_cast<std::uint32_t>(next() % 6), 1, 1, 1},
                       static_cast<std::uint8_t>(next() % 6),
                       nullptr});
        }
        Encoded encoded(draft, Schema::standard(),
                        static_cast<Checksum>(next() % 4 == 0 ? next() % 4 : 0));
        if (!encoded.problem.empty()) continue;
        seal_record(encoded.bytes());
        TrajectoryView view;
        CHECK(view.parse(encoded.bytes(), Schema::standard()) == "");
        CHECK(view.meta().group_size == meta.group_size);
        CHECK(view.meta().subsequence_index == meta.subsequence_index);
        CHECK(view.meta().attempt == meta.attempt);
        taken++;
    }
    CHECK(taken > 1'000);
}

TEST_CASE("record: routed experts of any integer dtype, and a checksum that notices one bit") {
    const std::vector<std::int32_t> tokens{1, 2};
    const std::vector<std::uint16_t> experts(2 * 3 * 4, 77);
    Draft draft("p");
    draft.set(Std::token_ids, tokens);
    draft.add({static_cast<std::uint16_t>(Std::routed_experts),
               dtype_u16,
               {2, 3, 4, 0},
               3,
               experts.data()});
    Encoded encoded(draft, Schema::standard(), Checksum::none);
    TrajectoryView view;
    REQUIRE(view.parse(encoded.bytes(), Schema::standard()).empty());
    CHECK(view.values<std::uint16_t>(Std::routed_experts).size() == 24);
    CHECK(view.find(static_cast<std::uint16_t>(Std::routed_experts))->shape[1] == 3);
    const std::uint64_t before = view.digest(Schema::standard());
    encoded.bytes().back() = std::byte{0};  // padding is not content
    CHECK(view.digest(Schema::standard()) == before);
    encoded.bytes()[encoded.bytes().size() - 64] ^= std::byte{1};
    CHECK(view.digest(Schema::standard()) != before);
}

TEST_CASE("record: a view of many columns, copied over one of few and back") {
    std::vector<Column> more;
    more.reserve(12);
    for (int i = 0; i < 12; i++) {
        more.push_back({.name = "c" + std::to_string(i), .dtype = dtype_i32});
    }
    const auto schema = Schema::standard_with(more);
    REQUIRE(schema.has_value());
    const std::vector<std::int32_t> tokens{1, 2, 3};
    Draft few("few");
    few.set(Std::token_ids, tokens);
    Draft many("many");
    for (std::size_t i = 0; i < 31; i++) {
        if (i == static_cast<std::size_t>(Std::instance_id)) continue;
        const Column& column = schema->columns()[i];
        if (column.accepts != Accepts::exact || !column.dims.empty()) continue;
        many.add({static_cast<std::uint16_t>(i), column.dtype, {3, 0, 0, 0}, 1, tokens.data()});
    }
    REQUIRE(many.columns().size() > 20);
    Encoded encoded_few(few, *schema);
    Encoded encoded_many(many, *schema);
    TrajectoryView view_few;
    TrajectoryView view_many;
    REQUIRE(view_few.parse(encoded_few.bytes(), *schema).empty());
    REQUIRE(view_many.parse(encoded_many.bytes(), *schema).empty());
    const auto check = [&](const TrajectoryView& view, const Draft& draft) {
        REQUIRE(view.columns().size() == draft.columns().size());
        CHECK(view.instance_id() == draft.instance_id());
        for (std::size_t i = 0; i < draft.columns().size(); i++) {
            CHECK(view.columns()[i].column == draft.columns()[i].column);
            CHECK(view.columns()[i].data.size() == draft.columns()[i].bytes());
        }
    };
    TrajectoryView copy(view_many);
    check(copy, many);
    copy = view_few;
    check(copy, few);
    copy = view_many;
    check(copy, many);
    check(view_many, many);
    REQUIRE(copy.parse(encoded_few.bytes(), *schema).empty());  // where there were many
    check(copy, few);
}

TEST_CASE("record: flipping any byte of header or directory never reads outside") {
    const std::vector<std::int32_t> tokens{1, 2, 3, 4};
    Draft draft("prompt");
    draft.set(Std::token_ids, tokens);
    Encoded encoded(draft);
    const std::size_t length = 192 + 2 * 32;
    std::size_t refused = 0;
    for (std::size_t at = 0; at < length; at++) {
        for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
            const std::byte old = encoded.bytes()[at];
            encoded.bytes()[at] = static_cast<std::byte>(value);
            TrajectoryView view;
            if (!view.parse(encoded.bytes(), Schema::standard()).empty()) {
                refused++;
            } else {
                for (const ColumnView& column : view.columns()) {
                    REQUIRE(column.data.data() >= encoded.bytes().data());
                    REQUIRE(column.data.data() + column.data.size() <=
                            encoded.bytes().data() + encoded.bytes().size());
                }
            }
            encoded.bytes()[at] = old;
        }
    }
    CHECK(refused > 200);
}

TEST_CASE("record: one schema's record is refused under another") {
    const std::vector<std::int32_t> tokens{1, 2};
    Draft draft("p");
    draft.set(Std::token_ids, tokens);
    Encoded encoded(draft);
    const auto other = Schema::standard_with({{.name = "more", .dtype = dtype_f32}});
    REQUIRE(other.has_value());
    TrajectoryView view;
    CHECK(view.parse(encoded.bytes(), *other) == "record: written for another schema");
}
