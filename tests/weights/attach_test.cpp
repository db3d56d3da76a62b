// How an engine comes to a publisher: once, for as long as its caller waits, and not seen before.

#include <atomic>

#include "channel.hpp"
#include "greeting.hpp"

namespace rollring::test {

TEST_CASE("the caller of attach may end it, with or without a ring or a publisher") {
    const TestRing ring;
    Tensors engine = small_model();
    for (const std::string& name : {ring.name(), ring.name() + "-none"}) {
        int asked = 0;
        const SubscriberOptions options{.keep_waiting = [&] { return ++asked < 3; }};
        const auto made = Subscriber::attach(name, engine.list(), options, Deadline::never());
        REQUIRE(!made);
        CHECK(made.error().code == (name == ring.name() ? Errc::timed_out : Errc::not_found));
        CHECK(asked == 3);
    }
}

TEST_CASE("work of this process takes nothing of the time that an engine waits for others") {
    weights::Patience patience(Deadline::after_ms(1));
    while (!patience.over()) {
    }
    patience.extend(1'000'000'000'000);
    CHECK(!patience.over());
    weights::Patience forever(Deadline::never());
    forever.extend(1'000'000'000'000);
    CHECK(!forever.over());
    weights::Patience none(Deadline::now());
    none.extend(1'000'000'000'000);
    CHECK(none.over());
}

TEST_CASE("published tensors can be looked up without attaching") {
    const TestRing ring;
    Tensors trainer = small_model();
    CHECK(Subscriber::published(ring.name(), {}, soon()).error().code == Errc::timed_out);
    Publisher publisher = publisher_on(ring, trainer);
    const auto tensors = Subscriber::published(ring.name(), {}, patience());
    REQUIRE_OK(tensors);
    REQUIRE(tensors->size() == trainer.list().size());
    for (std::size_t i = 0; i < tensors->size(); i++) {
        CHECK((*tensors)[i].name == trainer.list()[i].name);
        CHECK((*tensors)[i].shape == trainer.list()[i].shape);
    }
    CHECK(publisher.handles_passed() == 0);
    CHECK(publisher.wait_subscribers(1, soon()).error().code == Errc::timed_out);
    CHECK(send(publisher, trainer, 1).commit(patience())->subscribers == 0);
}

}  // namespace rollring::test
