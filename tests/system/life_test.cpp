// The signs of life: forks, zombies, descriptors that were passed on.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "liveness.hpp"
#include "segment.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::collect;
using rollring::test::in_child;
using rollring::test::patience;
using rollring::test::start_child;
using rollring::test::TestRing;

namespace {

const std::vector<std::int32_t> tokens{1, 2, 3};

Draft draft() {
    Draft made("prompt");
    made.set(Std::token_ids, tokens);
    return made;
}

// Polls until something happened to a producer that had joined.
Event next_end(Consumer& consumer) {
    const Deadline deadline = patience();
    Event event{};
    Record record;
    while (!deadline.passed()) {
        if (consumer.wait(record, Deadline::after_ms(1)) == Poll::record) {
            consumer.release(record.ref);
        }
        while (consumer.next_event(event)) {
            if (event.kind != Event::Kind::producer_joined) return event;
        }
    }
    FAIL("nothing was told");
    return event;
}

struct Pipe {
    int ends[2]{};
    Pipe() { REQUIRE(pipe(ends) == 0); }
    ~Pipe() {
        close(ends[0]);
        close(ends[1]);
    }
    void say() const { static_cast<void>(!write(ends[1], "x", 1)); }
    void hear() const {
        char byte;
        static_cast<void>(!read(ends[0], &byte, 1));
    }
};

}  // namespace

TEST_CASE("life: what a forked child inherits is inert") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    REQUIRE(producer.push(draft(), patience()) == Push::ok);
    const int status = in_child([&] {
        Record record;
        if (producer.push(draft(), Deadline::now()) != Push::closed) return 1;
        if (consumer.poll(record) != Poll::closed) return 2;
        producer.flush();
        producer.close();
        return 0;
    });
    CHECK(status == 0);
    REQUIRE(producer.push(draft(), patience()) == Push::ok);
    Record record;
    for (std::uint64_t i = 0; i < 2; i++) {
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        CHECK(record.sequence == i);
        consumer.release(record.ref);
    }
    CHECK(stat_ring(ring.name())->lanes[0].state == LaneState::active);
}

TEST_CASE("life: a producer is dead though a child that it forked lives") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    const Pipe ready;
    const Pipe go;
    const pid_t parent = start_child([&] {
        auto producer = ring.producer({.name = "parent"});
        if (producer.push(draft(), patience()) != Push::ok) return 1;
        if (fork() == 0) {
            close(go.ends[1]);
            ready.say();
            go.hear();  // until the test closes its end
            _exit(0);
        }
        ready.hear();
        ready.say();
        static_cast<void>(raise(SIGKILL));
        return 1;
    });
    CHECK(collect(parent) == 128 + SIGKILL);
    const Event event = next_end(consumer);
    CHECK(event.kind == Event::Kind::producer_died);
    CHECK(event.producer == "parent");
    CHECK(event.records == 1);
    go.say();  // the grandchild was alive all the time
}

TEST_CASE("life: a zombie is dead, a consumer's seat too") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    const pid_t pid = start_child([&] {
        auto producer = ring.producer({.name = "zombie"});
        auto consumer = ring.consumer();
        if (producer.push(draft(), patience()) != Push::ok) return 1;
        static_cast<void>(raise(SIGKILL));
        return 1;
    });
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
    auto consumer = ring.consumer();  // it is not collected
    const Event event = next_end(consumer);
    CHECK(event.kind == Event::Kind::producer_died);
    CHECK(event.producer == "zombie");
    CHECK(event.records == 1);
    CHECK(collect(pid) == 128 + SIGKILL);
}

TEST_CASE("life: a descriptor that was passed on does not share its sender's life") {
    const TestRing ring;
    const auto segment = Segment::attach(ring.name(), patience());
    REQUIRE(segment.has_value());
    const Pipe ready;
    // The child has the very same open file as we have.
    const pid_t pid = start_child([&] {
        const auto lock = LifeLock::take(segment->fd(), LifeByte::lane(3));
        if (!lock || !lock->has_value()) return 1;
        ready.say();
        pause();
        return 1;
    });
    ready.hear();
    CHECK(alive(segment->fd(), LifeByte::lane(3)));
    CHECK_FALSE(alive(segment->fd(), LifeByte::lane(4)));
    const auto second = LifeLock::take(segment->fd(), LifeByte::lane(3));
    REQUIRE(second.has_value());
    CHECK_FALSE(second->has_value());
    kill(pid, SIGKILL);
    CHECK(collect(pid) == 128 + SIGKILL);
    CHECK_FALSE(alive(segment->fd(), LifeByte::lane(3)));
}

// The lock is the segment's and close-on-exec: the next program under this pid is not the producer.
TEST_CASE("life: a producer that becomes another program is dead, though its pid lives") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    const Pipe until;
    const pid_t pid = start_child([&] {
        auto producer = ring.producer({.name = "exec"});
        if (producer.push(draft(), patience()) != Push::ok) return 1;
        dup2(until.ends[0], 0);
        close(until.ends[1]);
        execlp("cat", "cat", nullptr);
        return 1;
    });
    const Event event = next_end(consumer);
    CHECK(event.kind == Event::Kind::producer_died);
    CHECK(event.producer == "exec");
    CHECK(event.records == 1);
    CHECK(kill(pid, 0) == 0);
    kill(pid, SIGKILL);
    CHECK(collect(pid) == 128 + SIGKILL);
}

// As if its number had been given to a new process: the pid in the ring names one that lives.
TEST_CASE("life: a dead producer is dead, whoever has its pid now") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = ring.consumer();
    const pid_t pid = start_child([&] {
        auto producer = ring.producer({.name = "recycled"});
        if (producer.push(draft(), patience()) != Push::ok) return 1;
        const auto segment = Segment::attach(ring.name(), patience());
        const auto page =
            segment->map(segment->geometry().owner_offset(producer.lane()), page_bytes, true);
        page->at<LaneOwner>(0).pid = static_cast<std::uint32_t>(getppid());
        static_cast<void>(raise(SIGKILL));
        return 1;
    });
    CHECK(collect(pid) == 128 + SIGKILL);
    CHECK(stat_ring(ring.name())->lanes.at(0).pid == static_cast<std::uint32_t>(getpid()));
    CHECK(stat_ring(ring.name())->lanes[0].state == LaneState::dead);
    const Event event = next_end(consumer);
    CHECK(event.kind == Event::Kind::producer_died);
    CHECK(event.records == 1);
}

TEST_CASE("life: a forked child's reservation and consumer write nothing") {
    const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
    auto producer = ring.producer();
    auto consumer = ring.consumer();
    for (int i = 0; i < 4; i++) REQUIRE(producer.push(draft(), patience()) == Push::ok);
    std::vector<RecordRef> refs(3);
    Record record;
    for (RecordRef& ref : refs) {
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        ref = record.ref;
    }
    std::optional<Reservation> room(std::in_place);
    REQUIRE(producer.reserve(draft(), patience(), *room) == Push::ok);
    const auto segment = Segment::attach(ring.name(), patience());
    REQUIRE(segment.has_value());
    const auto all = segment->map(0, segment->geometry().share_seats_offset(), false);
    REQUIRE(all.has_value());
    const auto bytes = [&] { return std::vector(all->data(), all->data() + all->bytes()); };
    const auto before = bytes();
    const int status = in_child([&] {
        if (consumer.release(refs[0])) return 1;
        const auto released = consumer.release_all(refs, 0);
        if (released || released.error().code != Errc::forked) return 2;
        if (consumer.problem().empty()) return 3;
        if (consumer.wait(record, patience()) != Poll::closed) return 4;
        if (!room->values<std::int32_t>(Std::token_ids).empty()) return 5;
        room->shrink(1);
        if (room->commit() != Push::closed) return 6;
        if (producer.cancel_group("prompt", 0)) return 7;
        if (producer.open_group("prompt", 0, Deadline::now()) != Push::closed) return 8;
        room.reset();
        {
            const Consumer gone = std::move(consumer);
        }
        {
            const Producer gone = std::move(producer);
        }
        return 0;
    });
    CHECK(status == 0);
    CHECK(bytes() == before);
    CHECK(consumer.release(refs[1]));
    CHECK(consumer.release_all(std::vector{refs[0], refs[2]}, 0).has_value());
    CHECK(room->commit() == Push::ok);
    for (int i = 0; i < 2; i++) {
        REQUIRE(consumer.wait(record, patience()) == Poll::record);
        CHECK(consumer.release(record.ref));
    }
}

// Between the open file and its place in the table of descriptors that a forked child closes.
TEST_CASE("life: a byte that is taken while another thread forks is not the child's, too") {
    const TestRing ring;
    const auto segment = Segment::attach(ring.name(), patience());
    REQUIRE(segment.has_value());
    constexpr int forks = 40;
    std::vector<pid_t> children;
    const Pipe until;
    const Pipe ready;
    std::atomic<bool> enough{false};
    std::thread taker([&] {
        while (!enough.load()) {
            const auto lock = LifeLock::take(segment->fd(), LifeByte::lane(3));
            REQUIRE(lock.has_value());  // without a value while a new child has not closed it yet
        }
    });
    children.reserve(forks);
    for (int i = 0; i < forks; i++) {
        children.push_back(start_child([&] {
            close(until.ends[1]);
            ready.say();
            until.hear();
            return 0;
        }));
    }
    for (int i = 0; i < forks; i++) ready.hear();
    enough = true;
    taker.join();
    CHECK_FALSE(alive(segment->fd(), LifeByte::lane(3)));
    for (int i = 0; i < forks; i++) until.say();
    for (const pid_t child : children) CHECK(collect(child) == 0);
}
