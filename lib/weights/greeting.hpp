#pragma once
// The first contact of the two ends of a channel: names, waits, the first messages on a connection,
// and the reason of an engine that does not stay.

#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>

#include "control_socket.hpp"
#include "manifest.hpp"
#include "ring_link.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/weights.hpp"

namespace rollring::weights {

// The wait of an engine that attaches: it ends at the deadline, or when the caller ends it.
class Patience {
  public:
    // `keep_waiting`, if given, must outlive this object; it is asked between the pieces of a wait.
    explicit Patience(Deadline deadline, const std::function<bool()>* keep_waiting = nullptr)
        : deadline_(deadline), keep_waiting_(keep_waiting) {}

    [[nodiscard]] Deadline deadline() const { return deadline_; }
    // The deadline of one piece of a wait; call over() after it.
    [[nodiscard]] Deadline piece() const;
    // Whether the deadline has passed, or the caller ends the wait.
    bool over();
    // This process itself has worked for this long, which does not count as waiting for others.
    void extend(std::int64_t worked_ns);
    // Extends by the time of this work.
    template <class Work>
    std::invoke_result_t<Work> work(const Work& work) {
        const std::int64_t from_ns = monotonic_ns();
        auto done = work();
        extend(monotonic_ns() - from_ns);
        return done;
    }
    // As receive_message(), in pieces.
    Result<Received> receive(int socket);

  private:
    Deadline deadline_;
    const std::function<bool()>* keep_waiting_;
    std::int64_t asked_ns_ = 0;
    bool stopped_ = false;
};

inline constexpr std::size_t end_name_bytes_max = 31;

// Checks the name of either end; `what`: a publisher or a subscriber. invalid_argument.
Result<void> check_end_name(std::string_view what, std::string_view name);

// The options of any engine: its name, and its share of the device. invalid_argument.
Result<void> check_engine(const SubscriberOptions& options);

// Says hello and receives the welcome, with two descriptors at least; a refusal becomes the error
// that it names.
Result<Received> greet(int socket, MessageKind kind, const RingLink& link, std::string_view name,
                       Patience& patience);

// The manifest of a welcome; bad_manifest.
Result<Manifest> manifest_of(Received& welcome);

// Tells a publisher why an engine without a seat takes no version: on a new connection, or on one
// whose engine was welcomed and could not continue.
Result<void> tell_refusal(int socket, const RingLink& link, std::string_view name,
                          std::string_view why);

}  // namespace rollring::weights
