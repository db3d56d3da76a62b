// Two containers of one pod, as docs/containers.md has them: namespaces of their own for processes,
// mounts, System V objects, the network and the host's name, a file system that is read-only, and
// one memory volume on /dev/shm. Needs root; skipped (exit 77) where that is not permitted.

#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <string>
#include <vector>

#include "rollring/weights.hpp"
#include "support/in_child.hpp"
#include "support/load.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr const char* ring = "pod";

bool mount_private() {
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool mount_memory(const char* path, const char* option) {
    return mount("tmpfs", path, "tmpfs", 0, option) == 0;
}

// A byte from one container to the other, for the order of a test; not a part of their shared
// memory.
class Signal {
  public:
    Signal() { require(pipe(ends_) == 0, "pipe"); }
    void give() const { require(write(ends_[1], "", 1) == 1, "a signal cannot be given"); }
    void await() const {
        char byte = 0;
        pollfd wait{.fd = ends_[0], .events = POLLIN, .revents = 0};
        require(poll(&wait, 1, 60'000) == 1 && read(ends_[0], &byte, 1) == 1,
                "the other container gives no signal");
    }

  private:
    int ends_[2]{};
};

// Runs the body as process 1 of a container. With `own_shm` it has a /dev/shm of its own.
template <class Body>
pid_t start_container(Body body, bool own_shm = false) {
    return start_child([=] {
        if (!mount_private() ||
            unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS)) {
            return skipped;
        }
        return in_child([=] {
            require(getpid() == 1, "not a PID namespace of its own");
            require(
                mount("proc", "/proc", "proc", 0, nullptr) == 0 &&
                    mount_memory("/tmp", "size=1m") &&
                    (!own_shm || mount_memory("/dev/shm", "size=64m")) &&
                    mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0,
                "the container's mounts");
            return body();
        });
    });
}

int both(pid_t one, pid_t two) {
    const int first = collect(one);
    const int second = collect(two);
    return first != 0 ? first : second;
}

template <class T>
T must(Result<T> got, const char* what) {
    require(got.has_value(), "{}: {}", what, got ? "" : got.error().to_string());
    return std::move(*got);
}

void must(const Result<void>& done, const char* what) {
    require(done.has_value(), "{}: {}", what, done ? "" : done.error().to_string());
}

int produce(const Signal& go, const Signal& end) {
    go.await();
    auto producer = must(Producer::open(ring, {.name = "far"}), "open a producer");
    Load load;
    require(load.push(producer, 0, 0) == Push::ok, "push");
    end.await();
    leave(0);  // without a close: to the trainer that is a death
}

int consume(const Signal& go, const Signal& end) {
    must(create_ring(ring, {.lanes = 2, .lane_bytes = 64 << 10}), "create");
    auto consumer = must(Consumer::open(ring), "open a consumer");
    go.give();
    Record record;
    require(consumer.wait(record, patience()) == Poll::record, "nothing arrives");
    Load::verify(record);
    consumer.release(record.ref);
    for (int look = 0; look < 20; look++) {  // each wait ends in a look for the living
        require(consumer.wait(record, Deadline::after_ms(5)) == Poll::timed_out, "a record");
        require(consumer.stats().producers_died == 0, "a living producer was taken for dead");
    }
    end.give();
    for (const Deadline deadline = patience(); consumer.stats().producers_died == 0;) {
        require(!deadline.passed(), "its death is not seen");
        require(consumer.poll(record) == Poll::empty, "a record of the dead");
    }
    return 0;
}

// Rollouts come, and a death is seen, although both are process 1 of their containers.
int ring_case() {
    const Signal go;
    const Signal end;
    const pid_t trainer = start_container([&] { return consume(go, end); });
    const pid_t worker = start_container([&] { return produce(go, end); });
    return both(trainer, worker);
}

constexpr int floats = 100'000;

std::vector<float> weights_of(int version) {
    std::vector<float> made(floats);
    std::iota(made.begin(), made.end(), static_cast<float>(version));
    return made;
}

WeightTensor tensor(std::vector<float>& bytes) {
    return {.name = "w", .dtype = dtype_f32, .shape = {floats}, .data = bytes.data()};
}

int publish(const Signal& go) {
    must(create_ring(ring, {.lanes = 1, .lane_bytes = 64 << 10}), "create");
    std::vector<float> mine = weights_of(0);
    const std::vector<WeightTensor> tensors{tensor(mine)};
    auto publisher =
        must(Publisher::create(ring, tensors, {.memory = PayloadMemory::host}), "make a publisher");
    go.give();
    must(publisher.wait_subscribers(1, patience()), "no engine came");
    for (const int version : {1, 2, 3}) {  // the engine is gone when the third one comes
        std::iota(mine.begin(), mine.end(), static_cast<float>(version));  // where they lie
        if (version == 3) go.give();
        auto open = must(publisher.begin(version), "begin");
        must(open.put_all(patience()), "put");
        must(open.publish(), "publish");
        must(open.commit(patience()), "commit");
    }
    return 0;
}

int subscribe(const Signal& go) {
    go.await();
    std::vector<float> mine = weights_of(0);
    const std::vector<WeightTensor> tensors{tensor(mine)};
    auto subscriber = must(Subscriber::attach(ring, tensors, {}, patience()), "attach");
    for (const int version : {1, 2}) {
        auto update = must(subscriber.next(patience()), "next");
        must(update.load(patience()), "load");
        must(update.stage(patience()), "stage");
        must(update.adopt(patience()), "adopt");
        require(subscriber.live_version() == version && mine == weights_of(version),
                "version {} is not what was published", version);
    }
    go.await();
    leave(0);  // without a close
}

// Versions of the weights arrive whole: their descriptors go over the socket in /dev/shm.
int weights_case() {
    const Signal go;
    const pid_t trainer = start_container([&] { return publish(go); });
    const pid_t engine = start_container([&] { return subscribe(go); });
    return both(trainer, engine);
}

// That is why the page asks for a shared volume.
int apart_case() {
    const Signal go;
    const pid_t one = start_container(
        [&] {
            must(create_ring(ring, {.lanes = 1, .lane_bytes = 64 << 10}), "create");
            go.give();
            return 0;
        },
        true);
    const pid_t other = start_container(
        [&] {
            go.await();
            const auto producer = Producer::open(ring, {.attach_timeout = {}});
            require(!producer && producer.error().code == Errc::not_found,
                    "a ring of another /dev/shm was found");
            return 0;
        },
        true);
    return both(one, other);
}

}  // namespace

int main() {
    struct Case {
        const char* name;
        int (*run)();
    };
    int ran = 0;
    int failed = 0;
    for (const Case& one : {Case{"a ring between two containers", ring_case},
                            Case{"weights between two containers", weights_case},
                            Case{"containers that share no /dev/shm", apart_case}}) {
        const int status = in_child([&] {
            if (!mount_private() || !mount_memory("/dev/shm", "size=64m")) return skipped;
            return one.run();
        });
        fmt::print("{}: {}\n", one.name,
                   status == 0         ? "ok"
                   : status == skipped ? "not permitted"
                                       : fmt::format("FAILED ({})", status));
        ran += status == 0 ? 1 : 0;
        failed += status != 0 && status != skipped ? 1 : 0;
    }
    if (failed > 0) return 1;
    return ran == 3 ? 0 : skipped;
}
