#pragma once
// The right to serve a ring: of several servers in front of it, one process at a time has it.

#include <memory>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/version.hpp"

namespace rollring {

// Held until the object is destroyed or its process ends; the ring is in use meanwhile. In a forked
// child it is inert.
class ROLLRING_API ServerSeat {
  public:
    // Errc::busy while another process has it.
    static Result<ServerSeat> take(std::string_view ring);
    ServerSeat(ServerSeat&& other) noexcept;
    ServerSeat& operator=(ServerSeat&& other) noexcept;
    ~ServerSeat();

  private:
    struct State;
    explicit ServerSeat(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace rollring
