// Staging by difference: every value after each version, whatever share of them changed; the old
// ones until the commit, and again after a rollback.

#include <algorithm>
#include <random>
#include <thread>

#include "channel.hpp"
#include "find_changes.hpp"
#include "host_mover.hpp"
#include "subscriber_tensors.hpp"
#include "view_model.hpp"

namespace rollring::test {
namespace {

using Dice = std::mt19937_64;
constexpr std::uint64_t boundless = ~std::uint64_t{0};

// Changes each element with this probability, to any other value.
void change(Tensors& tensors, double density, Dice& dice) {
    std::bernoulli_distribution changes(density);
    for (std::size_t i = 0; i < tensors.memory().size(); i++) {
        auto& bytes = tensors.memory()[i];
        const std::size_t each = tensors.list()[i].dtype.bytes();
        for (std::size_t at = 0; at < bytes.size(); at += each) {
            if (changes(dice))
                bytes[at + dice() % each] ^= static_cast<std::byte>(1 + dice() % 255);
        }
    }
}

Tensors mixed_model() {
    Tensors tensors = small_model();
    tensors.add("long", dtype_bf16, {70'000});
    tensors.add("bytes", dtype_u8, {9'001});
    tensors.add("doubles", dtype_f64, {1'100});
    return tensors;
}

SubscriberOptions by_difference(DeltaFallback fallback, std::uint64_t list_bytes = 0) {
    return {.staging = Staging::delta, .delta_fallback = fallback, .delta_list_bytes = list_bytes};
}

// A trainer, and an engine that stages by difference.
struct Pair {
    explicit Pair(const SubscriberOptions& options, const PublisherOptions& channel = {})
        : publisher(publisher_on(ring, trainer, channel)),
          subscriber(subscriber_on(ring, engine, options)) {}

    Transaction send(std::int64_t version) {
        auto open = publisher.begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        return std::move(*open);
    }
    // The whole passage of the trainer's present values.
    void pass(std::int64_t version) {
        std::thread taking([&] { CHECK(*take(subscriber) == version); });
        auto open = publisher.begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        REQUIRE_OK(open->commit(patience()));
        taking.join();
    }
    [[nodiscard]] bool same() { return engine.memory() == trainer.memory(); }

    TestRing ring{};
    Tensors trainer = mixed_model();
    Tensors engine = mixed_model();
    Publisher publisher;
    Subscriber subscriber;
};

template <class Element>
void check_finding(Dice& dice) {
    for (int round = 0; round < 200; round++) {
        const auto elements = static_cast<std::uint32_t>(dice() % (device::changes_max + 1));
        const std::size_t shift = dice() % 3;
        const double density = static_cast<double>(dice() % 1001) / 1000;
        std::vector<std::byte> live(elements * sizeof(Element) + shift);
        for (std::byte& one : live) one = static_cast<std::byte>(dice());
        std::vector<std::byte> next = live;
        const auto first = static_cast<std::uint16_t>(dice() % (65536 - device::changes_max));
        std::vector<std::uint16_t> places;
        std::vector<Element> values;
        for (std::uint32_t i = 0; i < elements; i++) {
            std::byte* const at = next.data() + shift + i * sizeof(Element);
            if (std::bernoulli_distribution(density)(dice)) {
                at[dice() % sizeof(Element)] ^= std::byte{0x40};
                places.push_back(static_cast<std::uint16_t>(first + i));
                std::memcpy(&values.emplace_back(), at, sizeof(Element));
            }
        }
        for (const auto find :
             {device::find_changes<Element>, device::find_changes_plain<Element>}) {
            std::vector<std::uint16_t> index(elements + device::changes_spare);
            std::vector<Element> value(elements + device::changes_spare);
            index.resize(find(live.data() + shift, next.data() + shift, elements, first,
                              device::Changes<Element>{index.data(), value.data()}));
            value.resize(index.size());
            REQUIRE(index == places);
            REQUIRE(value == values);
        }
    }
}

}  // namespace

TEST_CASE("the elements that differ, of all sizes") {
    Dice dice(11);
    check_finding<std::uint8_t>(dice);
    check_finding<std::uint16_t>(dice);
    check_finding<std::uint32_t>(dice);
    check_finding<std::uint64_t>(dice);
}

TEST_CASE("random views, by difference, exchanged twice") {
    device::HostMover mover;
    std::size_t compared = 0;
    for (unsigned seed = 1; seed <= 120; seed++) {
        CAPTURE(seed);
        Dice dice(seed);
        constexpr std::uint64_t slot_bytes[] = {512, 1024, 3584, 16384, 0};
        const ViewSizes sizes{.row_multiple = seed % 3 == 0 ? 8U : 1U,
                              .slot_bytes = slot_bytes[seed % 5]};
        const ViewCase given = random_views(sizes, dice);
        std::vector<std::byte> arena = given.arena;
        // Some of the values are there already.
        for (std::size_t i = 0; i < arena.size(); i++) {
            if (dice() % 100 < seed % 101) arena[i] = given.wanted[i];
        }
        const std::vector<std::byte> before = arena;
        auto made = weights::compile_difference(given.manifest.packing, given.placed(arena.data()),
                                                true, mover);
        REQUIRE_OK(made);
        device::Difference& difference = **made;
        for (int round = 0; round < 2; round++) {
            difference.clear(boundless, 0);
            for (std::uint32_t part = 0; part < given.slots.size(); part++) {
                const std::byte* const slot = given.slots[part].data();
                const auto fits = difference.compare(part, {&slot, 1}, {}, patience());
                REQUIRE_OK(fits);
                REQUIRE(*fits == device::Fit::fits);
            }
            REQUIRE((arena == before));
            REQUIRE_OK(difference.swap(given.slots.size(), {}));
            REQUIRE((arena == given.wanted));
            compared += difference.size().changed;
            REQUIRE_OK(difference.swap(given.slots.size(), {}));
            REQUIRE((arena == before));
        }
    }
    CHECK(compared > 0);
}

TEST_CASE("versions of every density arrive bit by bit, and go back") {
    Dice dice(42);
    for (const std::uint64_t slot_bytes : {std::uint64_t{0}, small_slot}) {
        Pair pair(by_difference(DeltaFallback::beside), {.slot_bytes = slot_bytes});
        for (std::int64_t version = 1; version <= 60; version++) {
            CAPTURE(version);
            const double density = version % 7 == 0 ? 0 : static_cast<double>(dice() % 601) / 1000;
            const auto before = pair.engine.memory();
            change(pair.trainer, version == 1 ? 1 : density, dice);
            pair.pass(version);
            REQUIRE(pair.same());
            const DeltaReport report = pair.subscriber.delta();
            CHECK(report.version == version);
            if (version % 3 != 1 && density == 0)
                CHECK((report.changed == 0 && report.list_bytes == 0));
            if (version % 3 != 0) continue;
            REQUIRE_OK(pair.subscriber.rollback());
            REQUIRE(pair.engine.memory() == before);
            CHECK(pair.subscriber.live_version() == version - 1);
            CHECK(pair.subscriber.state() == SubscriberState::ready);
            CHECK(pair.publisher.behind() == 0);
            CHECK(pair.subscriber.rollback().error().code == Errc::invalid_argument);
            CHECK(pair.engine.memory() == before);
        }
    }
}

TEST_CASE("the tensors are only read until the commit, whatever ends the version") {
    Dice dice(7);
    Pair pair(by_difference(DeltaFallback::beside), {.slot_bytes = small_slot});
    change(pair.trainer, 1, dice);
    pair.pass(1);
    const auto held = pair.engine.memory();

    change(pair.trainer, 0.3, dice);
    std::int64_t version = 2;
    for (const bool staged : {false, true}) {
        CAPTURE(staged);
        auto open = pair.publisher.begin(version++);
        REQUIRE_OK(open);
        auto update = [&] {
            std::thread putting([&] { REQUIRE_OK(open->put_all(patience())); });
            auto got = pair.subscriber.next(patience());
            REQUIRE_OK(got);
            REQUIRE_OK(got->load(patience()));
            putting.join();
            return std::move(*got);
        }();
        CHECK(pair.engine.memory() == held);
        REQUIRE_OK(open->publish());
        if (staged) REQUIRE_OK(update.stage(patience()));
        CHECK(pair.subscriber.rollback().error().code == Errc::busy);
        open->abort("the loss is not a number");
        if (staged) {
            CHECK(update.wait_committed(patience()).error().code == Errc::aborted);
        } else {
            update.reject("the engine sleeps");
        }
        CHECK(pair.subscriber.state() == SubscriberState::ready);
        CHECK(pair.subscriber.live_version() == 1);
        CHECK(pair.engine.memory() == held);
    }
    // The list of version 1 went when version 2 began to load.
    CHECK(pair.subscriber.rollback().error().code == Errc::invalid_argument);

    std::thread putting([&] { REQUIRE_OK(pair.send(version).commit(patience())); });
    auto update = pair.subscriber.next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    CHECK(update->wait_committed(soon()).error().code == Errc::invalid_argument);
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(update->wait_committed(patience()));
    putting.join();
    CHECK(pair.engine.memory() == held);
    REQUIRE_OK(update->adopt(Deadline::now()));
    CHECK(pair.same());
}

TEST_CASE("a trainer that goes before its commit poisons nobody") {
    Dice dice(8);
    const TestRing ring;
    Tensors trainer = mixed_model();
    Tensors engine = mixed_model();
    auto publisher = std::make_unique<Publisher>(publisher_on(ring, trainer));
    Subscriber subscriber = subscriber_on(ring, engine, by_difference(DeltaFallback::beside));
    change(trainer, 0.5, dice);
    const auto held = engine.memory();
    {
        auto open = publisher->begin(1);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        open->abort();
        publisher.reset();
        CHECK(!update->adopt(patience()));
    }
    CHECK(subscriber.state() == SubscriberState::ready);
    CHECK(engine.memory() == held);
}

TEST_CASE("a version that does not fit into the list is refused by name, and the next one fits") {
    Dice dice(9);
    Pair pair(by_difference(DeltaFallback::refuse, 16 << 10), {.slot_bytes = small_slot});
    change(pair.trainer, 1, dice);
    pair.pass(1);  // serves nothing yet: in place
    CHECK(pair.subscriber.delta().way == DeltaWay::in_place);
    CHECK(pair.same());
    CHECK(pair.subscriber.rollback().error().code == Errc::invalid_argument);
    const auto held = pair.engine.memory();
    const auto good = pair.trainer.memory();

    change(pair.trainer, 0.6, dice);
    {
        auto open = pair.publisher.begin(2);
        REQUIRE_OK(open);
        std::thread taking([&] {
            auto update = pair.subscriber.next(patience());
            REQUIRE_OK(update);
            const auto loaded = update->load(patience());
            CHECK(loaded.error().code == Errc::too_large);
            CHECK(loaded.error().message.find("too much has changed") != std::string::npos);
        });
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        const auto committed = open->commit(patience());
        taking.join();
        REQUIRE(!committed);
        CHECK(committed.error().code == Errc::rejected);
        CHECK(committed.error().message.find("too much has changed") != std::string::npos);
    }
    CHECK(pair.subscriber.state() == SubscriberState::ready);
    CHECK(pair.engine.memory() == held);

    for (std::size_t i = 0; i < good.size(); i++) {
        std::ranges::copy(good[i], pair.trainer.memory()[i].begin());  // at the same address
    }
    change(pair.trainer, 0.01, dice);
    pair.pass(3);
    CHECK(pair.same());
    CHECK(pair.subscriber.delta().way == DeltaWay::list);
    REQUIRE_OK(pair.subscriber.rollback());
    CHECK(pair.engine.memory() == held);
    CHECK(pair.subscriber.live_version() == 1);
}

TEST_CASE("a version that does not fit goes beside, or in place, where that is allowed") {
    Dice dice(10);
    for (const DeltaFallback fallback : {DeltaFallback::beside, DeltaFallback::in_place}) {
        const bool beside = fallback == DeltaFallback::beside;
        const DeltaWay other = beside ? DeltaWay::beside : DeltaWay::in_place;
        CAPTURE(name(other));
        Pair pair(by_difference(fallback, 16 << 10), {.slot_bytes = small_slot});
        change(pair.trainer, 1, dice);
        pair.pass(1);
        CHECK(pair.subscriber.delta().way == other);
        REQUIRE(pair.same());
        const auto held = pair.engine.memory();
        for (std::int64_t version = 2; version <= 9; version++) {
            const bool much = version % 2 == 0;
            change(pair.trainer, much ? 0.6 : 0.005, dice);
            pair.pass(version);
            REQUIRE(pair.same());
            const DeltaReport report = pair.subscriber.delta();
            CHECK(report.way == (much ? other : DeltaWay::list));
            CHECK((report.changed > 0 && report.elements >= report.changed));
        }
        // Aborted when it is staged: only in place it is in the tensors already.
        change(pair.trainer, 0.6, dice);
        const auto before = pair.engine.memory();
        auto open = pair.publisher.begin(10);
        REQUIRE_OK(open);
        std::thread putting([&] { REQUIRE_OK(open->put_all(patience())); });
        auto update = pair.subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        putting.join();
        REQUIRE_OK(update->stage(patience()));
        open->abort();
        CHECK(update->adopt(patience()).error().code == Errc::aborted);
        CHECK(pair.subscriber.state() ==
              (beside ? SubscriberState::ready : SubscriberState::poisoned));
        CHECK((pair.engine.memory() == before) == beside);
        pair.pass(11);
        CHECK(pair.same());
        CHECK(pair.subscriber.state() == SubscriberState::ready);
    }
}

TEST_CASE("engines of both kinds share a channel, and one that begins alike lists nothing") {
    Dice dice(12);
    const TestRing ring;
    Tensors trainer = mixed_model();
    Tensors tensors[3] = {mixed_model(), mixed_model(), mixed_model()};
    change(trainer, 1, dice);
    for (std::size_t i = 0; i < trainer.memory().size(); i++) {
        std::ranges::copy(trainer.memory()[i], tensors[0].memory()[i].begin());
    }
    Publisher publisher = publisher_on(ring, trainer, {.checksums = true});
    SubscriberOptions options[3] = {
        by_difference(DeltaFallback::refuse), by_difference(DeltaFallback::beside), {}};
    std::vector<Subscriber> engines;
    for (int i = 0; i < 3; i++) {
        options[i].name = "engine-" + std::to_string(i);
        engines.push_back(subscriber_on(ring, tensors[i], options[i]));
    }
    for (std::int64_t version = 1; version <= 5; version++) {
        if (version > 1) change(trainer, 0.02, dice);
        std::vector<std::thread> taking;
        taking.reserve(engines.size());
        for (Subscriber& engine : engines) {
            taking.emplace_back([&] { CHECK(*take(engine) == version); });
        }
        auto open = publisher.begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        REQUIRE_OK(open->commit(patience()));
        for (auto& one : taking) one.join();
        for (auto& one : tensors) REQUIRE(one.memory() == trainer.memory());
        if (version == 1) CHECK(engines[0].delta().changed == 0);
        const auto stat = stat_weights(ring.name());
        REQUIRE_OK(stat);
        for (std::size_t i = 0; i < 3; i++) {
            const DeltaReport shown = stat->front().subscribers[i].delta;
            const DeltaReport own = engines[i].delta();
            CHECK(shown.version == (i < 2 ? version : -1));
            CHECK((shown.changed == own.changed && shown.elements == own.elements &&
                   shown.list_bytes == own.list_bytes && shown.swap_ns == own.swap_ns &&
                   shown.compare_ns == own.compare_ns && shown.way == own.way));
        }
    }
    CHECK(engines[2].rollback().error().code == Errc::invalid_argument);
}

TEST_CASE("staging by difference is refused by name where it cannot be") {
    const TestRing ring;
    std::vector<float> memory(200);
    const std::vector<WeightTensor> from{
        {.name = "w", .dtype = dtype_f32, .shape = {10, 10}, .data = memory.data()}};
    auto publisher = Publisher::create(ring.name(), from);
    REQUIRE_OK(publisher);
    const auto error = [&](const std::vector<WeightTensor>& into) {
        auto made =
            Subscriber::attach(ring.name(), into, by_difference(DeltaFallback::beside), patience());
        return made ? Error{} : made.error();
    };
    CHECK(error({}).code == Errc::invalid_argument);
    CHECK(error({}).message.find("needs the engine's tensors") != std::string::npos);
    auto overlaps = from;
    overlaps[0].strides = {5, 1};
    CHECK(error(overlaps).code == Errc::unsupported);
    CHECK(error(overlaps).message.find("'w': its elements may overlap") != std::string::npos);
    auto padded = from;
    padded[0].strides = {20, 1};
    CHECK(error(padded).message.empty());

    auto subscriber =
        Subscriber::attach(ring.name(), from, by_difference(DeltaFallback::beside), patience());
    REQUIRE_OK(subscriber);
    auto open = publisher->begin(1);
    REQUIRE_OK(open);
    REQUIRE_OK(open->put_all(patience()));
    REQUIRE_OK(open->publish());
    auto update = subscriber->next(patience());
    REQUIRE_OK(update);
    CHECK(update->part(0, patience()).error().code == Errc::invalid_argument);
}

}  // namespace rollring::test
