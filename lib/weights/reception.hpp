#pragma once
// The publisher's reception of engines: of those that attach, and of those that cannot.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "control_map.hpp"
#include "control_socket.hpp"
#include "seats.hpp"

namespace rollring::weights {

// The refusals of engines that cannot take versions and have no seat: they could not attach, or
// were asked for a version without being attached. Their reasons stay until the next version is
// begun. For the publisher's threads.
class Refusals {
  public:
    explicit Refusals(const OwnControl& control) : page_(&control.refusals()) {}

    // The last refusal of a name counts.
    void note(std::string_view name, std::uint32_t pid, std::string_view why);
    // The engine has attached after all.
    void forget(std::string_view name);
    void clear();
    // "; 'engine' refused: ..." for each; empty if there is none.
    [[nodiscard]] std::string text() const;

  private:
    [[nodiscard]] RefusalLine* line_of(std::string_view name) const;

    RefusalsPage* page_;
    mutable std::mutex mutex_;
    std::uint64_t noted_ = 0;
};

// The admitting thread of a publisher: it answers hellos, passes descriptors, and notices when a
// connection closes. Publishing never waits for it.
class Reception {
  public:
    struct Facts {
        std::uint64_t ring_id;
        std::uint64_t token;
        std::uint64_t manifest_bytes;
        int manifest_fd;  // contents sealed
        GpuUuid gpu;
    };
    // Parts of the publisher.
    struct Shared {
        const OwnControl& control;
        Seats& seats;
        Publication& publication;
        Refusals& refusals;
    };
    // Starts the thread. The parts of `shared` must outlive it.
    static Result<std::unique_ptr<Reception>> open(Listener listener, const Facts& facts,
                                                   const Shared& shared);
    ~Reception();  // closes all connections

    // The socket at which subscribers connect.
    [[nodiscard]] const Listener& listener() const { return listener_; }

  private:
    struct Connection {
        ProcessFd socket;
        enum class Kind { unknown, subscriber, ready, observer, rank } kind = Kind::unknown;
        Seats::SeatId id{};
        std::string name = {};  // of a subscriber
    };

    Reception(Listener listener, const Facts& facts, const Shared& shared)
        : listener_(std::move(listener)),
          facts_(facts),
          control_(&shared.control),
          seats_(&shared.seats),
          publication_(&shared.publication),
          refusals_(&shared.refusals) {}
    void serve();
    void accept_all();
    // False: the connection has ended.
    bool answer(Connection& connection);
    [[nodiscard]] Result<void> check_token(const Message& message) const;
    Result<void> hello(Connection& connection, const Message& message);
    Result<void> welcome(Connection& connection, bool with_slots);
    Result<void> note_refusal(const Connection& connection, const Message& message);
    Result<void> ask_rollback(const Connection& connection, const Message& message);
    Result<void> give_slot(Connection& connection, const Message& message);

    Listener listener_;
    Facts facts_;
    const OwnControl* control_;
    Seats* seats_;
    Publication* publication_;
    Refusals* refusals_;
    Fd stop_;                            // an eventfd
    std::atomic<bool> stopping_{false};  // the same, where poll() fails
    std::vector<Connection> connections_;
    bool crowded_ = false;  // no descriptor was free for the last connection
    std::thread thread_;
};

}  // namespace rollring::weights
