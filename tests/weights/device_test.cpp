// The behavior of the two ends when a device stops getting anywhere, or fails.

#include <thread>

#include "channel.hpp"
#include "control_socket.hpp"
#include "device_pair.hpp"
#include "stranger.hpp"

namespace rollring::test {

TEST_CASE("a trainer's stream that stops costs each call its deadline, and nothing is lost") {
    DevicePair pair(with_all_in_slots());
    FakeDevice& gpu = fake_device(trainer_gpu);
    gpu.stopped = true;
    Transaction version = send(*pair.publisher, pair.trainer, 1);
    CHECK(gpu.queued() == pair.publisher->parts());
    const auto late = version.commit(soon());
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);
    CHECK(late.error().message.contains("the device did not finish packing"));
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    const auto none = update->part(0, soon());
    REQUIRE(!none);
    CHECK(none.error().code == Errc::timed_out);

    std::thread engine([&] {
        REQUIRE_OK(update->load(patience()));
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(update->adopt(patience()));
    });
    gpu.go_on();
    REQUIRE_OK(version.commit(patience()));
    engine.join();
    CHECK(pair.engine.holds(1));
}

TEST_CASE("a put that has to wait for another stream ends by its deadline and can go on") {
    DevicePair pair(with_all_in_slots());
    FakeDevice& gpu = fake_device(trainer_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    int streams[2];
    const auto put = [&](std::size_t tensor, int stream, Deadline deadline) {
        return version->put(pair.trainer.list()[tensor].name, nullptr, deadline,
                            Stream{&streams[stream]});
    };
    REQUIRE_OK(put(0, 0, patience()));
    gpu.stopped = true;
    const auto late = put(1, 1, soon());
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);
    gpu.go_on();
    for (std::size_t i = 1; i < pair.trainer.list().size(); i++) {
        REQUIRE_OK(put(i, 1, patience()));
    }
    REQUIRE_OK(version->publish());
    std::thread engine([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(version->commit(patience()));
    engine.join();
    CHECK(pair.engine.holds(1));
}

TEST_CASE("a part whose packing was refused is packed when put is called again") {
    DevicePair pair(with_all_in_slots());
    FakeDevice& gpu = fake_device(trainer_gpu);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    gpu.refuses = true;
    const auto refused = version->put_all(patience());
    REQUIRE(!refused);
    CHECK(refused.error().code == Errc::device_error);
    gpu.refuses = false;
    REQUIRE_OK(version->put_all(patience()));
    REQUIRE_OK(version->publish());
    std::thread engine([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(version->commit(patience()));
    engine.join();
    CHECK(pair.engine.holds(1));
}

TEST_CASE("a trainer's device that fails is named, and the engine keeps what it has") {
    DevicePair pair(with_all_in_slots());
    std::thread first([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 1).commit(patience()));
    first.join();
    FakeDevice& gpu = fake_device(trainer_gpu);
    gpu.stopped = true;
    Transaction version = send(*pair.publisher, pair.trainer, 2);
    gpu.failed = true;
    const auto broken = version.commit(soon());
    REQUIRE(!broken);
    CHECK(broken.error().code == Errc::device_error);
    version.abort("the device failed");
    CHECK(pair.subscriber->live_version() == 1);
    CHECK(pair.engine.holds(1));
    pair.subscriber.reset();
    // Callbacks into the publisher may still come, for all it knows: it is better leaked. Here they
    // are run, so that the leak checker has nothing to say.
    gpu.failed = false;
    gpu.go_on();
    pair.publisher.reset();
    CHECK(gpu.blocks == 0);
}

TEST_CASE("an engine's stream that stops is waited for before its slot is filled again") {
    DevicePair pair;  // 2 slots, more parts
    FakeDevice& gpu = fake_device(engine_gpu);
    REQUIRE(pair.publisher->parts() > 2);
    pair.trainer.fill(1);
    auto version = pair.publisher->begin(1);
    REQUIRE_OK(version);
    auto full = version->put_all(soon());  // both slots
    REQUIRE(!full);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    const auto part = update->part(0, patience());
    REQUIRE_OK(part);
    const std::byte* at = part->front().data;
    const std::vector<std::byte> read(at, at + 100);
    gpu.stopped = true;
    REQUIRE_OK(update->done_reading(0));  // but the device still reads
    full = version->put_all(soon());
    REQUIRE(!full);
    CHECK(full.error().code == Errc::timed_out);
    CHECK(full.error().message.contains("'engine'"));
    CHECK(std::memcmp(at, read.data(), read.size()) == 0);

    SUBCASE("and when it goes on, so does the version") {
        gpu.go_on();
        std::thread engine([&] {
            for (std::uint32_t i = 1; i < update->parts(); i++) {
                REQUIRE_OK(update->part(i, patience()));
                REQUIRE_OK(update->done_reading(i));
            }
            REQUIRE_OK(update->stage(patience()));
            REQUIRE_OK(update->adopt(patience()));
        });
        REQUIRE_OK(version->put_all(patience()));
        REQUIRE_OK(version->publish());
        REQUIRE_OK(version->commit(patience()));
        engine.join();
        CHECK(pair.subscriber->live_version() == 1);
    }
    SUBCASE("also when the engine has given the version up") {
        update->reject("changed its mind");
        const auto next = pair.subscriber->next(soon());
        REQUIRE(!next);
        CHECK(next.error().code == Errc::timed_out);
        CHECK(next.error().message.contains("its device to finish reading"));
        full = version->put_all(soon());
        REQUIRE(!full);
        CHECK(std::memcmp(at, read.data(), read.size()) == 0);
        gpu.go_on();
        REQUIRE_OK(version->put_all(patience()));
        version->abort();
    }
}

TEST_CASE("a part that the engine's device does not verify in time can be asked for again") {
    PublisherOptions options = with_all_in_slots();
    options.checksums = true;
    DevicePair pair(options);
    FakeDevice& gpu = fake_device(engine_gpu);
    Transaction version = send(*pair.publisher, pair.trainer, 1);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    const auto late = update->part(0, Deadline::now());
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);
    gpu.go_on();
    REQUIRE_OK(update->load(patience()));
    REQUIRE_OK(update->stage(patience()));
    REQUIRE_OK(version.commit(patience()));
    REQUIRE_OK(update->adopt(patience()));
    CHECK(pair.engine.holds(1));
}

TEST_CASE("stage waits for the engine's device, not beyond its deadline") {
    DevicePair pair(with_all_in_slots());
    FakeDevice& gpu = fake_device(engine_gpu);
    Transaction version = send(*pair.publisher, pair.trainer, 1);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    gpu.stopped = true;
    REQUIRE_OK(update->load(patience()));
    const auto late = update->stage(soon());
    REQUIRE(!late);
    CHECK(late.error().code == Errc::timed_out);

    SUBCASE("and can be called again") {
        gpu.go_on();
        REQUIRE_OK(update->stage(patience()));
        REQUIRE_OK(version.commit(patience()));
        REQUIRE_OK(update->adopt(patience()));
        CHECK(pair.engine.holds(1));
    }
    SUBCASE("and says so if the device has failed") {
        gpu.failed = true;
        const auto broken = update->stage(patience());
        REQUIRE(!broken);
        CHECK(broken.error().code == Errc::device_error);
        CHECK(pair.subscriber->state() == SubscriberState::poisoned);
        const auto told = version.commit(patience());
        REQUIRE(!told);
        CHECK(told.error().code == Errc::rejected);
        gpu.failed = false;  // or the subscriber would be leaked, as it should
        gpu.go_on();
    }
}

TEST_CASE("memory passed by legacy handles is kept until all have closed it") {
    PublisherOptions options = with_all_in_slots();
    options.memory = PayloadMemory::legacy_ipc;
    DevicePair pair(options);
    std::thread first([&] { REQUIRE_OK(take(*pair.subscriber)); });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 1).commit(patience()));
    first.join();
    std::thread closing([&] { pair.publisher.reset(); });
    const auto gone = pair.subscriber->next(patience());
    REQUIRE(!gone);
    CHECK(gone.error().code == Errc::peer_gone);
    CHECK(fake_device(trainer_gpu).blocks == 16);
    pair.subscriber.reset();
    closing.join();
    CHECK(fake_device(trainer_gpu).blocks == 0);
}

TEST_CASE("a publisher that closes does not wait for an engine that has not attached yet") {
    PublisherOptions options = with_all_in_slots();
    options.memory = PayloadMemory::legacy_ipc;
    DevicePair pair(options);
    pair.subscriber.reset();
    auto socket = weights::connect_to(pair.ring.name(), 0);
    REQUIRE_OK(socket);
    const auto hello = hello_on(pair.ring, weights::MessageKind::hello_subscriber);
    REQUIRE_OK(weights::send_message(socket->get(), hello));
    const auto welcome = weights::receive_message(socket->get(), patience());
    REQUIRE_OK(welcome);
    CHECK(welcome->message.kind == weights::MessageKind::welcome);
    pair.publisher.reset();
    CHECK(fake_device(trainer_gpu).blocks == 0);  // and none is leaked
}

TEST_CASE("a tensor whose memory is released is refused by name, and nothing is copied") {
    DevicePair pair(with_all_in_slots());
    FakeDevice& trainer = fake_device(trainer_gpu);
    FakeDevice& engine = fake_device(engine_gpu);
    const WeightTensor& ours = pair.trainer.list()[1];
    const WeightTensor& theirs = pair.engine.list()[1];
    {
        auto version = pair.publisher->begin(1);
        REQUIRE_OK(version);
        trainer.released = ours.data;
        const auto put = version->put_all(patience());
        REQUIRE(!put);
        CHECK(put.error().code == Errc::already_released);
        CHECK(put.error().message.contains(ours.name));
        REQUIRE_OK(version->put(pair.trainer.list()[0].name, nullptr, patience()));
        CHECK(version->put(ours.name, nullptr, patience()).error().code == Errc::already_released);
        std::vector<std::byte> elsewhere(1000);
        REQUIRE_OK(version->put(ours.name, elsewhere.data(), patience()));
        REQUIRE_OK(version->put_all(patience()));  // of the others, whose memory is there
        trainer.released = nullptr;
    }
    Transaction version = send(*pair.publisher, pair.trainer, 2);
    auto update = pair.subscriber->next(patience());
    REQUIRE_OK(update);
    engine.released = theirs.data;
    const auto loaded = update->load(patience());
    REQUIRE(!loaded);
    CHECK(loaded.error().code == Errc::already_released);
    CHECK(loaded.error().message.contains(theirs.name));
    const auto report = version.commit(patience());
    REQUIRE(!report);
    CHECK(report.error().message.contains(theirs.name));
    CHECK(pair.subscriber->state() == SubscriberState::ready);
    version.abort();
    const auto absent = pair.subscriber->check_memory(pair.engine.list());
    REQUIRE(!absent);
    CHECK(absent.error().code == Errc::already_released);
    CHECK(absent.error().message.contains(theirs.name));
    engine.released = nullptr;
    REQUIRE_OK(pair.subscriber->check_memory(pair.engine.list()));

    std::thread again([&] { CHECK(*take(*pair.subscriber) == 3); });
    REQUIRE_OK(send(*pair.publisher, pair.trainer, 3).commit(patience()));
    again.join();
    CHECK(pair.engine.holds(3));
}

}  // namespace rollring::test
