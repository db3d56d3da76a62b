#pragma once
// The control socket of a publisher: each subscriber connects to it once. A SOCK_SEQPACKET socket
// /dev/shm/rollring-weights.<uid>/<ring>@<rank>, 0600 in a directory 0700: a process that can see
// the ring can see the socket, in any container. It carries descriptors; nothing is unpickled.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend.hpp"
#include "control.hpp"
#include "fd.hpp"
#include "liveness.hpp"
#include "rollring/time.hpp"

namespace rollring::weights {

using device::BlockTicket;
using device::SharedBlock;

enum class MessageKind : std::uint32_t {
    hello_subscriber = 1,  // name, gpu, ring_id, token -> welcome or refusal
    hello_observer,        // ring_id, token -> welcome without blocks
    hello_rank,            // rank, ring_id, token -> welcome without blocks
    welcome,               // seat, epoch, bytes, tickets; descriptors: control, manifest, blocks
    refusal,               // code, text
    ready,                 // a subscriber has mapped everything and holds its byte -> admitted
    admitted,              // -> confirmed
    confirmed,             // the subscriber is attached, as its page says, and counts
    want_slot,             // seat -> slot
    slot,                  // one ticket, its descriptor
    refuses,  // name, pid, text, ring_id, token: an engine without a seat takes no version -> noted
    noted,
    roll_back,  // ring_id, token: engines shall leave the committed version -> asked
    asked,      // epoch: the number of the request
};

struct WireTicket {
    std::uint32_t memory;
    std::uint32_t has_fd;
    std::uint64_t bytes;
    std::uint8_t handle[64];
};
static_assert(sizeof(WireTicket) == 80);

// One form for all messages; fields that a kind does not use are zero.
struct Message {
    std::uint64_t magic;
    std::uint32_t abi;
    MessageKind kind;
    std::uint64_t ring_id;
    std::uint64_t token;
    std::uint64_t epoch;
    std::uint64_t control_bytes;
    std::uint64_t manifest_bytes;
    std::uint32_t code;  // an Errc
    std::uint32_t seat;  // refuses: the engine's pid
    std::uint32_t rank;
    std::uint32_t slot;
    std::uint32_t tickets_used;
    std::uint32_t ranks;
    std::uint8_t gpu[16];
    char name[32];
    char text[1024];
    WireTicket tickets[slots_limit];
};
static_assert(std::is_trivially_copyable_v<Message>);
static_assert(sizeof(Message) == 3712);
static_assert(std::has_unique_object_representations_v<Message>);  // no padding is sent

Message make_message(MessageKind kind);
void set_text(Message& message, std::string_view text);
[[nodiscard]] std::string text_of(const Message& message);
[[nodiscard]] std::string name_of(const Message& message);
WireTicket to_wire(const SharedBlock& block);
BlockTicket from_wire(const WireTicket& ticket);

// Sends one message with descriptors; peer_gone if the other end is closed.
Result<void> send_message(int socket, const Message& message, std::span<const int> fds = {});

struct Received {
    Message message{};
    std::vector<Fd> fds;
};
// One message, checked for form; timed_out, peer_gone (closed), bad_manifest (not ours).
Result<Received> receive_message(int socket, Deadline deadline);

// Checks the peer's uid; permission_denied if it is not ours.
Result<void> check_peer(int socket);

// A listening socket and its name, which end together.
class Listener {
  public:
    // busy while a live publisher has the name. The leftover of a dead one is replaced.
    static Result<Listener> open(std::string_view ring, std::uint32_t rank);
    Listener(Listener&&) noexcept = default;
    Listener& operator=(Listener&&) = delete;
    ~Listener();

    [[nodiscard]] int fd() const { return socket_.get(); }
    // not_found once the name was removed, or is another publisher's. A failed check proves
    // nothing.
    [[nodiscard]] Result<void> check() const;

  private:
    Listener() = default;
    // The inode that has the name now: empty if there is none, ours if the check fails.
    [[nodiscard]] std::optional<ino_t> named_inode() const;
    [[nodiscard]] bool linked() const;
    [[nodiscard]] std::string path() const;
    Fd directory_;
    ProcessFd socket_;
    std::string file_;
    ino_t inode_ = 0;     // of our socket
    bool bound_ = false;  // the name is ours
};

// not_found if no process listens there.
Result<Fd> connect_to(std::string_view ring, std::uint32_t rank);

// Pauses before the next attempt to reach a process that is not there yet.
void nap();

}  // namespace rollring::weights
