// Staging by difference at its edges: shared memory, values that compare equal but differ in bits,
// and models of a few elements.

#include <bit>
#include <limits>
#include <thread>

#include "channel.hpp"

namespace rollring::test {
namespace {

WeightTensor tensor(const std::string& name, std::vector<float>& memory, bool tied = false) {
    return {.name = name,
            .dtype = dtype_f32,
            .shape = {static_cast<std::int64_t>(memory.size())},
            .data = memory.data(),
            .tied = tied};
}

// A trainer and an engine of given tensors. The engine's list has the default size.
struct Ends {
    Ends(const std::vector<WeightTensor>& from, const std::vector<WeightTensor>& into)
        : publisher([&] {
              auto made = Publisher::create(ring.name(), from);
              REQUIRE_OK(made);
              return std::move(*made);
          }()),
          subscriber([&] {
              auto made =
                  Subscriber::attach(ring.name(), into, {.staging = Staging::delta}, patience());
              REQUIRE_OK(made);
              return std::move(*made);
          }()) {}

    DeltaReport pass(std::int64_t version) {
        std::thread taking([&] { CHECK(take(subscriber).value_or(-1) == version); });
        auto open = publisher.begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        const auto committed = open->commit(patience());
        taking.join();
        REQUIRE_OK(committed);
        return subscriber.delta();
    }

    TestRing ring{};
    Publisher publisher;
    Subscriber subscriber;
};

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
    std::vector<std::uint32_t> bits;
    bits.reserve(values.size());
    for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
    return bits;
}

}  // namespace

TEST_CASE("tied tensors of one memory are exchanged once, and those of two memories twice") {
    for (const bool one_memory : {true, false}) {
        CAPTURE(one_memory);
        std::vector<float> trained(1000, 1);
        std::vector<float> embed(1000);
        std::vector<float> head(1000);
        std::vector<float>& second = one_memory ? embed : head;
        Ends ends({tensor("embed", trained), tensor("head", trained, true)},
                  {tensor("embed", embed), tensor("head", second)});
        ends.pass(1);
        const std::vector<float> first = trained;
        for (std::size_t i = 0; i < trained.size(); i += 9) trained[i] += 1;
        const DeltaReport report = ends.pass(2);
        CHECK(report.elements == (one_memory ? 1000 : 2000));
        CHECK(report.changed == (one_memory ? 112 : 224));
        CHECK((embed == trained && second == trained));
        REQUIRE_OK(ends.subscriber.rollback());
        CHECK((embed == first && second == first));
    }
}

TEST_CASE("values are compared by their bits") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> trained{nan, 0.0F, 1.0F, std::numeric_limits<float>::infinity()};
    std::vector<float> held = trained;
    Ends ends({tensor("w", trained)}, {tensor("w", held)});
    CHECK(ends.pass(1).changed == 0);
    const auto before = bits_of(held);
    trained[0] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(nan) ^ 1U);
    trained[1] = -0.0F;
    CHECK(ends.pass(2).changed == 2);
    CHECK(bits_of(held) == bits_of(trained));
    REQUIRE_OK(ends.subscriber.rollback());
    CHECK(bits_of(held) == before);
}

TEST_CASE("a model of a few elements may change in all of them") {
    std::vector<float> trained{1, 2, 3};
    std::vector<float> held(3);
    std::vector<float> nothing;
    Ends ends({tensor("w", trained), tensor("empty", nothing)},
              {tensor("w", held), tensor("empty", nothing)});
    ends.pass(1);
    trained = {4, 5, 6};
    const DeltaReport report = ends.pass(2);
    CHECK((report.changed == 3 && report.way == DeltaWay::list));
    CHECK(held == trained);
    REQUIRE_OK(ends.subscriber.rollback());
    CHECK(held == std::vector<float>{1, 2, 3});
}

TEST_CASE("an engine that went back takes the next version, whatever ends the one between") {
    std::vector<float> trained(500, 1);
    std::vector<float> held(500);
    Ends ends({tensor("w", trained)}, {tensor("w", held)});
    ends.pass(1);
    const std::vector<float> first = trained;
    trained[7] = 2;
    ends.pass(2);
    REQUIRE_OK(ends.subscriber.rollback());
    CHECK(ends.subscriber.live_version() == 1);
    {
        trained[9] = 3;
        auto open = ends.publisher.begin(3);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        auto update = ends.subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        open->abort();
        CHECK(update->adopt(patience()).error().code == Errc::aborted);
    }
    CHECK((held == first && ends.subscriber.live_version() == 1));
    CHECK(ends.publisher.behind() == 0);
    CHECK(ends.pass(4).changed == 2);
    CHECK(held == trained);
    REQUIRE_OK(ends.subscriber.rollback());
    CHECK((held == first && ends.subscriber.live_version() == 1));
}

}  // namespace rollring::test
