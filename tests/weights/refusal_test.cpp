// Engines that take no version: their reason reaches the trainer, whole.

#include <thread>

#include "channel.hpp"
#include "words.hpp"

namespace rollring::test {
namespace {

// The publisher's error while one more engine is waited for.
std::string why_absent(Publisher& publisher) {
    const auto waited = publisher.wait_subscribers(1, soon());
    REQUIRE(!waited);
    return waited.error().message;
}

std::vector<std::string> refusals(const TestRing& ring) {
    std::vector<std::string> found;
    const auto looked = stat_weights(ring.name());
    REQUIRE_OK(looked);
    for (const SubscriberStat& one : looked->front().subscribers) {
        if (one.state == SubscriberState::refused) found.push_back(one.name + ": " + one.problem);
    }
    return found;
}

std::string long_reason() {
    std::string reason;
    while (reason.size() < 380) reason += "because of this, and ";
    return reason + "that";
}

}  // namespace

TEST_CASE("why an engine could not attach is in the error of a trainer that waits for it") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine;
    engine.add("something.else", dtype_f32, {3});
    Publisher publisher = publisher_on(ring, trainer);
    const auto refused = Subscriber::attach(ring.name(), engine.list(), {.name = "e"}, patience());
    REQUIRE(!refused);
    CHECK(refused.error().code == Errc::layout_mismatch);
    const std::string why = why_absent(publisher);
    CHECK(why.contains("'e' refused: "));
    CHECK(why.contains(refused.error().message));
    CHECK(refusals(ring) == std::vector{"e: " + refused.error().message});

    Tensors fine = small_model();
    {
        Subscriber back = subscriber_on(ring, fine, {.name = "e"});
        REQUIRE_OK(publisher.wait_subscribers(1, patience()));
        CHECK(refusals(ring).empty());
    }
}

TEST_CASE("an engine that is not attached says why it takes no version, until the next one") {
    const TestRing ring;
    Tensors trainer = small_model();
    CHECK(refuse_weights("no-such-ring", "e", "no").error().code == Errc::not_found);
    CHECK(*refuse_weights(ring.name(), "e", "nobody listens") == 0);
    Publisher publisher = publisher_on(ring, trainer);
    CHECK(*refuse_weights(ring.name(), "e", "first") == 1);
    CHECK(*refuse_weights(ring.name(), "e", long_reason()) == 1);
    for (int i = 0; i < 9; i++) {
        CHECK(*refuse_weights(ring.name(), "other" + std::to_string(i), "no") == 1);
    }
    CHECK(refusals(ring).size() == 4);
    CHECK(*refuse_weights(ring.name(), "e", long_reason()) == 1);
    const std::string why = why_absent(publisher);
    CHECK(why.contains("'e' refused: " + long_reason()));
    CHECK(!why.contains("first"));
    REQUIRE_OK(send(publisher, trainer, 1).commit(patience()));
    CHECK(refusals(ring).empty());
    CHECK(!why_absent(publisher).contains("refused"));
}

TEST_CASE("an attached engine refuses a version that it has not asked for") {
    TrainerAndEngine pair;
    Transaction transaction = send(pair.publisher, pair.trainer, 1);
    pair.subscriber.refuse("asleep: " + long_reason());
    const auto report = transaction.commit(patience());
    REQUIRE(!report);
    CHECK(report.error().code == Errc::rejected);
    CHECK(report.error().message.contains("asleep: " + long_reason()));
    transaction.abort();
    CHECK(pair.subscriber.state() == SubscriberState::ready);

    std::thread engine([&] { CHECK(*take(pair.subscriber) == 2); });
    REQUIRE_OK(send(pair.publisher, pair.trainer, 2).commit(patience()));
    engine.join();
    // Nothing is under way: the reason is there to be seen, and holds up nothing.
    pair.subscriber.refuse("asleep");
    CHECK(stat_weights(pair.ring.name())->front().subscribers.front().problem == "asleep");
    std::thread again([&] { CHECK(*take(pair.subscriber) == 3); });
    REQUIRE_OK(send(pair.publisher, pair.trainer, 3).commit(patience()));
    again.join();
}

TEST_CASE("an engine that refuses in the midst of a version holds a mixture, or the old one") {
    for (const bool in_place : {true, false}) {
        const TestRing ring;
        Tensors trainer = small_model();
        Tensors engine = small_model();
        Publisher publisher = publisher_on(ring, trainer);
        Subscriber subscriber = subscriber_on(ring, engine, {.in_place = in_place});
        Transaction transaction = send(publisher, trainer, 1);
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        subscriber.refuse("no more");
        CHECK(update->stage(patience()).error().code == Errc::invalid_argument);
        CHECK(transaction.commit(patience()).error().message.contains("no more"));
        CHECK(subscriber.state() ==
              (in_place ? SubscriberState::poisoned : SubscriberState::ready));
    }
}

TEST_CASE("an engine hears the whole reason of a version that was given up") {
    TrainerAndEngine pair;
    Transaction transaction = send(pair.publisher, pair.trainer, 1);
    auto update = pair.subscriber.next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    transaction.abort(long_reason());
    const auto adopted = update->adopt(patience());
    REQUIRE(!adopted);
    CHECK(adopted.error().message.contains(long_reason()));
}

TEST_CASE("a text that does not fit is cut between characters") {
    CHECK(cut_text("abc", 3) == "abc");
    CHECK(cut_text("abc", 2) == "ab");
    CHECK(cut_text("a\u00fc", 2) == "a");
    CHECK(cut_text("\u4e2d\u6587", 5) == "\u4e2d");
    SharedText<8> text{};
    text.store("1234567\u00fc");
    CHECK(text.load() == "1234567");
}

}  // namespace rollring::test
