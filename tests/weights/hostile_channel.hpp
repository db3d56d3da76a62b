#pragma once
// A channel that strangers come to, in a test that must not be disturbed by them.

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "channel.hpp"
#include "control_socket.hpp"
#include "stranger.hpp"

namespace rollring::test {

using namespace weights;

inline std::size_t open_descriptors() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        static_cast<void>(entry);
        count++;
    }
    return count;
}

inline std::string directory() {
    return "/dev/shm/rollring-weights." + std::to_string(geteuid());
}

// A publisher with one good subscriber, and syncs between them.
class Channel {
  public:
    Channel() : publisher(publisher_on(ring, trainer, {.slots = 2, .slot_bytes = 4096})) {
        subscriber.emplace(subscriber_on(ring, engine, {.name = "good"}));
    }
    // A version goes through, whatever others do.
    void works() {
        version_++;
        std::thread engine_side([&] { REQUIRE_OK(take(*subscriber)); });
        REQUIRE_OK(send(publisher, trainer, version_).commit(patience()));
        engine_side.join();
        CHECK(engine.holds(version_));
        CHECK(subscriber->live_version() == version_);
    }
    [[nodiscard]] Fd connect() const {
        auto socket = connect_to(ring.name(), 0);
        REQUIRE_OK(socket);
        return std::move(*socket);
    }
    [[nodiscard]] Message hello(MessageKind kind = MessageKind::hello_subscriber) const {
        return hello_on(ring, kind);
    }
    // Until the publisher has as many descriptors as before: it has closed those that strangers
    // opened.
    static void await_descriptors(std::size_t count) {
        const Deadline deadline = patience();
        // One count, for the last of many strangers may still come out of the listening queue.
        std::size_t now = open_descriptors();
        for (; now > count && !deadline.passed(); now = open_descriptors()) nap();
        CHECK(now == count);
    }

    TestRing ring;
    Tensors trainer = small_model();
    Tensors engine = small_model();
    Publisher publisher;
    std::optional<Subscriber> subscriber;

  private:
    std::int64_t version_ = 0;
};

}  // namespace rollring::test
