// The bounds of memory: cgroups of both versions, limits of the process; each is named, and none of
// them ends the process.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "bounds.hpp"
#include "rollring/ring.hpp"
#include "sealed.hpp"
#include "size_hint.hpp"
#include "support/in_child.hpp"

using namespace rollring;
using rollring::test::in_child;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t mib = 1 << 20;

// A /proc/self and a hierarchy of cgroups, made of files.
class Fake {
  public:
    Fake() { fs::create_directories(path_ / "proc"); }
    Fake(const Fake&) = delete;
    Fake& operator=(const Fake&) = delete;
    ~Fake() { fs::remove_all(path_); }

    void proc(const std::string& groups, const std::string& mounts) const {
        std::ofstream(path_ / "proc/cgroup") << groups;
        std::ofstream(path_ / "proc/mountinfo") << mounts;
    }
    void group(const std::string& path, const std::string& file, const std::string& text) const {
        fs::create_directories(path_ / "cgroup" / path);
        std::ofstream(path_ / "cgroup" / path / file) << text << '\n';
    }
    [[nodiscard]] std::string mount(const std::string& root, const std::string& type,
                                    const std::string& options) const {
        return "30 25 0:26 " + root + " " + (path_ / "cgroup").string() + " rw,nosuid shared:4 - " +
               type + " cgroup " + options + "\n";
    }
    [[nodiscard]] std::vector<MemoryBound> bounds() const {
        return detail::cgroup_bounds((path_ / "proc").string());
    }

  private:
    fs::path path_ = fs::temp_directory_path() / ("rollring-bounds-" + std::to_string(getpid()));
};

const MemoryBound& least(const std::vector<MemoryBound>& bounds) {
    REQUIRE(!bounds.empty());
    return *std::ranges::min_element(bounds, {}, &MemoryBound::free);
}

// The exit status of `body` in a process that may make no file beyond a limit.
template <class Body>
int with_file_limit(rlim_t bytes, Body body) {
    return in_child([&] {
        const rlimit limit{bytes, bytes};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
        return body();
    });
}

}  // namespace

TEST_CASE("bounds: version 2 of cgroups, the least of all levels") {
    const Fake fake;
    fake.proc("0::/pod/container\n", fake.mount("/", "cgroup2", "rw"));
    fake.group("pod/container", "memory.max", "max");
    fake.group("pod/container", "memory.current", "1000");
    fake.group("pod", "memory.max", "1000000");
    fake.group("pod", "memory.current", "400000");
    fake.group("pod", "memory.stat", "anon 5\ninactive_file 20000\nactive_file 30000\nshmem 7");
    fake.group("", "memory.max", "9000000");
    fake.group("", "memory.current", "500000");
    const auto bounds = fake.bounds();
    CHECK(bounds.size() == 2);
    CHECK(least(bounds).free == 650'000);  // pages of files can go
    CHECK(least(bounds).total == 1'000'000);
    CHECK(least(bounds).name.ends_with("/pod/memory.max"));
}

TEST_CASE("bounds: version 1 of cgroups, and its word for no limit") {
    const Fake fake;
    fake.proc("4:cpu,memory:/job\n3:cpuset:/\n", fake.mount("/", "cgroup", "rw,cpu,memory"));
    fake.group("job", "memory.limit_in_bytes", "8388608");
    fake.group("job", "memory.usage_in_bytes", "9000000");
    fake.group("", "memory.limit_in_bytes", "9223372036854771712");
    fake.group("", "memory.usage_in_bytes", "9000000");
    const auto bounds = fake.bounds();
    REQUIRE(bounds.size() == 1);
    CHECK(bounds[0].free == 0);
    CHECK(bounds[0].total == 8 * mib);
    CHECK(bounds[0].name.ends_with("/job/memory.limit_in_bytes"));
}

TEST_CASE("bounds: a container that sees the path of its host finds its own group") {
    for (const std::string root : {"/docker/1f2e", "/"}) {
        CAPTURE(root);
        const Fake fake;
        fake.proc("0::/docker/1f2e\n", fake.mount(root, "cgroup2", "rw"));
        fake.group(root == "/" ? "docker/1f2e" : "", "memory.max", "5000000");
        fake.group(root == "/" ? "docker/1f2e" : "", "memory.current", "1000000");
        const auto bounds = fake.bounds();
        REQUIRE(bounds.size() == 1);
        CHECK(bounds[0].free == 4'000'000);
    }
}

TEST_CASE("bounds: nothing that can be read bounds nothing") {
    const Fake fake;
    CHECK(fake.bounds().empty());
    fake.proc("0::/gone\nnonsense\n", "nonsense\n");
    CHECK(fake.bounds().empty());
    fake.proc("0::/gone\n", fake.mount("/", "cgroup2", "rw"));
    CHECK(fake.bounds().empty());
}

TEST_CASE("bounds: /dev/shm and the machine are among them, pages first, the least in front") {
    const auto bounds = memory_bounds();
    const auto has = [&](MemoryBound::Kind kind) {
        return std::ranges::find(bounds, kind, &MemoryBound::kind) != bounds.end();
    };
    CHECK(has(MemoryBound::Kind::space));
    CHECK(has(MemoryBound::Kind::machine));
    CHECK(bounds.front().of_pages());
    CHECK(least_memory_bound().name == bounds.front().name);
    CHECK(memory_total() <= bounds.front().total);
}

TEST_CASE("bounds: a limit on file sizes is an error that names it, and leaves nothing") {
    const std::string name = "test-" + std::to_string(getpid()) + "-bounds";
    const int status = with_file_limit(64 * mib, [&] {
        const auto made = create_ring(name, {.lanes = 4, .lane_bytes = 64 * mib});
        if (made || made.error().message.find("ulimit -f") == std::string::npos) return 1;
        if (made.error().code != Errc::not_enough_shared_memory) return 4;
        const auto left = list_rings();
        return std::ranges::find(left, name) == left.end() ? 0 : 2;
    });
    CHECK(status == 0);
}

TEST_CASE("bounds: a ring whose sizes are not given is made within such a limit") {
    const std::string name = "test-" + std::to_string(getpid()) + "-within";
    const int status = with_file_limit(std::uint64_t{2} << 30, [&] {
        const auto made = create_ring(name, {.lanes = 4, .requests = 0});
        if (!made) return 1;
        return remove_ring(name) ? 0 : 2;
    });
    CHECK(status == 0);
}

TEST_CASE("bounds: the memory of weights likewise") {
    const int status = with_file_limit(mib, [&] {
        const auto made = Sealed::make("bounds", 4 * mib);
        return !made && made.error().message.find("ulimit -f") != std::string::npos ? 0 : 1;
    });
    CHECK(status == 0);
}

TEST_CASE("bounds: a run's sizes follow from its lengths") {
    const auto sizes = size_run({});
    REQUIRE(sizes.has_value());
    CHECK(sizes->record_bytes >= 131'072 * 9);
    CHECK(sizes->lane_bytes >= 12 * sizes->record_bytes);
    CHECK(sizes->spill_bytes / 4 * 3 >= std::uint64_t{64} * 16 * sizes->record_bytes);
    CHECK(sizes->memory_bytes >= sizes->lanes_bytes + sizes->spill_bytes);
    const auto wider = size_run({.token_bytes = 18});
    REQUIRE(wider.has_value());
    CHECK(wider->lane_bytes == 2 * sizes->lane_bytes);
    CHECK(size_run({.producers = 4096, .tokens = 1 << 24}).has_value());
}

TEST_CASE("bounds: what an error says of `rollring size` has room for what did not fit") {
    const auto room_in_what_it_says = [](const detail::Unfit& unfit) {
        const std::string call = detail::size_hint(unfit);
        RunShape shape;
        std::istringstream words(call.substr(1, call.size() - 2));
        std::string option;
        words >> option >> option;
        while (words >> option) {
            std::uint64_t number = 0;
            REQUIRE(static_cast<bool>(words >> number));
            const auto value = static_cast<std::uint32_t>(number);
            if (option == "--producers") shape.producers = value;
            if (option == "--group") shape.group_size = value;
            if (option == "--tokens") shape.tokens = value;
            if (option == "--token-bytes") shape.token_bytes = value;
        }
        CHECK(shape.producers == unfit.producers);
        if (unfit.members != 0) CHECK(shape.group_size == unfit.members);
        const auto sizes = size_run(shape);
        REQUIRE(sizes.has_value());
        CHECK(sizes->lane_bytes >= unfit.record_bytes);
        const std::uint64_t group = std::max<std::uint64_t>(1, unfit.members) * unfit.record_bytes;
        CHECK(sizes->lanes_bytes + sizes->spill_bytes / 2 >= group);
    };
    room_in_what_it_says({64, 16, 300'000, 300'001 * 9});
    room_in_what_it_says({1, 0, 0, 100 * mib});  // tokens are not known
    room_in_what_it_says({4, 8, 3, 200 * mib});  // few of them, with images
    room_in_what_it_says({4096, 65536, 131'072, 4 * mib});
    room_in_what_it_says({2, 2, 1 << 20, 12});  // less than a byte for each
}

TEST_CASE("bounds: lanes that cannot all be had are warned of, not refused") {
    const std::uint64_t free = least_memory_bound().free;
    const auto many = plan_ring({.lanes = 64, .lane_bytes = free / 32});
    REQUIRE(many.has_value());
    CHECK(many->warning.find("enough for") != std::string::npos);
    CHECK(many->why.find("spill bytes") != std::string::npos);
    const auto few = plan_ring({.lanes = 1, .lane_bytes = mib, .spill_bytes = mib});
    REQUIRE(few.has_value());
    CHECK(few->warning.empty());
    CHECK(few->why.empty());
}
