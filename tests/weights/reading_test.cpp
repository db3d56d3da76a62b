// A subscriber's words about its reading when its device and its own thread speak at once.

#include "reading.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

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

// One part that is being read, of a publication that is left.
struct Left {
    SlowMover mover;
    std::unique_ptr<weights::SubscriberPage> page = std::make_unique<weights::SubscriberPage>();
    Bell own{};
    Bell publisher{};
    weights::Reading reading{mover, *page, own, publisher};
};

// Meets the other side where both of them run, and goes on alone where one has lost its core: a
// wait for the other's turn at each step would take as long as the machine is busy.
void meet(std::atomic<std::size_t>& mine, const std::atomic<std::size_t>& other, std::size_t at) {
    constexpr int spins = 1'000;
    mine = at;
    for (int i = 0; i < spins && other < at; i++) {
    }
}

}  // namespace

TEST_CASE("a publication that is left while the device reaches its last part is said to be read") {
    constexpr std::size_t rounds = 150;
    constexpr std::size_t publications = 1'000;  // of a round
    std::vector<std::unique_ptr<Left>> all(publications);
    std::atomic<std::size_t> device_at = 0;
    std::atomic<std::size_t> subscriber_at = 0;
    std::barrier<> both(2);
    std::thread driver([&] {
        for (std::size_t round = 0; round < rounds; round++) {
            both.arrive_and_wait();  // the publications of the round are there
            for (std::size_t i = 0; i < publications; i++) {
                meet(device_at, subscriber_at, i + 1);
                all[i]->mover.reached(all[i]->mover.context);
            }
            both.arrive_and_wait();
        }
    });
    std::uint64_t unsaid = 0;
    std::uint64_t unfinished = 0;
    for (std::size_t round = 0; round < rounds; round++) {
        for (auto& left : all) {
            left = std::make_unique<Left>();
            unfinished += left->reading.finish_part(0, 0, {}) ? 0 : 1;
        }
        device_at = subscriber_at = 0;
        both.arrive_and_wait();
        for (std::size_t i = 0; i < publications; i++) {
            meet(subscriber_at, device_at, i + 1);
            for (std::size_t wait = 0; wait < i % 64; wait++) device_at.load();  // everywhere
            all[i]->reading.leave(1);
        }
        both.arrive_and_wait();
        for (const auto& left : all) unsaid += peek(left->page->publications_read) < 1 ? 1 : 0;
    }
    driver.join();
    CHECK(unfinished == 0);
    CHECK(unsaid == 0);
}

}  // namespace rollring::test
