#pragma once
// Processes for tests that kill: this very program started anew in a role (so that only arguments
// are shared), memory that outlives any of them, and a ring that is always removed.

#include <fmt/core.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/ring.hpp"
#include "rollring/time.hpp"

namespace rollring::test {

// A broken promise; main() prints it and exits 1, after the ring has been removed.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};
template <class... Values>
void require(bool kept, fmt::format_string<Values...> promise, Values&&... values) {
    if (!kept) throw Failure(fmt::format(promise, std::forward<Values>(values)...));
}

// Long enough for any loaded machine; tests wait for conditions, not for times.
inline Deadline patience() {
    return Deadline::after_ms(60'000);
}

// Starts this program with `arguments`; it inherits every descriptor that is not close-on-exec.
// `fault` is its value of ROLLRING_FAULT.
pid_t start_self(const std::vector<std::string>& arguments, const std::string& fault = {});

// main() of a test that starts itself in roles, by name: runs the role, which goes with its parent,
// or `otherwise`; prints what fails, and returns 1 then.
using SelfRole = std::function<int(const std::vector<std::string>&)>;
using SelfRoles = std::map<std::string, SelfRole>;
int run_self(int argc, char** argv, const SelfRoles& roles, const SelfRole& otherwise);

// Ends a forked child without the exit handlers of its parent. In a build that measures coverage it
// writes down its counters.
[[noreturn]] void leave(int status);

// For a role: go when the parent goes, so that a failed test leaves no process behind.
void die_with_parent();

// Ends a process of ours for certain and collects it. True if it was still running.
bool kill_and_collect(pid_t pid);
// Waits for a process to end by itself; its exit status, or 128 + signal.
int collect(pid_t pid);
// Waits until a process of ours is stopped (SIGSTOP has taken hold).
void await_stopped(pid_t pid);
// 'r' running, 's' stopped, 'e' ended and not collected yet. The second waits while it is running.
char look_at(pid_t pid);
char await_end_or_stop(pid_t pid);
// Whether it has ended or is on its way: its locks are gone before it can be collected, and its
// memory before those.
bool is_ending(pid_t pid);
// Waits until it ends, `ns` have passed, or `fd` (if not -1) is readable. True if it has ended.
bool ended_within(pid_t pid, std::int64_t ns, int fd = -1);
// The letter of /proc/PID/stat: R, S, T, Z, ...
char state_of(pid_t pid);

// A zeroed object of our own in memory shared with the roles we start; it survives all of them.
class SharedBytes {
  public:
    explicit SharedBytes(std::size_t bytes);           // makes it
    SharedBytes(int inherited_fd, std::size_t bytes);  // maps a parent's object
    SharedBytes(const SharedBytes&) = delete;
    SharedBytes& operator=(const SharedBytes&) = delete;
    ~SharedBytes();
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] void* data() const { return data_; }

  private:
    void map();
    int fd_;
    std::size_t bytes_;
    void* data_ = nullptr;
};

template <class T>
class Shared {
  public:
    Shared() : bytes_(sizeof(T)) {}
    explicit Shared(const std::string& inherited_fd) : bytes_(std::stoi(inherited_fd), sizeof(T)) {}
    T* operator->() const { return static_cast<T*>(bytes_.data()); }
    [[nodiscard]] std::string fd() const { return std::to_string(bytes_.fd()); }

  private:
    SharedBytes bytes_;
};

class ScratchRing {
  public:
    explicit ScratchRing(std::string_view what, const RingOptions& options);
    ScratchRing(const ScratchRing&) = delete;
    ScratchRing& operator=(const ScratchRing&) = delete;
    ~ScratchRing();
    [[nodiscard]] const std::string& name() const { return name_; }

  private:
    std::string name_;
};

// Objects in /dev/shm whose name carries this process's mark.
std::string scratch_name(std::string_view what);
std::size_t leftovers();

// "--name value" of a command line.
std::uint64_t option(const std::vector<std::string>& arguments, std::string_view name,
                     std::uint64_t otherwise);

// A command line of "--name value" and "--name", for programs that are started by tests.
class Arguments {
  public:
    Arguments(int argc, char** argv, std::string_view usage);
    std::uint64_t number(std::string_view name, std::uint64_t otherwise);
    std::string word(std::string_view name, std::string_view otherwise);
    bool flag(std::string_view name);
    // Prints the usage and exits with 2 if a word was not asked for, is not a number, or `good` is
    // false; with 0 for --help.
    void end(bool good = true);

  private:
    std::vector<std::string> words_;
    std::string usage_;
    bool good_ = true;
};

}  // namespace rollring::test
