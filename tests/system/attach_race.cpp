// A process attaches to an object while another one makes it: its maker gets ahead between any two
// of our system calls. An fstat and a pread of ours that found the object empty are followed by
// the maker's whole work.

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rollring/extras/requests.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "support/process.hpp"

namespace {

std::function<void(int fd)> maker;  // the work of the maker, once

void let_maker_work(int fd, bool found_empty) {
    if (maker && found_empty) std::exchange(maker, nullptr)(fd);
}

}  // namespace

extern "C" int fstat(int fd, struct stat* status) {
    const auto done = syscall(SYS_newfstatat, fd, "", status, AT_EMPTY_PATH);
    if (done == 0) let_maker_work(fd, S_ISREG(status->st_mode) && status->st_size == 0);
    return static_cast<int>(done);
}

extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
    const ssize_t done = syscall(SYS_pread64, fd, to, bytes, offset);
    let_maker_work(fd, done == 0 && offset == 0);
    return done;
}

namespace rollring::test {
namespace {

std::string file_of(const std::string& object) {
    return "/dev/shm" + object;
}

std::vector<std::byte> content_of(const std::string& object) {
    const int fd = open(file_of(object).c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "{} cannot be opened", object);
    std::vector<std::byte> bytes(static_cast<std::size_t>(lseek(fd, 0, SEEK_END)));
    const auto got = syscall(SYS_pread64, fd, bytes.data(), bytes.size(), 0);
    require(got == static_cast<long>(bytes.size()), "{} cannot be read", object);
    close(fd);
    return bytes;
}

// The object is empty again, and is whole as soon as this process has looked at it.
void begin_again(const std::string& object) {
    const auto content = content_of(object);
    require(unlink(file_of(object).c_str()) == 0, "{} cannot be removed", object);
    const int made = open(file_of(object).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    require(made >= 0, "{} cannot be made", object);
    close(made);
    maker = [object, content](int) {
        const int fd = open(file_of(object).c_str(), O_RDWR | O_CLOEXEC);
        const ssize_t put = pwrite(fd, content.data(), content.size(), 0);
        require(put == static_cast<ssize_t>(content.size()), "{} cannot be written", object);
        close(fd);
    };
}

std::string object_beside(const std::string& ring) {
    const std::string begin = fmt::format("rollring.{}.{}~", getuid(), ring);
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        const std::string name = entry.path().filename();
        if (name.starts_with(begin)) return "/" + name;
    }
    throw Failure("no object beside the ring");
}

int run() {
    const ScratchRing ring("race", {.lanes = 1,
                                    .lane_bytes = 64 << 10,
                                    .spill_bytes = 64 << 10,
                                    .requests = 4,
                                    .request_bytes = 4096});
    begin_again(fmt::format("/rollring.{}.{}", getuid(), ring.name()));
    const auto stat = stat_ring(ring.name());
    require(!maker, "nobody looked at the ring while it was empty");
    require(stat.has_value(), "a ring that was made meanwhile: {}",
            stat ? "" : stat.error().to_string());

    {
        require(RequestBoard::open(ring.name()).has_value(), "no board");
    }
    begin_again(object_beside(ring.name()));
    const auto worker = RequestWorker::open(ring.name(), "worker", patience());
    require(!maker, "nobody looked at the requests while they were empty");
    require(worker.has_value(), "requests that were made meanwhile: {}",
            worker ? "" : worker.error().to_string());
    return 0;
}

}  // namespace
}  // namespace rollring::test

int main() {
    try {
        return rollring::test::run();
    } catch (const std::exception& failure) {
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        return 1;
    }
}
