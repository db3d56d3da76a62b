#pragma once
// How long an engine that attaches waits for others: to its deadline, or until its caller has had
// enough of it.

#include <functional>

#include "control_socket.hpp"
#include "rollring/time.hpp"

namespace rollring::weights {

class Patience {
  public:
    // `keep_waiting`, where there is one, outlives this, and is asked between pieces of a wait.
    explicit Patience(Deadline deadline, const std::function<bool()>* keep_waiting = nullptr)
        : deadline_(deadline), keep_waiting_(keep_waiting) {}

    [[nodiscard]] Deadline deadline() const { return deadline_; }
    // For one piece of a wait; over() is asked after it.
    [[nodiscard]] Deadline piece() const;
    // The deadline has passed, or the caller does not wait on.
    bool over();
    // This process has worked for so long itself, which is no waiting for others.
    void extend(std::int64_t worked_ns);
    // As receive_message, in pieces.
    Result<Received> receive(int socket);

  private:
    Deadline deadline_;
    const std::function<bool()>* keep_waiting_;
    std::int64_t asked_ns_ = 0;
    bool stopped_ = false;
};

}  // namespace rollring::weights
