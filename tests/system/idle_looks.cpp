// A consumer that finds nothing asks after each of 64 producers, a few with each poll: a record
// that arrives meanwhile does not wait for 64 system calls.

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <exception>
#include <set>
#include <vector>

#include "rollring/consumer.hpp"
#include "rollring/producer.hpp"
#include "support/process.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

std::vector<std::int64_t> asked;  // which bytes, in this poll

constexpr std::size_t lanes = 64;
constexpr std::size_t few = 4;

void look() {
    const ScratchRing ring("looks", {.lanes = lanes, .lane_bytes = 64 << 10});
    std::vector<Producer> producers;
    while (producers.size() < lanes) producers.push_back(std::move(*Producer::open(ring.name())));
    Consumer consumer = std::move(*Consumer::open(ring.name()));
    Record record;
    std::set<std::int64_t> all;
    std::vector<std::size_t> looks;
    while (looks.size() < 20 * lanes) {
        asked.clear();
        require(consumer.poll(record) == Poll::empty, "a record that nobody sent");
        if (asked.empty()) continue;
        looks.push_back(asked.size());
        all.insert(asked.begin(), asked.end());
    }
    // The median, because a poll that comes late, on a loaded machine, has more to ask.
    std::ranges::sort(looks);
    const std::size_t median = looks[looks.size() / 2];
    fmt::print("polls that asked={} producers asked after={} in one poll={}, at most {}\n",
               looks.size(), all.size(), median, looks.back());
    require(median <= few, "{} producers are asked after in one poll", median);
    require(all.size() == lanes, "only {} of {} producers are asked after", all.size(), lanes);
    require(consumer.producers_active() == lanes, "a living producer is taken for dead");
}

}  // namespace

extern "C" int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void* const argument = va_arg(list, void*);
    va_end(list);
    if (command == F_OFD_GETLK) asked.push_back(static_cast<struct flock*>(argument)->l_start);
    return static_cast<int>(syscall(SYS_fcntl, fd, command, argument));
}

int main() {
    try {
        look();
        return 0;
    } catch (const std::exception& failure) {
        fmt::print(stderr, "FAILED: {}\n", failure.what());
        return 1;
    }
}
