// The rules that subscribers and publishers may rely on: which of them are waited for, hold parts,
// and say so.

#include <filesystem>
#include <thread>

#include "channel.hpp"
#include "channel_names.hpp"
#include "rollring/relay.hpp"

namespace rollring::test {
TEST_CASE("a ring with the longest name there is has a channel of its own") {
    constexpr std::size_t longest = 128;
    const std::string begin = "test-" + std::to_string(getpid()) + "-";
    const std::string base = begin + std::string(longest - 1 - begin.size(), 'n');
    const std::string names[] = {base + "a", base + "b"};
    for (const auto& name : names) REQUIRE_OK(create_ring(name));
    {
        Tensors trainer = small_model();
        Tensors engine = small_model();
        auto publisher = Publisher::create(names[0], trainer.list());
        REQUIRE_OK(publisher);
        auto subscriber = Subscriber::attach(names[0], engine.list(), {}, patience());
        REQUIRE_OK(subscriber);
        const auto stat = stat_weights(names[0]);
        REQUIRE_OK(stat);
        REQUIRE(stat->size() == 1);
        CHECK(stat->front().subscribers.size() == 1);
        const auto other = stat_weights(names[1]);
        REQUIRE_OK(other);
        CHECK(other->empty());
        auto second = Publisher::create(names[1], trainer.list());
        CHECK(second.has_value());
    }
    for (const auto& name : names) REQUIRE_OK(remove_ring(name));
    CHECK(create_ring(base + "ab").error().code == Errc::invalid_argument);
}

TEST_CASE("versions grow strictly, also over publishers") {
    const TestRing ring;
    Tensors trainer = small_model();
    {
        Publisher publisher = publisher_on(ring, trainer);
        REQUIRE_OK(send(publisher, trainer, 7).commit(patience()));
        CHECK(publisher.begin(7).error().code == Errc::stale_version);
        auto open = publisher.begin(8);
        REQUIRE_OK(open);
        CHECK(publisher.begin(9).error().code == Errc::busy);
        open->abort();
        CHECK(publisher.begin(8).error().code == Errc::stale_version);
        CHECK(Publisher::create(ring.name(), trainer.list()).error().code == Errc::busy);
    }
    Publisher publisher = publisher_on(ring, trainer);
    CHECK(publisher.begin(7).error().code == Errc::stale_version);
    CHECK(publisher.begin(-3).error().code == Errc::stale_version);
    REQUIRE_OK(publisher.begin(8));
}

TEST_CASE("nothing is committed before all have staged") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors one = small_model();
    Tensors two = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    Subscriber first = subscriber_on(ring, one, {.name = "first"});
    Subscriber second = subscriber_on(ring, two, {.name = "second"});
    Transaction transaction = send(publisher, trainer, 1);
    auto update = first.next(patience());
    REQUIRE_OK(update);
    REQUIRE_OK(update->load(patience()));
    CHECK(update->adopt(soon()).error().code == Errc::invalid_argument);
    REQUIRE_OK(update->stage(patience()));
    CHECK(first.state() == SubscriberState::staged);
    CHECK(update->adopt(soon()).error().code == Errc::timed_out);
    const auto late = transaction.commit(soon());
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);
    CHECK(late.error().message.find("'second'") != std::string::npos);
    CHECK(late.error().message.find("'first'") == std::string::npos);
    CHECK(stat_ring(ring.name())->policy_version == -1);
    std::thread other([&] { CHECK(*take(second) == 1); });
    REQUIRE_OK(transaction.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    other.join();
    REQUIRE_OK(publisher.wait_live(2, patience()));
}

TEST_CASE("an abort poisons who had written in place, and the next whole version cures") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors tensors[4] = {small_model(), small_model(), small_model(), small_model()};
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = small_slot});
    Subscriber untouched = subscriber_on(ring, tensors[0], {.name = "untouched"});
    Subscriber begun = subscriber_on(ring, tensors[1], {.name = "begun"});
    Subscriber aside = subscriber_on(ring, tensors[2], {.name = "aside", .in_place = false});

    trainer.fill(1);
    auto transaction = publisher.begin(1);
    REQUIRE_OK(transaction);
    CHECK(transaction->put_all(soon()).error().code == Errc::timed_out);  // two slots are full
    auto half = begun.next(patience());
    REQUIRE_OK(half);
    REQUIRE_OK(half->part(0, patience()));
    REQUIRE_OK(half->done_reading(0));
    auto other = aside.next(patience());
    REQUIRE_OK(other);
    REQUIRE_OK(other->part(0, patience()));
    transaction->abort("the loss is not a number");

    CHECK(half->part(1, patience()).error().code == Errc::aborted);
    CHECK(begun.state() == SubscriberState::poisoned);
    CHECK(begun.problem().find("the loss is not a number") != std::string_view::npos);
    REQUIRE_OK(other->done_reading(0));
    CHECK(other->part(1, patience()).error().code == Errc::aborted);
    CHECK(aside.state() == SubscriberState::ready);
    CHECK(untouched.next(soon()).error().code == Errc::timed_out);
    CHECK(untouched.state() == SubscriberState::ready);

    std::thread engines[3];
    Subscriber* all[3] = {&untouched, &begun, &aside};
    for (int i = 0; i < 3; i++) {
        engines[i] = std::thread([&, i] { CHECK(*take(*all[i]) == 2); });
    }
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    for (auto& engine : engines) engine.join();
    for (int i = 0; i < 3; i++) {
        CHECK(tensors[i].holds(2));
        CHECK(all[i]->state() == SubscriberState::ready);
    }
}

TEST_CASE_FIXTURE(TrainerAndEngine, "who staged in place what is then aborted is poisoned, too") {
    {
        Transaction transaction = send(publisher, trainer, 1);
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        transaction.abort();
        CHECK(update->adopt(patience()).error().code == Errc::aborted);
    }
    CHECK(subscriber.state() == SubscriberState::poisoned);
    CHECK(subscriber.live_version() == -1);
    std::thread other([&] { CHECK(*take(subscriber) == 2); });
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    other.join();
}

TEST_CASE_FIXTURE(TrainerAndEngine, "a rejection reaches the trainer with its reason") {
    Transaction transaction = send(publisher, trainer, 1);
    {
        auto update = subscriber.next(patience());
        REQUIRE_OK(update);
        update->reject("no such expert", "layer.0.q");
    }
    const auto commit = transaction.commit(patience());
    REQUIRE(!commit);
    CHECK(commit.error().code == Errc::rejected);
    CHECK(commit.error().message.find("'engine': version 1: tensor 'layer.0.q': no such expert") !=
          std::string::npos);
    transaction.abort();
    CHECK(subscriber.state() == SubscriberState::ready);  // it had read nothing
    std::thread other([&] { CHECK(*take(subscriber) == 2); });
    REQUIRE_OK(send(publisher, trainer, 2).commit(patience()));
    other.join();
}

TEST_CASE_FIXTURE(TrainerAndEngine,
                  "an update that is dropped rejects, one that is over does not") {
    Transaction transaction = send(publisher, trainer, 1);
    auto old = subscriber.next(patience());
    REQUIRE_OK(old);
    old->reject("not now");
    CHECK(transaction.commit(patience()).error().code == Errc::rejected);
    transaction.abort();
    Transaction second = send(publisher, trainer, 2);
    auto update = subscriber.next(patience());
    REQUIRE_OK(update);
    old->reject("again");
    CHECK(old->version() == 1);
    CHECK(old->stage(soon()).error().code == Errc::invalid_argument);
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(second.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(update->version() == 2);
    transaction.abort();  // over as well
    CHECK(transaction.commit(patience()).error().code == Errc::invalid_argument);
    CHECK(publisher.committed_version() == 2);
}

TEST_CASE_FIXTURE(TrainerAndEngine, "a version that is over answers every step alike") {
    Transaction first = send(publisher, trainer, 1);
    REQUIRE_OK(first.check_open());
    first.abort();
    auto second = publisher.begin(2);
    REQUIRE_OK(second);
    const auto over = [](const auto& answer) {
        return !answer && answer.error().code == Errc::invalid_argument &&
               answer.error().message ==
                   "version 1 is over, committed or aborted: begin another one";
    };
    CHECK(over(first.check_open()));
    CHECK(over(first.put_all(soon())));
    CHECK(over(first.put("no-such", nullptr, soon())));
    CHECK(over(RelayTransaction::lend_part(first, soon())));
    CHECK(over(RelayTransaction::part_written(first)));
    CHECK(over(first.publish()));
    CHECK(over(first.wait_staged(soon())));
    CHECK(over(first.commit(soon())));
    CHECK(first.version() == 1);
    first.abort();  // and not the one that is open
    REQUIRE_OK(second->check_open());
}

TEST_CASE("a subscriber that leaves is not waited for") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors one = small_model();
    Tensors two = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = small_slot});
    Subscriber stays = subscriber_on(ring, one, {.name = "stays"});
    auto leaves = std::make_unique<Subscriber>(subscriber_on(ring, two, {.name = "leaves"}));
    std::thread other([&] { CHECK(*take(stays) == 1); });
    trainer.fill(1);
    auto transaction = publisher.begin(1);
    REQUIRE_OK(transaction);
    CHECK(transaction->put_all(soon()).error().code == Errc::timed_out);
    leaves.reset();
    REQUIRE_OK(transaction->put_all(patience()));
    REQUIRE_OK(transaction->publish());
    const auto report = transaction->commit(patience());
    REQUIRE_OK(report);
    CHECK(report->subscribers == 1);
    other.join();
    Subscriber back = subscriber_on(ring, two, {.name = "leaves"});
    REQUIRE_OK(publisher.wait_subscribers(2, patience()));
}

TEST_CASE("an expelled subscriber keeps its slots, and others go on in new ones") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors one = small_model();
    Tensors two = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.slots = 2, .slot_bytes = small_slot});
    Subscriber good = subscriber_on(ring, one, {.name = "good"});
    Subscriber stuck = subscriber_on(ring, two, {.name = "stuck"});
    trainer.fill(1);
    auto transaction = publisher.begin(1);
    REQUIRE_OK(transaction);
    std::thread other([&] { CHECK(*take(good) == 1); });
    const auto late = transaction->put_all(soon());  // two slots are full
    CHECK(late.error().code == Errc::timed_out);
    CHECK(late.error().message.find("'stuck'") != std::string::npos);
    auto update = stuck.next(patience());
    REQUIRE_OK(update);
    const auto views = update->part(0, patience());
    REQUIRE_OK(views);
    const std::vector<std::byte> before((*views)[0].data, (*views)[0].data + 4000);
    CHECK(publisher.expel("nobody").error().code == Errc::not_found);
    REQUIRE_OK(publisher.expel("stuck"));
    REQUIRE_OK(transaction->put_all(patience()));
    REQUIRE_OK(transaction->publish());
    REQUIRE_OK(transaction->commit(patience()));
    other.join();
    for (std::int64_t version = 2; version < 6; version++) {
        std::thread next([&] { CHECK(*take(good) == version); });
        REQUIRE_OK(send(publisher, trainer, version).commit(patience()));
        next.join();
        CHECK(one.holds(version));
    }
    CHECK(std::memcmp(before.data(), (*views)[0].data, before.size()) == 0);
    CHECK(update->part(2, patience()).error().code == Errc::invalid_argument);
    REQUIRE_OK(update->done_reading(0));
    CHECK(update->part(1, patience()).error().code == Errc::expelled);
    CHECK(stuck.state() == SubscriberState::poisoned);
    Subscriber back = subscriber_on(ring, two, {.name = "stuck"});
    std::thread again([&] { CHECK(*take(back) == 6); });
    std::thread next([&] { CHECK(*take(good) == 6); });
    REQUIRE_OK(send(publisher, trainer, 6).commit(patience()));
    again.join();
    next.join();
    CHECK(two.holds(6));
}

TEST_CASE("a publisher that closes is missed by name") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    auto publisher = std::make_unique<Publisher>(publisher_on(ring, trainer));
    Subscriber subscriber = subscriber_on(ring, engine);
    std::thread other([&] { CHECK(*take(subscriber) == 1); });
    REQUIRE_OK(send(*publisher, trainer, 1).commit(patience()));
    other.join();
    publisher.reset();
    const auto gone = subscriber.next(patience());
    REQUIRE(!gone);
    CHECK(gone.error().code == Errc::peer_gone);
    CHECK(gone.error().message.find("holds all of version 1") != std::string::npos);
    const auto none = Subscriber::attach(ring.name(), engine.list(), {}, soon());
    CHECK(none.error().code == Errc::timed_out);
}

TEST_CASE("a trainer that waits for engines is told that its channel's name was removed") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    auto first = std::make_unique<Publisher>(publisher_on(ring, trainer));
    const std::string path = channel::directory_path() + "/" + channel::file_name(ring.name(), 0);
    REQUIRE(std::filesystem::remove(path));
    const auto told = first->wait_subscribers(1, patience());
    REQUIRE(!told);
    CHECK(told.error().code == Errc::not_found);
    CHECK(told.error().message.find(path) != std::string::npos);

    // The name is another publisher's now, and stays when the first one goes.
    Publisher second = publisher_on(ring, trainer);
    CHECK(first->wait_subscribers(1, patience()).error().code == Errc::not_found);
    first.reset();
    CHECK(std::filesystem::exists(path));
    const Subscriber subscriber = subscriber_on(ring, engine);
    REQUIRE_OK(second.wait_subscribers(1, patience()));
}

TEST_CASE("a trainer that waits for engines is told that its ring was removed") {
    const TestRing ring;
    Tensors trainer = small_model();
    Publisher publisher = publisher_on(ring, trainer);
    REQUIRE_OK(remove_ring(ring.name(), true));
    const auto told = publisher.wait_subscribers(1, patience());
    REQUIRE(!told);
    CHECK(told.error().code == Errc::not_found);
    CHECK(told.error().message.find("was removed") != std::string::npos);
}

TEST_CASE("names are unique, seats are bounded") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher = publisher_on(ring, trainer, {.subscribers_max = 2});
    Subscriber a = subscriber_on(ring, engine, {.name = "a"});
    const auto attach = [&](const std::string& name) {
        return Subscriber::attach(ring.name(), engine.list(), {.name = name}, patience());
    };
    CHECK(attach("a").error().code == Errc::busy);
    Subscriber b = subscriber_on(ring, engine, {.name = "b"});
    CHECK(attach("c").error().code == Errc::busy);
}

TEST_CASE("the channel from outside") {
    const TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    CHECK(stat_weights("no-such-ring").error().code == Errc::not_found);
    CHECK(stat_weights(ring.name())->empty());
    Publisher publisher = publisher_on(ring, trainer, {.checksums = true});
    Subscriber subscriber = subscriber_on(ring, engine);
    std::thread other([&] { CHECK(*take(subscriber) == 3); });
    REQUIRE_OK(send(publisher, trainer, 3).commit(patience()));
    other.join();
    const auto all = stat_weights(ring.name());
    REQUIRE_OK(all);
    REQUIRE(all->size() == 1);
    const WeightsStat& stat = all->front();
    CHECK(stat.publisher == "trainer");
    CHECK(stat.tensors == 7);
    CHECK(stat.committed_version == 3);
    CHECK(stat.state == ChannelState::committed);
    CHECK(stat.syncs == 1);
    CHECK(stat.memory == "host");
    CHECK(stat.checksums);
    REQUIRE(stat.subscribers.size() == 1);
    CHECK(stat.subscribers[0].name == "engine");
    CHECK(stat.subscribers[0].live_version == 3);
    CHECK(stat.subscribers[0].alive);
    CHECK(stat.subscribers[0].state == SubscriberState::ready);
}

}  // namespace rollring::test
