// A refusal of the system is a named error, never a signal; and changes that other processes make
// to a ring's name in /dev/shm are noticed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "layout.hpp"
#include "rollring/stash.hpp"
#include "rollring/weights.hpp"
#include "sealed.hpp"
#include "support/in_child.hpp"
#include "support/test_ring.hpp"

using namespace rollring;
using rollring::test::in_child;
using rollring::test::TestRing;

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED
#endif
#endif

namespace {

#ifdef SANITIZED
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

std::string path_of(const std::string& ring) {
    return fmt::format("/dev/shm/rollring.{}.{}", getuid(), ring);
}

std::string fresh_name() {
    static int number = 0;
    return fmt::format("test-{}-system-{}", getpid(), number++);
}

// A file of ours at the name of a ring; removed at the end.
struct Placed {
    std::string name = fresh_name();
    std::string path = path_of(name);
    explicit Placed(const std::string& content) {
        std::ofstream(path, std::ios::binary) << content;
        chmod(path.c_str(), 0600);
    }
    ~Placed() { std::filesystem::remove_all(path); }
};

// A kernel that lets a profiler's signals interrupt the call: no long request is ever completed.
struct Signals {
    bool often = false;
    int struck = 0;
};
Signals signals;

Errc attach_error(const std::string& name) {
    const auto consumer = Consumer::open(name, {.attach_timeout = std::chrono::milliseconds(2)});
    const auto producer = Producer::open(name, {.attach_timeout = std::chrono::milliseconds(2)});
    const auto stat = stat_ring(name);
    REQUIRE_FALSE(consumer.has_value());
    REQUIRE_FALSE(producer.has_value());
    REQUIRE_FALSE(stat.has_value());
    CHECK(consumer.error().code == producer.error().code);
    CHECK(consumer.error().code == stat.error().code);
    CHECK(consumer.error().message.find(name) != std::string::npos);
    return consumer.error().code;
}

std::string bytes_of_ring(const TestRing& ring) {
    std::ifstream file(path_of(ring.name()), std::ios::binary);
    std::string head(65536, '\0');
    file.read(head.data(), 65536);
    REQUIRE(file.good());
    return head;
}

}  // namespace

// Replaces the C library's function.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {  // tidy-ok: a double of it
    if (signals.often && bytes > (4 << 20)) return ++signals.struck < 1000 ? EINTR : EIO;
    return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

TEST_CASE("limits: a large lane is reserved although signals cut every long request short") {
    const TestRing ring({.lanes = 1, .lane_bytes = std::uint64_t{32} << 20});
    signals = Signals{.often = true};
    const auto opened =
        Producer::open(ring.name(), {.attach_timeout = std::chrono::milliseconds(5)});
    CHECK(opened.has_value());
    CHECK(signals.struck > 0);
    signals = Signals{};
}

TEST_CASE("limits: so is the memory of weights") {
    signals = Signals{.often = true};
    const auto made = Sealed::make("limits", std::uint64_t{32} << 20);
    CHECK(made.has_value());
    CHECK(signals.struck > 0);
    signals = Signals{};
}

TEST_CASE("limits: mode 0600 whatever the umask") {
    const mode_t before = umask(0);
    const TestRing ring;
    umask(before);
    struct stat status{};
    REQUIRE(stat(path_of(ring.name()).c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0600);
}

TEST_CASE("limits: what stands at our name and is not ours is refused by name") {
    const TestRing ring;
    const std::string head = bytes_of_ring(ring);
    const Placed empty("");
    CHECK(attach_error(empty.name) == Errc::not_ready);
    const Placed garbage(std::string(8192, 'x'));
    CHECK(attach_error(garbage.name) == Errc::not_a_ring);
    const Placed truncated(head);
    CHECK(attach_error(truncated.name) == Errc::not_a_ring);
    std::string other_abi = head;
    other_abi[offsetof(SegmentHeader, abi)] ^= 0x40;
    const Placed foreign(other_abi);
    CHECK(attach_error(foreign.name) == Errc::abi_mismatch);
    const Placed open_to_all(head);
    chmod(open_to_all.path.c_str(), 0644);
    CHECK(attach_error(open_to_all.name) == Errc::permission_denied);
    CHECK(create_ring(open_to_all.name).error().code == Errc::permission_denied);
    CHECK(remove_ring(open_to_all.name).error().code == Errc::permission_denied);
    const Placed link("");
    std::filesystem::remove(link.path);
    std::filesystem::create_symlink(path_of(ring.name()), link.path);
    CHECK(attach_error(link.name) == Errc::permission_denied);
    CHECK(create_ring(link.name).error().code == Errc::permission_denied);
    const Placed folder("");
    std::filesystem::remove(folder.path);
    std::filesystem::create_directory(folder.path);
    CHECK_FALSE(
        Consumer::open(folder.name, {.attach_timeout = std::chrono::milliseconds(2)}).has_value());
    CHECK_FALSE(
        Producer::open(folder.name, {.attach_timeout = std::chrono::milliseconds(2)}).has_value());
    CHECK_FALSE(stat_ring(folder.name).has_value());
    CHECK_FALSE(create_ring(folder.name).has_value());
    if (getuid() == 0) {
        const Placed stolen(head);
        REQUIRE(chown(stolen.path.c_str(), 12345, 12345) == 0);
        CHECK(attach_error(stolen.name) == Errc::permission_denied);
    }
}

TEST_CASE("limits: any changed byte of the header is noticed") {
    const TestRing ring;
    const std::string head = bytes_of_ring(ring);
    const auto bytes = std::filesystem::file_size(path_of(ring.name()));
    const Placed placed(head);
    std::filesystem::resize_file(placed.path, bytes);
    REQUIRE(stat_ring(placed.name).has_value());  // a whole copy is a ring
    int refused = 0;
    for (std::size_t at = 0; at < offsetof(SegmentHeader, check) + 8; at++) {
        for (const char flip : {'\x01', '\x7f', '\xff'}) {
            std::string changed = head.substr(0, 192);
            changed[at] = static_cast<char>(changed[at] ^ flip);
            std::fstream(placed.path, std::ios::binary | std::ios::in | std::ios::out) << changed;
            refused += stat_ring(placed.name).has_value() ? 0 : 1;
        }
    }
    CHECK(refused == 3 * (offsetof(SegmentHeader, check) + 8));
}

TEST_CASE("limits: too few descriptors is an error with errno") {
    const TestRing ring({.lanes = 32, .lane_bytes = 64 << 10});
    int failures = 0;
    for (rlim_t most = 3; most < 24; most++) {
        const int status = in_child([&] {
            const rlimit limit{most, most};
            if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
            const auto producer = Producer::open(ring.name(), {.attach_timeout = {}});
            const auto consumer = Consumer::open(ring.name(), {.attach_timeout = {}});
            const auto named = [](const auto& opened) {
                return opened || opened.error().system_errno == EMFILE;
            };
            if (!named(producer) || !named(consumer)) return 1;
            return producer && consumer ? 0 : 2;
        });
        CHECK_MESSAGE((status == 0 || status == 2), "limit ", most, " status ", status);
        failures += status == 2 ? 1 : 0;
    }
    CHECK(failures > 0);
}

// Every entry point, with at most 16 open descriptors, succeeds or returns a named error.
TEST_CASE("limits: 16 descriptors, every entry point") {
    for (int taken = 0; taken <= 13; taken++) {
        CAPTURE(taken);
        const TestRing ring({.lanes = 2, .lane_bytes = 64 << 10});
        const int status = in_child([&] {
            const rlimit limit{16, 16};
            if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
            std::vector<int> others;
            others.reserve(taken);
            for (int i = 0; i < taken; i++) others.push_back(dup(0));
            const std::string fresh = fresh_name();
            float value = 1;
            const WeightTensor tensor{
                .name = "w", .dtype = dtype_f32, .shape = {1}, .data = &value};
            int named = 0;
            const auto note = [&](const auto& result) {
                const bool good = result.has_value() || (result.error().system_errno == EMFILE &&
                                                         !result.error().message.empty());
                named += good ? 1 : 0;
                return result.has_value();
            };
            if (note(create_ring(fresh))) static_cast<void>(remove_ring(fresh));
            note(stat_ring(ring.name()));
            note(Producer::open(ring.name(), {.attach_timeout = {}}));
            note(Consumer::open(ring.name(), {.attach_timeout = {}}));
            note(Stash::open(ring.name(), {}, {.attach_timeout = {}}));
            // UBSan needs a pipe of its own to check the type of the publisher's thread.
            if (!sanitized) note(Publisher::create(ring.name(), {&tensor, 1}));
            // The same cause keeps a creator from locking and from cleaning up, as its death would.
            for (const int fd : others) close(fd);
            const RingDiagnosis left = diagnose_ring(fresh);
            if (left.health == RingHealth::unfinished) {
                if (!create_ring(fresh) || !remove_ring(fresh)) return 2;
            }
            return named == (sanitized ? 5 : 6) ? 0 : 1;
        });
        CHECK(status == 0);
        CHECK_FALSE(stat_ring(ring.name())->consumer_alive);
        CHECK(ring.producer().lane() < 2);
    }
}

// The sanitizer's shadow takes all addresses.
TEST_CASE("limits: too little address space is an error that names the limit" *
          doctest::skip(sanitized)) {
    const TestRing ring({.lanes = 2, .lane_bytes = std::uint64_t{256} << 20});
    const int status = in_child([&] {
        std::ifstream statm("/proc/self/statm");
        rlim_t pages = 0;
        statm >> pages;
        const rlim_t bytes = pages * 4096 + (rlim_t{64} << 20);
        const rlimit limit{bytes, bytes};
        if (setrlimit(RLIMIT_AS, &limit) != 0) return 3;
        const auto producer = Producer::open(ring.name(), {.attach_timeout = {}});
        const auto consumer = Consumer::open(ring.name(), {.attach_timeout = {}});
        const auto named = [](const auto& opened) {
            return !opened && opened.error().message.find("ulimit -v") != std::string::npos;
        };
        return named(producer) && named(consumer) ? 0 : 1;
    });
    CHECK(status == 0);
    // No failed call has left a lane or the seat taken.
    CHECK(ring.producer().lane() == 0);
    CHECK_FALSE(stat_ring(ring.name())->consumer_alive);
}
