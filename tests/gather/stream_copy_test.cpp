// Copies past the caches, of arrays that the caches cannot hold.

#include "stream_copy.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gather_case.hpp"

namespace rollring::test {
namespace {

using gathering::ReadAhead;

using Bytes = std::vector<std::byte>;

Bytes gathered(const GatherCase& given, const GatherColumn& wanted, const Layout& layout,
               std::uint32_t threads) {
    const auto shape = gathered_shape(given.batch, given.schema(), wanted, layout);
    REQUIRE(shape.has_value());
    Bytes array(shape->elements() * shape->dtype.bytes());
    GatherColumn column = wanted;
    column.to = array;
    REQUIRE(gather(given.batch, given.schema(), {&column, 1}, layout, threads).has_value());
    return array;
}

}  // namespace

TEST_CASE("stream copy: any length and alignment, and nothing around it") {
    std::mt19937 dice(1);
    for (int round = 0; round < 2000; round++) {
        Bytes from(below(dice, 700));
        for (std::byte& one : from) one = static_cast<std::byte>(dice());
        const std::size_t at = below(dice, 64);
        Bytes to(from.size() + 128, std::byte{0xa5});
        const std::vector<ReadAhead::Source> sources{from};
        ReadAhead ahead(sources);
        gathering::stream_copy(to.data() + at, from, ahead);
        gathering::end_streams();
        Bytes wanted(to.size(), std::byte{0xa5});
        std::ranges::copy(from, wanted.begin() + static_cast<std::ptrdiff_t>(at));
        REQUIRE(to == wanted);
    }
}

TEST_CASE("stream copy: the lines of all sources are fetched once, in their order") {
    const Bytes memory(1 << 16);
    const std::span all(memory);
    const std::vector<ReadAhead::Source> sources{all.subspan(10, 20'000), all.subspan(21'000, 64),
                                                 all.subspan(30'000, 0), all.subspan(40'000, 9001)};
    std::vector<const std::byte*> wanted;
    for (const auto& source : sources) {
        for (std::size_t at = 0; at < source.size(); at += 64) wanted.push_back(&source[at]);
    }
    ReadAhead ahead(sources);  // has fetched the first ones
    std::vector<const std::byte*> fetched;
    for (; ahead.next() != nullptr; ahead.fetch()) fetched.push_back(ahead.next());
    REQUIRE(fetched.size() < wanted.size());
    CHECK(std::ranges::equal(fetched, std::span(wanted).last(fetched.size())));

    // A copy that is further on than the lines: they go on from there.
    ReadAhead late(sources);
    late.begin(3);
    CHECK(late.next() == sources[3].data());
    late.fetch();
    late.begin(1);
    CHECK(late.next() == sources[3].data() + 64);
    late.begin(sources.size());
    CHECK(late.next() == nullptr);
    late.fetch();
}

#if defined(__x86_64__)  // elsewhere memcpy copies, and nothing is fetched
TEST_CASE("stream copy: as many lines are fetched as are copied, whatever the targets' alignment") {
    const Bytes memory(1 << 17);
    Bytes target(1 << 17);
    std::mt19937 dice(3);
    for (int round = 0; round < 200; round++) {
        std::vector<ReadAhead::Source> sources;
        std::size_t lines = 0;
        for (std::size_t at = 0; at + 1500 < memory.size(); at += sources.back().size()) {
            sources.push_back(std::span(memory).subspan(at, below(dice, 1500)));
            lines += (sources.back().size() + 63) / 64;
        }
        ReadAhead ahead(sources);
        const auto left = [&] {  // of a copy, so that `ahead` stays where it is
            std::size_t count = 0;
            for (ReadAhead rest = ahead; rest.next() != nullptr; rest.fetch()) count++;
            return count;
        };
        const std::size_t before = lines - left();
        std::size_t copied = 0;
        for (std::size_t i = 0; i < sources.size() / 2; i++) {
            ahead.begin(i);
            gathering::stream_copy(target.data() + below(dice, 64), sources[i], ahead);
            copied += (sources[i].size() + 63) / 64;
        }
        gathering::end_streams();
        REQUIRE(lines - left() == before + copied);
    }
}
#endif

TEST_CASE("gather: arrays that are copied past the caches are what each sequence is alone") {
    const GatherCase given(7, 12, 3000);
    std::mt19937 dice(7);
    std::vector<std::uint32_t> order(700);
    for (std::uint32_t& one : order) one = below(dice, 12);
    const GatherColumn ids{.column = token_ids, .shift = 1, .beyond = -7};
    const GatherColumn chosen{.column = routed_experts};
    for (const Form form : {Form::packed, Form::padded}) {
        for (const GatherColumn& column : {ids, chosen}) {
            Layout layout{.form = form,
                          .padding = {.value = 3, .side = Side::left, .length = 3000},
                          .part = form == Form::padded ? Part::response : Part::all,
                          .order = order};
            const Bytes one = gathered(given, column, layout, 1);
            if (column.column == routed_experts || form == Form::padded) {
                REQUIRE(one.size() >= gathering::streamed_from);
            }
            CHECK(gathered(given, column, layout, 3) == one);
            Bytes wanted;
            for (const std::uint32_t sequence : order) {
                layout.order = std::span(&sequence, 1);
                const Bytes alone = gathered(given, column, layout, 1);
                REQUIRE(alone.size() < gathering::streamed_from);
                wanted.insert(wanted.end(), alone.begin(), alone.end());
            }
            CHECK(one == wanted);
        }
    }
}

}  // namespace rollring::test
