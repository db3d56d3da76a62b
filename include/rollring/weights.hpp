#pragma once
// The weight channel: a trainer publishes versions of a fixed set of tensors, and inference engines
// adopt them. A channel belongs to a ring, by the ring's name: producers of that ring stamp
// rollouts with the version that was committed last.
//
//   Publisher                                  Subscriber
//   begin(v), put_all, publish                 next -> Update
//                                              part, done_reading   (or load: both, for all parts)
//                                              stage
//   commit: all have staged -> committed
//                                              adopt: committed -> live
//
// The payload goes through slots: memory of the publisher, which subscribers map when they attach,
// read-only (legacy_ipc: writable). After that they map only slots that replace those of an
// expelled subscriber. A version larger than the slots streams through them part by part. With
// PayloadMemory::direct there are no slots: subscribers read the trainer's tensors where they lie.
//
// There are three acknowledgements: read_done (the device has finished reading a part, so its slot
// may be refilled), live (the engine serves the version), closed (the mapping is gone).
// A version is committed when every subscriber that was to read it has staged it, never before.
//
// One thread at a time per object. Nothing throws. In a forked child the objects are inert, and
// every call that returns an error returns Errc::forked.
//
// Destructors wait up to 10 s for the device's work on the channel's memory, then leak that memory:
// it is never freed under a kernel. A version that is given up does not wait at all.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/version.hpp"
#include "rollring/weight_delta.hpp"
#include "rollring/weight_options.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring {

class WeightLayout;  // weight_layout.hpp

inline constexpr std::int64_t weight_version_max = (std::int64_t{1} << 60) - 1;

// How long the stages of a version took, in ns.
struct SyncTimes {
    std::int64_t wait_slot_ns = 0;  // put: waiting for subscribers to free a slot
    std::int64_t put_ns = 0;        // the whole of put, from begin to publish
    std::int64_t publish_ns = 0;    // from the end of put until the last part was filled
    std::int64_t staged_ns = 0;     // from then until all had staged
    std::int64_t commit_ns = 0;     // from then until committed (other ranks)
};

struct CommitReport {
    std::int64_t version = -1;
    std::uint64_t payload_bytes = 0;  // written into slots
    std::uint32_t subscribers = 0;    // that staged it
    SyncTimes times;
};

namespace weights {
class ROLLRING_LOCAL PublisherImpl;
class ROLLRING_LOCAL EngineEnd;
}  // namespace weights

// One version on its way. Destruction without commit is abort. Must not outlive its publisher.
class [[nodiscard]] ROLLRING_API Transaction {
  public:
    Transaction(Transaction&&) noexcept;
    Transaction& operator=(Transaction&&) noexcept;
    ~Transaction();

    // Remains valid after commit and abort.
    [[nodiscard]] std::int64_t version() const { return version_; }
    // Once the version is committed or aborted, every call below except abort() returns
    // invalid_argument.
    [[nodiscard]] ROLLRING_LOCAL Result<void> check_open() const;

    // Packs all tensors from their own memory. Waits in between for subscribers to free slots.
    // With PayloadMemory::direct it packs nothing: from here on the tensors must not change until
    // commit or (without a layout) wait_staged has returned, or the version was aborted.
    // Errors: timed_out (names the subscriber; a retry resumes), device_error, already_released
    // (names a tensor whose memory was released, or freed and allocated anew).
    Result<void> put_all(Deadline deadline, Stream stream = {});
    // Packs one tensor from `source` (null: from its own memory), with the declared strides, for
    // trainers that gather layer by layer. Calls follow the order of the tensors. A tied tensor is
    // sent under its first name: its own call is optional and packs nothing. `source` must not
    // change until the stream has reached this point. With PayloadMemory::direct it can only be the
    // tensor's own memory (unsupported).
    Result<void> put(std::string_view tensor, const void* source, Deadline deadline,
                     Stream stream = {});
    // Declares that all tensors were put. Does not wait for the device. Error: invalid_argument
    // (tensors are missing).
    Result<void> publish();
    // Waits until every subscriber and every other rank has staged the version, then commits it:
    // for subscribers, and in the ring. Errors: timed_out (names the missing subscribers; may be
    // called again), rejected (by whom and why), aborted (another rank did), peer_gone,
    // already_released (as put_all). A subscriber that dies or leaves is not waited for.
    // With PayloadMemory::direct and a layout it also waits until no subscriber needs the tensors
    // any more. timed_out can then mean that the version is committed, which the message says: call
    // it again. abort() and destruction expel the subscribers that still read.
    Result<CommitReport> commit(Deadline deadline);
    // The first half of commit(): from its return on the version counts, and subscribers adopt it.
    // commit() then waits for those that need the tensors still, and for nothing with slots.
    // Errors: as commit(), before the version is committed.
    Result<CommitReport> decide(Deadline deadline);
    // Waits until every subscriber has staged the version, and commits nothing: for a publisher
    // that leaves the decision to another system. After this call, commit does not ask subscribers
    // again; behind() counts a subscriber that drops its staged version later.
    // Errors: timed_out (names the missing subscribers; may be called again), rejected (by whom and
    // why).
    Result<void> wait_staged(Deadline deadline);
    // Subscribers drop the version; those that had written part of it in place are poisoned.
    void abort(std::string_view why = "aborted by the trainer") noexcept;

  private:
    friend class Publisher;
    friend class RelayTransaction;
    explicit Transaction(weights::PublisherImpl* impl);
    [[nodiscard]] ROLLRING_LOCAL bool mine() const;
    weights::PublisherImpl* impl_ = nullptr;
    std::uint64_t publication_ = 0;
    std::int64_t version_ = -1;
};

class ROLLRING_API Publisher {
  public:
    // Becomes the publisher `options.rank` of the ring's weight channel. A thread of its own
    // admits subscribers from then on.
    // Errors: not_found (no such ring), busy (a live publisher has the rank), unsupported (a
    // tensor, by name), no_gpu, out_of_device_memory, invalid_argument.
    static Result<Publisher> create(std::string_view ring, std::span<const WeightTensor> tensors,
                                    const PublisherOptions& options = {});
    Publisher(Publisher&&) noexcept;
    Publisher& operator=(Publisher&&) noexcept;
    ~Publisher();  // aborts an open version; subscribers learn that it is closed

    // Waits until `count` subscribers are attached. Errc::not_found: the ring, or this channel's
    // name in /dev/shm, was removed, so that no subscriber can attach any more.
    Result<void> wait_subscribers(std::uint32_t count, Deadline deadline);
    // Waits until `count` subscribers serve the last committed version.
    Result<void> wait_live(std::uint32_t count, Deadline deadline);

    // Opens a version, larger than any before it in this ring (stale_version otherwise).
    // busy while another one is open.
    Result<Transaction> begin(std::int64_t version);

    // The number of subscribers that lack the committed version: they came too late to read it from
    // the slots, or are poisoned. Only a version that fits into the slots stays readable.
    [[nodiscard]] std::uint32_t behind() const;
    // Opens the committed version once more, for these subscribers alone, from the same tensors,
    // which must be unchanged. With a layout all ranks do so. Errors: invalid_argument (no version
    // is committed), busy (a version is open), unsupported (with a layout and slots: these have it,
    // and offer it by themselves).
    Result<Transaction> begin_again();
    // Declares that the tensors hold a version that was committed already, by a predecessor of this
    // publisher or elsewhere. This publisher may then resend it, and the ring records it
    // afterwards. Errors: stale_version (the ring has a later one), busy (a version is open).
    Result<void> resume(std::int64_t version);
    // Resends the committed version in one call: begin_again(), put_all(), publish(), commit().
    // Aborts at the deadline.
    Result<CommitReport> resend(Deadline deadline, Stream stream = {});

    // Expels a stopped or stuck subscriber by name: no call waits for it any more, and it must
    // attach again. Slots that it may still be reading are set aside until it is gone, and replaced
    // by new ones. Errors: out_of_device_memory or not_enough_shared_memory (for the new slots),
    // busy (with the new slots there would be more than 32), not_found (no such subscriber).
    Result<void> expel(std::string_view subscriber);

    // Ends the current wait (of a transaction too), or else the next one, as if its deadline had
    // passed; the call that waited may be repeated. Any thread may call it.
    void interrupt();

    [[nodiscard]] std::int64_t committed_version() const;
    [[nodiscard]] std::uint64_t payload_bytes() const;  // of one version
    [[nodiscard]] std::uint32_t parts() const;
    [[nodiscard]] std::uint32_t slots() const;
    [[nodiscard]] PayloadMemory memory() const;  // never automatic
    // Why allow_direct has led to slots, naming the tensor if one is the reason; empty otherwise.
    [[nodiscard]] std::string_view why_not_direct() const;
    // Descriptors and handles passed to subscribers so far: does not grow from sync to sync.
    [[nodiscard]] std::uint64_t handles_passed() const;

  private:
    explicit Publisher(std::unique_ptr<weights::PublisherImpl> impl);
    std::unique_ptr<weights::PublisherImpl> impl_;
};

enum class SubscriberState : std::uint32_t {
    ready = 1,     // holds live_version() completely, or nothing yet
    reading = 2,   // reads a version, and does not hold all of it yet
    staged = 3,    // holds a complete version that is not known to be committed
    poisoned = 4,  // the engine holds a mixture of two versions, or a version
                   // that was never committed; cured by the next complete version
    closed = 5,
    expelled = 6,  // seen from outside: alive, but no longer attached
    refused = 7,   // seen from outside: it could not attach, or was not attached when a version was
                   // asked of it; its problem says why
};
ROLLRING_API std::string_view name(SubscriberState state);

// One version on its way in. Destruction before adopt is reject. Must not outlive its subscriber.
class [[nodiscard]] ROLLRING_API Update {
  public:
    Update(Update&&) noexcept;
    Update& operator=(Update&&) noexcept;
    ~Update();

    // Remains valid once the update is over.
    [[nodiscard]] std::int64_t version() const { return version_; }
    [[nodiscard]] std::uint32_t parts() const;  // 0 once it is over

    // Waits for the part, and lends views of it: they are valid until done_reading(), the span
    // itself until the next call. Parts come in order, each once, and as many may be lent at once
    // as the publisher has slots. Kernels that read a view must be queued on a stream that is then
    // passed to done_reading. Once the update has ended, no view may be read: its slot may be
    // filled again, and is unmapped with the subscriber.
    // Errors: timed_out, aborted, peer_gone, expelled, checksum_mismatch (names the tensor).
    Result<std::span<const TensorPiece>> part(std::uint32_t part, Deadline deadline);
    // Returns the oldest lent part once the stream reaches this point; not with Staging::delta.
    Result<void> done_reading(std::uint32_t part, Stream stream = {});
    // Copies all parts into the tensors given to attach: part, scatter and done_reading for each.
    // After timed_out another call goes on; a comparison, in the stream of the earlier call.
    Result<void> load(Deadline deadline, Stream stream = {});
    // Declares that the engine holds the complete version; waits for the device first.
    Result<void> stage(Deadline deadline);
    // Waits until the version is committed, and changes nothing: adopt() then does not wait.
    // Errors: as adopt().
    Result<void> wait_committed(Deadline deadline);
    // Waits until the version is committed, then declares that the engine serves it. With
    // Staging::delta it exchanges the values first, behind the work on the GPU's default stream;
    // work on the tensors in other streams must have ended. The exchange is waited for beyond the
    // deadline, for 10 minutes at most.
    // Errors: timed_out (may be called again), aborted, peer_gone, expelled, device_error (the
    // exchange; the engine is poisoned).
    Result<void> adopt(Deadline deadline);
    // Declares that the engine cannot take the version, and why. `tensor`: the culprit, or empty.
    void reject(std::string_view why, std::string_view tensor = {}) noexcept;

  private:
    friend class Subscriber;
    explicit Update(weights::EngineEnd* impl);
    [[nodiscard]] ROLLRING_LOCAL bool mine() const;
    [[nodiscard]] ROLLRING_LOCAL Result<void> check_open() const;
    weights::EngineEnd* impl_ = nullptr;
    std::uint64_t publication_ = 0;
    std::int64_t version_ = -1;
};

class ROLLRING_API Subscriber {
  public:
    // Attaches to a publisher of the ring's channel, waiting for one until the deadline. The
    // deadline does not cover the work of this process: matching names and mapping memory. The
    // publisher counts the subscriber (wait_subscribers) once nothing can fail here any more.
    // `into`: the engine's own tensors for Update::load, matched by name, dtype and shape; empty
    // for an engine that loads from views.
    // Errors: not_found, timed_out, layout_mismatch (tensor and field), permission_denied,
    // abi_mismatch, bad_manifest, busy (name taken, or channel full), no_gpu, no_peer_access.
    static Result<Subscriber> attach(std::string_view ring, std::span<const WeightTensor> into,
                                     const SubscriberOptions& options, Deadline deadline);
    // Returns the tensors of the publisher that a subscriber with these options would attach to.
    // Waits for a publisher until the deadline. The publisher does not count the caller.
    // Error: unsupported (it publishes shards: published_layout()), and those of attach().
    static Result<std::vector<TensorInfo>> published(std::string_view ring,
                                                     const SubscriberOptions& options,
                                                     Deadline deadline);
    // Returns the layout of a trainer whose ranks publish their shards, of all ranks. Waits until
    // they are there, or until the deadline. They do not count the caller.
    // Errors: not_found, timed_out, layout_mismatch (a rank publishes whole tensors), as attach().
    static Result<WeightLayout> published_layout(std::string_view ring,
                                                 const SubscriberOptions& options,
                                                 Deadline deadline);
    Subscriber(Subscriber&&) noexcept;
    Subscriber& operator=(Subscriber&&) noexcept;
    ~Subscriber();  // waits for its own device work, unmaps, and reports `closed`

    // Waits for the next version that this subscriber lacks; returns at once if there is one.
    // Errors: timed_out, peer_gone (publisher closed or dead: attach again), expelled,
    // rollback_asked (once for each request: call rollback(), which answers it, and then this
    // again).
    Result<Update> next(Deadline deadline);

    // For an engine that loads by itself: checks that there is still memory at both ends of each
    // tensor. Uses only name, dtype, shape and data of a tensor. Error: already_released (names the
    // tensor). Host memory is assumed to exist.
    Result<void> check_memory(std::span<const WeightTensor> tensors);

    // Declares that the engine accepts no version now, and why. A version that is waiting for it is
    // rejected, even if next() has not returned it yet; otherwise stat_weights() shows the reason,
    // and a request to roll back that next() has returned is refused.
    void refuse(std::string_view why) noexcept;

    // With Staging::delta: exchanges the values of the last version back, so that the tensors hold
    // the version before it, and live_version() is that one. Once for a version, until the next one
    // begins to load. The publisher does not send the version again. Needs no publisher. Other
    // streams of a GPU: as Update::adopt.
    // Errors: invalid_argument (there is nothing to go back to), busy (an update is open),
    // already_released (names the tensor), device_error (the engine is poisoned).
    Result<void> rollback();
    [[nodiscard]] DeltaReport delta() const;

    // Ends the current wait (of an update too), or else the next one, as if its deadline had
    // passed; the call that waited may be repeated. Any thread may call it.
    void interrupt();

    [[nodiscard]] std::int64_t live_version() const;  // -1: none yet
    [[nodiscard]] SubscriberState state() const;
    [[nodiscard]] std::string_view problem() const;  // why the last version was not taken
    [[nodiscard]] std::span<const TensorInfo> tensors() const;
    [[nodiscard]] std::int64_t publisher_id() const;  // identifies the publisher instance
    [[nodiscard]] PayloadMemory memory() const;
    // Calls that imported or mapped memory so far: does not grow from sync to sync.
    [[nodiscard]] std::uint64_t imports() const;
    // Memory of the engine's GPU for the parts of other GPUs (SubscriberOptions::stage_remote).
    [[nodiscard]] std::uint64_t staging_bytes() const;
    // Why the parts of a rank are not in such memory; empty: they are, or there are none, or the
    // engine did not ask for it. adopt() copies them from the other GPU.
    [[nodiscard]] std::string_view why_not_staged() const;

  private:
    friend class RelaySubscriber;
    explicit Subscriber(std::unique_ptr<weights::EngineEnd> impl);
    std::unique_ptr<weights::EngineEnd> impl_;
};

// A weight channel from outside, for `rollring weights`.
struct SubscriberStat {
    std::string name;
    std::uint32_t pid;  // in its own PID namespace: for people
    bool alive;
    std::string gpu;  // UUID, or "host"
    SubscriberState state;
    std::uint64_t read_done_parts;  // of the parts filled since the publisher came
    std::int64_t staged_version;
    std::int64_t live_version;
    std::string problem;  // its last error
    DeltaReport delta = {};
};
// The state of the version that was begun last.
enum class ChannelState {
    idle,  // no version was begun
    filling,
    published,
    committed,
    aborted,
    silent,  // the publisher does not answer, perhaps because it is stopped; no more is known
};
ROLLRING_API std::string_view name(ChannelState state);

struct WeightsStat {
    std::string ring;
    std::string publisher;
    std::uint32_t rank;
    std::uint32_t ranks;
    std::uint32_t pid;
    std::string gpu;
    std::string memory;
    std::string why_not_direct;  // see Publisher::why_not_direct
    std::uint64_t tensors;
    std::uint64_t payload_bytes;
    std::uint32_t parts;
    std::uint32_t slots;
    std::uint64_t slot_bytes;
    bool checksums;
    std::string layout_hash;
    ChannelState state;
    std::int64_t version;  // begun last
    std::int64_t committed_version;
    std::uint64_t syncs;
    std::uint64_t aborts;
    std::uint64_t handles_passed;
    SyncTimes last_times;
    std::vector<SubscriberStat> subscribers;
};

// All live publishers of a ring's channel, by rank. Takes no part in the channel.
ROLLRING_API Result<std::vector<WeightsStat>> stat_weights(std::string_view ring);

// Tells all publishers of the channel why an engine that is not attached takes no version. Their
// errors and stat_weights show the reason until the next begin(). Returns the number of publishers.
// An attached engine calls Subscriber::refuse or Update::reject instead.
ROLLRING_API Result<std::uint32_t> refuse_weights(std::string_view ring,
                                                  std::string_view subscriber,
                                                  std::string_view why);

// Counts, or removes, the sockets of publishers that are proven dead: those of one ring or, if it
// is empty, of all rings of this user. Returns their number. A new publisher replaces the socket of
// its predecessor by itself.
ROLLRING_API std::uint32_t dead_channels(std::string_view ring = {});
ROLLRING_API std::uint32_t remove_dead_channels(std::string_view ring = {});

}  // namespace rollring
