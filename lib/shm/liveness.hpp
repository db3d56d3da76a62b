#pragma once
// Proof of life and death: open-file-description byte locks on the segment. The kernel drops them
// when the last descriptor of that open file goes, on SIGKILL too, in any PID namespace. No pid is
// involved, which could be reused.
//
// Two traps: a descriptor received over a socket shares its sender's locks, so a lock is always
// taken on a descriptor of our own, reopened through /proc/self/fd; and a forked child shares its
// parent's, so a pthread_atfork handler closes them in the child, where the objects that hold them
// become inert.

#include <cstdint>
#include <optional>
#include <string_view>

#include "fd.hpp"
#include "rollring/batch.hpp"
#include "rollring/error.hpp"

namespace rollring {

// The life bytes of the segment. They lie far above any data; a lock needs no contents there.
struct LifeByte {
    std::int64_t at;

    static LifeByte creation() { return {base}; }
    static LifeByte consumer() { return {base + 1}; }
    static LifeByte counting() { return {base + 2}; }  // of a ring with a bound on its records
    static LifeByte owner() { return {base + 4}; }     // of a ring that goes with its owner
    static LifeByte server() { return {base + 5}; }    // one server at a time
    static LifeByte lane(std::uint32_t index) { return {base + 16 + index}; }
    static LifeByte share_seat(std::uint32_t seat) { return {base + 20480 + seat}; }
    // On an object beside a ring: its extra defines them.
    static LifeByte beside(std::uint32_t index) { return {base + 16 + index}; }
    // On the control memory of a weight channel.
    static LifeByte publisher() { return {base}; }
    static LifeByte subscriber(std::uint32_t seat) { return {base + 16 + seat}; }
    static LifeByte rank(std::uint32_t rank) { return {base + 4096 + rank}; }
    static LifeByte joining(std::uint32_t rank) { return {base + 8192 + rank}; }

  private:
    static constexpr std::int64_t base = std::int64_t{1} << 62;
};

// One held byte. Dropped by the destructor, by death, and in a forked child.
class LifeLock {
  public:
    LifeLock(LifeLock&& other) noexcept;
    LifeLock& operator=(LifeLock&& other) noexcept;
    LifeLock(const LifeLock&) = delete;
    LifeLock& operator=(const LifeLock&) = delete;
    ~LifeLock();

    // False in a forked child of the process that took it.
    [[nodiscard]] bool held() const;

    // Takes the byte on a fresh open file of the same object as `fd`; empty if it is held.
    static Result<std::optional<LifeLock>> take(int fd, LifeByte byte);

  private:
    LifeLock(int index, std::uint64_t generation) : index_(index), generation_(generation) {}
    int index_;  // in the process-wide table that the fork handler closes; -1 when moved from
    std::uint64_t generation_;  // of the process that took it
};

// A descriptor that forked children close at once, such as a socket that proves this process's
// life.
class ProcessFd {
  public:
    ProcessFd() = default;
    explicit ProcessFd(Fd fd);
    ProcessFd(ProcessFd&& other) noexcept;
    ProcessFd& operator=(ProcessFd&& other) noexcept;
    ProcessFd(const ProcessFd&) = delete;
    ~ProcessFd();

    [[nodiscard]] int get() const;  // -1 in a forked child
    [[nodiscard]] explicit operator bool() const { return get() >= 0; }

  private:
    int index_ = -1;
    int fd_ = -1;
    std::uint64_t generation_ = 0;
};

// Whether any process holds the byte. `fd` must hold no locks itself. 0.24 us.
bool alive(int fd, LifeByte byte);
// Whether any process holds a life byte other than the creation byte.
bool anybody_alive(int fd);

// Grows in each forked child: objects made before the fork compare it and refuse to work.
inline std::uint64_t fork_generation() {
    return detail::forks;
}

// The process that made an object; a forked child of it is another one.
class MakerProcess {
  public:
    [[nodiscard]] bool is_this() const { return generation_ == fork_generation(); }
    // Errc::forked. `object`: the inherited object, for the message.
    [[nodiscard]] Result<void> check(std::string_view object) const;

  private:
    std::uint64_t generation_ = fork_generation();
};

}  // namespace rollring
