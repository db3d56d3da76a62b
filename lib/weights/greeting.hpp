#pragma once
// How an end of the channel comes to the other: its name, the wait, the first words on a
// connection, and the reason of an engine that does not stay.

#include <functional>
#include <string_view>

#include "control_socket.hpp"
#include "manifest.hpp"
#include "ring_link.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring::weights {

// How long an engine that attaches waits for others: to its deadline, or until its caller has had
// enough of it.
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
    // Extends the deadline by the time that this process has worked itself.
    void extend(std::int64_t worked_ns);
    // As receive_message, in pieces.
    Result<Received> receive(int socket);

  private:
    Deadline deadline_;
    const std::function<bool()>* keep_waiting_;
    std::int64_t asked_ns_ = 0;
    bool stopped_ = false;
};

inline constexpr std::size_t end_name_bytes_max = 31;

// The name of either end; `what`: a publisher or a subscriber. invalid_argument.
Result<void> check_end_name(std::string_view what, std::string_view name);

// Says hello and hears the welcome, with two descriptors at least; a refusal is the error that it
// names.
Result<Received> greet(int socket, MessageKind kind, const RingLink& link, std::string_view name,
                       Patience& patience);

// The manifest that a welcome brings; bad_manifest.
Result<Manifest> manifest_of(Received& welcome);

// Leaves with a publisher why an engine without a seat takes no version: on a connection that is
// new, or whose engine was welcomed and could not go on.
Result<void> tell_refusal(int socket, const RingLink& link, std::string_view name,
                          std::string_view why);

}  // namespace rollring::weights
