#include "stepper.hpp"

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace rollring::test {
namespace {

Segment attach(const std::string& ring) {
    auto segment = Segment::attach(ring, patience());
    require(segment.has_value(), "{}", segment ? "" : segment.error().to_string());
    return std::move(*segment);
}

Mapping map_all(const Segment& segment) {
    auto mapping = segment.map(0, segment.geometry().segment_bytes(), false);
    require(mapping.has_value(), "{}", mapping ? "" : mapping.error().to_string());
    return std::move(*mapping);
}

}  // namespace

void obey(Orders& orders, const std::function<void()>& act) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(not_permitted);
    for (;;) {
        static_cast<void>(raise(SIGSTOP));
        act();
        orders.done = 1;
    }
}

Stepper::Stepper(const std::string& role, const std::string& ring)
    : segment_(attach(ring)),
      memory_(map_all(segment_)),
      last_(memory_.bytes()),
      pid_(start_self({role, orders_.fd(), ring})) {
    await_order();
}

Stepper::~Stepper() {
    if (pid_ != 0) kill_and_collect(pid_);
}

int Stepper::await_stop() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) require(errno == EINTR, "waitpid: {}", errno);
    if (!WIFSTOPPED(status)) pid_ = 0;  // it has failed, and was collected
    return status;
}

void Stepper::await_order() {
    const int status = await_stop();
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread ends the process
    if (WIFEXITED(status) && WEXITSTATUS(status) == not_permitted) std::exit(not_permitted);
    require(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "the stepped process: status {}",
            status);
}

bool Stepper::look() {
    // The header and the schema never change.
    const std::uint64_t from = segment_.geometry().policy_offset();
    const std::uint64_t bytes = memory_.bytes() - from;
    if (std::memcmp(last_.data() + from, memory_.data() + from, bytes) == 0) return false;
    std::memcpy(last_.data(), memory_.data(), memory_.bytes());
    images_++;
    return true;
}

bool Stepper::step(const OnImage& on_image, const std::function<bool()>& enough) {
    std::memcpy(last_.data(), memory_.data(), memory_.bytes());
    on_image(last_);
    orders().done = 0;
    while (orders().done.load() == 0) {
        require(ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr) == 0, "ptrace: {}", errno);
        const int status = await_stop();
        require(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "the stepped process: status {}",
                status);
        boundaries_++;
        if (look()) on_image(last_);
        if (orders().done.load() == 0 && enough()) return false;
    }
    go_on();
    return true;
}

void Stepper::go_on() {
    require(ptrace(PTRACE_CONT, pid_, nullptr, nullptr) == 0, "ptrace: {}", errno);
    await_order();
    require(orders().done.load() == 1, "the stepped process has not obeyed");
}

void Stepper::run() {
    orders().done = 0;
    go_on();
}

}  // namespace rollring::test
