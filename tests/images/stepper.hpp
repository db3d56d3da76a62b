#pragma once
// A process of ours that goes on one instruction at a time, and the memory of its ring as it is
// after each of them. On x86 the stores of all completed instructions are visible, so the state
// after a kill at any instruction is among these images.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "segment.hpp"
#include "support/process.hpp"

namespace rollring::test {

constexpr int not_permitted = 77;  // exit status of a role that may not be traced: skipped
constexpr std::size_t numbers_max = 64;

// The role's next step, and its result. The stepper reads `done` after each instruction.
struct Orders {
    std::atomic<std::uint32_t> what;
    std::atomic<std::uint64_t> count;  // of `numbers`
    std::atomic<std::uint64_t> numbers[numbers_max];
    std::atomic<std::int64_t> step;
    std::atomic<std::uint32_t> done;
    std::atomic<std::uint32_t> result;
};

// For a role: stops, is told what to do, does it with `act`, and so on. Never returns.
void obey(Orders& orders, const std::function<void()>& act);

class Stepper {
  public:
    // Starts this program as `role FD RING` and lets it come to its first stop.
    Stepper(const std::string& role, const std::string& ring);
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;
    ~Stepper();

    [[nodiscard]] Orders& orders() const { return *orders_.operator->(); }

    using OnImage = std::function<void(std::span<const std::byte>)>;
    // Has the orders carried out instruction by instruction; calls `on_image` wherever the ring's
    // memory has changed, and once at the start.
    void step(const OnImage& on_image) {
        step(on_image, [] { return false; });
    }
    // Until `enough`, which is asked after each instruction; false: they are not carried out to the
    // end yet, and the process is stopped in them.
    bool step(const OnImage& on_image, const std::function<bool()>& enough);
    // The rest, at full speed.
    void go_on();
    // The same at full speed.
    void run();

    [[nodiscard]] std::uint64_t boundaries() const { return boundaries_; }
    [[nodiscard]] std::uint64_t images() const { return images_; }

  private:
    int await_stop();
    void await_order();
    bool look();

    Shared<Orders> orders_;
    Segment segment_;
    Mapping memory_;
    std::vector<std::byte> last_;
    pid_t pid_;
    std::uint64_t boundaries_ = 0;
    std::uint64_t images_ = 0;
};

}  // namespace rollring::test
