// What a subscriber says of its reading when its device and its own thread speak at once.

#include "reading.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "host_mover.hpp"

namespace rollring::test {
namespace {

// Keeps the one call that it is asked for.
struct SlowMover : device::HostMover {
    device::Reached reached = nullptr;
    void* context = nullptr;
    Result<void> when_reached(Stream, device::Reached call, void* with) override {
        reached = call;
        context = with;
        return {};
    }
};

// Spins, so that both sides start at once; not for long, as they may share a core.
void wait_for(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
    for (int i = 0; word != value; i++) {
        if (i > 1000) std::this_thread::yield();
    }
}

}  // namespace

TEST_CASE("a publication that is left while the device reaches its last part is said to be read") {
    SlowMover mover;
    auto page = std::make_unique<weights::SubscriberPage>();
    Bell own{};
    Bell publisher{};
    weights::Reading reading(mover, *page, own, publisher);
    std::atomic<std::uint64_t> turn = 0;  // the publication that both sides are to end now
    std::atomic<std::uint64_t> over = 0;
    constexpr std::uint64_t publications = 30'000;
    std::thread driver([&] {
        for (std::uint64_t i = 1; i <= publications; i++) {
            wait_for(turn, i);
            mover.reached(mover.context);
            over = i;
        }
    });
    std::uint64_t unsaid = 0;
    for (std::uint64_t i = 1; i <= publications; i++) {
        REQUIRE(reading.finish_part(i - 1, 0, {}));
        turn = i;
        for (std::uint64_t wait = 0; wait < i % 64; wait++) turn.load();  // meet it everywhere
        reading.leave(i);
        wait_for(over, i);
        unsaid += peek(page->publications_read) < i ? 1 : 0;
    }
    driver.join();
    CHECK(unsaid == 0);
}

}  // namespace rollring::test
