// Tests that need namespaces, and so root: a small /dev/shm, and producers in another PID
// namespace. Skipped (exit 77) where that is not permitted.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "rollring/stash.hpp"
#include "support/in_child.hpp"
#include "support/load.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t mib = 1 << 20;

// A /dev/shm of our own. False if we may not.
bool small_shm(const char* option) {
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, option) == 0;
}

template <class T>
void require_remedy(const Result<T>& got, const char* what, const char* words = "free") {
    require(!got.has_value(), "{} worked in a /dev/shm that is too small", what);
    const Error& error = got.error();
    require(error.code == Errc::not_enough_shared_memory, "{}: {}", what, error.to_string());
    for (const char* word : {"--shm-size", "/dev/shm", "remount", words}) {
        require(error.message.find(word) != std::string::npos, "no {} in: {}", word, error.message);
    }
}

// Fills and drains a lane completely: every page of it must really be there.
void use_all(Producer& producer, Consumer& consumer) {
    Load load;
    std::uint64_t sent = 0;
    while (producer.push(load.draft(1, sent), Deadline::now()) == Push::ok) sent++;
    require(sent * 8400 > producer.stats().lane_bytes / 2, "only {} records fit", sent);
    Record record;
    for (std::uint64_t i = 0; i < sent; i++) {
        require(consumer.wait(record, patience()) == Poll::record, "record {} is missing", i);
        Load::verify(record);
        consumer.release(record.ref);
    }
}

// Docker's default: 64 MB. A ring of default sizes serves four producers and a trainer there; two
// lanes of 40 MiB do not fit together.
int docker_default() {
    if (!small_shm("size=64m")) return skipped;
    require_remedy(create_ring("large", {.lane_bytes = 256 * mib}),
                   "create of a ring of large lanes", "enlarge it to 17 GiB");
    // Two lanes of 8 GiB, and a trainer's first part of the spill, which is as large as a lane.
    require_remedy(create_ring("two", {.lanes = 2, .lane_bytes = 8 * 1024 * mib}),
                   "create of a ring of two larger lanes", "enlarge it to 25 GiB");
    require(list_rings().empty(), "a leftover of a ring that could not be made");
    require(create_ring("default").has_value(), "create of the default ring");
    {
        auto stash = Stash::open("default", {});
        require(stash.has_value(), "{}", stash ? "" : stash.error().to_string());
        std::vector<Producer> producers;
        for (int i = 0; i < 4; i++) {
            auto producer = Producer::open("default");
            require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
            require(producer->stats().lane_bytes > 131'072 * 9 * 2,
                    "a lane for one record of 131,072");
            producers.push_back(std::move(*producer));
        }
    }
    require(remove_ring("default").has_value(), "remove");
    require(create_ring("two", {.lanes = 2, .lane_bytes = 40 * mib}).has_value(), "create");
    auto first = Producer::open("two");
    auto consumer = Consumer::open("two");
    require(first.has_value() && consumer.has_value(), "the first lane fits");
    const std::uint64_t free_bytes = shared_memory_space().free_bytes;
    require_remedy(Producer::open("two", {.attach_timeout = {}}), "the second lane",
                   "a lane of ring two needs");
    require(shared_memory_space().free_bytes == free_bytes, "a failed attach keeps {} bytes",
            free_bytes - shared_memory_space().free_bytes);
    use_all(*first, *consumer);
    first->close();
    Record record;
    for (const Deadline deadline = patience(); consumer->producers_active() > 0;) {
        require(!deadline.passed() && consumer->poll(record) == Poll::empty, "not given back");
    }
    auto second = Producer::open("two", {.attach_timeout = {}});  // the first has given back
    require(second.has_value(), "{}", second ? "" : second.error().to_string());
    use_all(*second, *consumer);
    return 0;
}

// A worker that has opened a producer has memory for its finished rollouts, however much memory
// other processes have taken since.
int open_and_idle() {
    if (!small_shm("size=64m")) return skipped;
    require(create_ring("r", {.lanes = 2, .lane_bytes = 8 * mib, .spill_bytes = 0}).has_value(),
            "create");
    auto first = Producer::open("r");
    auto second = Producer::open("r");
    auto consumer = Consumer::open("r");
    require(first.has_value() && second.has_value() && consumer.has_value(), "attach");
    const int full = open("/dev/shm/full", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const std::string page(4096, 'x');
    while (write(full, page.data(), page.size()) > 0) {
    }
    require(shared_memory_space().free_bytes == 0, "something is free");
    use_all(*first, *consumer);
    use_all(*second, *consumer);
    close(full);
    return 0;
}

int one_mib() {
    if (!small_shm("size=1m")) return skipped;
    require_remedy(create_ring("r"), "create in 1 MiB");
    require_remedy(create_ring("r", {.lanes = 1, .lane_bytes = 4 * mib, .journal_records = 16}),
                   "create with a lane of 4 MiB");
    require(list_rings().empty(), "a leftover of a ring that could not be made");
    require(
        create_ring("r", {.lanes = 4, .lane_bytes = mib / 2, .journal_records = 16}).has_value(),
        "a small ring fits");
    auto consumer = Consumer::open("r");
    auto first = Producer::open("r");
    require(consumer.has_value() && first.has_value(), "attach");
    require_remedy(Producer::open("r", {.attach_timeout = {}}), "a second lane");
    use_all(*first, *consumer);
    require(remove_ring("r", true).has_value() && list_rings().empty(), "remove");
    return 0;
}

// A producer whose pid means nothing here is alive while it lives, and dead once it is killed.
int other_pid_namespace() {
    const ScratchRing ring("pidns", {.lanes = 2, .lane_bytes = 64 << 10});
    auto consumer = Consumer::open(ring.name());
    require(consumer.has_value(), "consumer");
    if (unshare(CLONE_NEWPID) != 0) return skipped;
    const pid_t pid = start_child([&] {
        require(getpid() == 1, "not a namespace of its own");
        auto producer = Producer::open(ring.name(), {.name = "far"});
        require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
        Load load;
        require(load.push(*producer, 0, 0) == Push::ok, "push");
        pause();
        return 1;
    });
    Record record;
    require(consumer->wait(record, patience()) == Poll::record, "nothing arrives");
    Load::verify(record);
    consumer->release(record.ref);
    for (int look = 0; look < 20; look++) {  // each wait ends in a look for the living
        require(consumer->wait(record, Deadline::after_ms(5)) == Poll::timed_out, "a record");
        const auto stat = stat_ring(ring.name());
        require(stat.has_value() && stat->lanes.at(0).alive && stat->lanes[0].pid == 1,
                "the far producer is not seen alive");
    }
    require(consumer->stats().producers_died == 0, "the far producer was taken for dead");
    require(kill_and_collect(pid), "the far producer ended by itself");
    for (const Deadline deadline = patience(); consumer->stats().producers_died == 0;) {
        require(!deadline.passed(), "its death is not seen");
        require(consumer->poll(record) == Poll::empty, "a record of the dead");
    }
    return 0;
}

}  // namespace

int main() {
    struct Case {
        const char* name;
        int (*run)();
    };
    int ran = 0;
    int failed = 0;
    for (const Case& one :
         {Case{"64 MB /dev/shm", docker_default},
          Case{"a full /dev/shm and idle producers", open_and_idle},
          Case{"1 MiB /dev/shm", one_mib}, Case{"another PID namespace", other_pid_namespace}}) {
        const int status = in_child(one.run);
        fmt::print("{}: {}\n", one.name,
                   status == 0         ? "ok"
                   : status == skipped ? "not permitted"
                                       : fmt::format("FAILED ({})", status));
        ran += status == 0 ? 1 : 0;
        failed += status != 0 && status != skipped ? 1 : 0;
    }
    if (failed > 0) return 1;
    return ran == 4 ? 0 : skipped;
}
