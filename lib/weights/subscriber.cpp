// A subscriber's coming and going.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "channel_names.hpp"
#include "doorbell.hpp"
#include "fault_point.hpp"
#include "greeting.hpp"
#include "refuse.hpp"
#include "subscriber_impl.hpp"

namespace rollring {
namespace weights {
namespace {

GpuUuid uuid_of(Device device) {
    if (!device.is_gpu()) return {};  // leaves CUDA alone
    const auto gpus = visible_gpus();
    const auto ordinal = static_cast<std::size_t>(device.gpu);
    return device.is_gpu() && ordinal < gpus.size() ? gpus[ordinal] : GpuUuid{};
}

}  // namespace

Result<std::unique_ptr<SubscriberImpl>> SubscriberImpl::attach(std::string_view ring,
                                                               std::span<const WeightTensor> into,
                                                               const SubscriberOptions& options,
                                                               Deadline deadline) {
    if (options.name.empty() || options.name.size() > 31) {
        return refused(Errc::invalid_argument, "SubscriberOptions::name is 1 to 31 bytes");
    }
    for (;;) {
        auto link = RingLink::attach(ring, deadline, false);
        if (!link) return std::unexpected(link.error());
        std::unique_ptr<SubscriberImpl> made(new SubscriberImpl(ring, options, std::move(*link)));
        const auto rank = made->choose_rank(deadline);
        Result<void> met =
            rank ? made->meet(*rank, into, deadline) : Result<void>(std::unexpected(rank.error()));
        if (met) return made;
        // A publisher that is about to come, or has just gone, is worth waiting for.
        const bool absent =
            met.error().code == Errc::not_found || met.error().code == Errc::peer_gone;
        if (!absent) return std::unexpected(met.error());
        if (deadline.passed()) {
            return refused(Errc::timed_out,
                           fmt::format("no publisher for '{}' came to ring {} by the deadline ({})",
                                       options.name, ring, met.error().message));
        }
        nap();
    }
}

Result<std::uint32_t> SubscriberImpl::choose_rank(Deadline deadline) const {
    if (options_.rank) return *options_.rank;
    const auto ranks = channel::ranks_of(ring_name_);
    if (ranks.empty()) {
        return refused(Errc::not_found, fmt::format("ring {} has no publisher", ring_name_));
    }
    if (ranks.size() == 1) return ranks[0];  // meet() looks whether it is the right one
    const GpuUuid own = uuid_of(options_.device);
    std::string seen;
    std::uint32_t answered = 0;
    std::uint32_t expected = 1;
    for (const std::uint32_t rank : ranks) {
        auto socket = connect_to(ring_name_, rank);
        if (!socket) continue;
        // A stopped one is not to keep us from the others.
        const Deadline patience{std::min(deadline.at_ns, Deadline::after_ms(200).at_ns)};
        const auto welcome =
            greet(socket->get(), MessageKind::hello_observer, link_, options_.name, patience);
        if (!welcome &&
            (welcome.error().code == Errc::peer_gone || welcome.error().code == Errc::timed_out)) {
            continue;
        }
        if (!welcome) return std::unexpected(welcome.error());
        GpuUuid gpu;
        std::memcpy(gpu.bytes.data(), welcome->message.gpu, sizeof welcome->message.gpu);
        answered++;
        expected = std::max(expected, welcome->message.ranks);
        if ((gpu.is_gpu() && gpu == own) || welcome->message.ranks == 1) return rank;
        seen += fmt::format("{}rank {} on {}", seen.empty() ? "" : ", ", rank, gpu.to_string());
    }
    if (answered < expected) {  // the right one may be about to come
        return refused(Errc::not_found,
                       fmt::format("ring {} has {} of {} live publishers{}{}", ring_name_, answered,
                                   expected, seen.empty() ? "" : ": ", seen));
    }
    return refused(Errc::invalid_argument,
                   fmt::format("none of the publishers is on this subscriber's GPU ({}): {}; name "
                               "one with SubscriberOptions::rank",
                               own.to_string(), seen));
}

Result<void> SubscriberImpl::meet(std::uint32_t rank, std::span<const WeightTensor> into,
                                  Deadline deadline) {
    auto socket = connect_to(ring_name_, rank);
    if (!socket) return std::unexpected(socket.error());
    const GpuUuid gpu = uuid_of(options_.device);
    auto answer =
        greet(socket->get(), MessageKind::hello_subscriber, link_, options_.name, deadline);
    if (!answer) return std::unexpected(answer.error());
    socket_ = ProcessFd(std::move(*socket));
    const Message& welcome = answer->message;
    const bool same_gpu = gpu.is_gpu() && std::memcmp(welcome.gpu, gpu.bytes.data(), 16) == 0;
    if (!options_.rank && welcome.ranks > 1 && !same_gpu) {  // the right one may be about to come
        return refused(Errc::not_found, fmt::format("ring {} has 1 of {} live publishers",
                                                    ring_name_, welcome.ranks));
    }

    auto manifest = Sealed::accept(std::move(answer->fds[1]), welcome.manifest_bytes, true);
    if (!manifest) return std::unexpected(manifest.error());
    auto mapping = manifest->map(0, welcome.manifest_bytes, false);
    if (!mapping) return std::unexpected(mapping.error());
    auto read = read_manifest({mapping->data(), mapping->bytes()});
    if (!read) return std::unexpected(read.error());
    manifest_ = std::move(*read);
    auto control = PeerControl::accept(std::move(answer->fds[0]), welcome.control_bytes);
    if (!control) return std::unexpected(control.error());
    control_ = std::move(*control);

    if (options_.device.is_gpu()) {
        auto backend = make_gpu_backend(options_.device, manifest_.memory);
        if (!backend) return std::unexpected(backend.error());
        backend_ = std::move(*backend);
    } else if (manifest_.memory != PayloadMemory::host) {
        return refused(Errc::unsupported,
                       fmt::format("the publisher's payload is GPU memory ({}): attach with a GPU "
                                   "as device, or publish with memory host",
                                   name(manifest_.memory)));
    } else {
        backend_ = make_host_backend();
    }
    std::size_t next_fd = 2;
    for (std::uint32_t slot = 0; slot < welcome.tickets_used; slot++) {
        Fd fd;
        if (welcome.tickets[slot].has_fd != 0) {
            if (next_fd == answer->fds.size()) {
                return refused(Errc::bad_manifest, "the publisher's welcome lacks descriptors");
            }
            fd = std::move(answer->fds[next_fd++]);
        }
        auto imported = import_slot(slot, welcome.tickets[slot], std::move(fd));
        if (!imported) return imported;
    }
    describe_tensors();
    if (auto compiled = compile(into); !compiled) return compiled;
    if (auto seated = take_seat(welcome, deadline); !seated) return seated;

    if (auto sent = send_message(socket_.get(), make_message(MessageKind::ready)); !sent) {
        return std::unexpected(sent.error());
    }
    const auto admitted = receive_message(socket_.get(), deadline);
    if (!admitted) return std::unexpected(admitted.error());
    if (admitted->message.kind != MessageKind::admitted) {
        return refused(Errc::bad_manifest,
                       "the publisher did not admit: " + text_of(admitted->message));
    }
    FAULT_POINT("weights.attached");
    return {};
}

Result<void> SubscriberImpl::take_seat(const Message& welcome, Deadline deadline) {
    seat_ = welcome.seat;
    epoch_ = welcome.epoch;
    if (auto taken = control_->take_seat(seat_); !taken) return taken;
    const int fd = control_->memory().fd();
    auto life = LifeLock::take(fd, LifeByte::subscriber(seat_));
    // The last holder of the seat may be dying: its socket is closed before its byte is free.
    for (; life && !*life && !deadline.passed(); nap()) {
        life = LifeLock::take(fd, LifeByte::subscriber(seat_));
    }
    if (!life) return std::unexpected(life.error());
    if (!*life) return refused(Errc::busy, "another process holds this subscriber's seat");
    life_ = std::move(**life);

    SubscriberPage& page = control_->own();
    publish(page.epoch, std::uint64_t{0});
    for (auto* word : {&page.read_done, &page.settled, &page.staged, &page.rejected}) {
        poke(*word, std::uint64_t{0});
    }
    live_version_ = options_.held_version;
    poke(page.staged_version, live_version_);
    poke(page.live_version, live_version_);
    poke(page.state, static_cast<std::uint32_t>(SubscriberState::ready));
    poke(page.closed, 0U);
    poke(page.pid, static_cast<std::uint32_t>(getpid()));
    const GpuUuid gpu = backend_.mover->gpu();
    std::uint64_t words[2];
    std::memcpy(words, gpu.bytes.data(), sizeof words);
    poke(page.gpu[0], words[0]);
    poke(page.gpu[1], words[1]);
    page.name.store(options_.name);
    page.problem.store("");
    publish(page.epoch, epoch_);
    return {};
}

Result<void> SubscriberImpl::import_slot(std::uint32_t slot, const WireTicket& wire, Fd fd) {
    const ChunkTicket ticket = from_wire(wire);
    if (ticket.memory != manifest_.memory || ticket.bytes < manifest_.packing.slot_bytes ||
        ticket.bytes > 2 * slot_bytes_max) {
        return refused(Errc::bad_manifest, "a slot's memory does not fit the manifest");
    }
    auto chunk = backend_.memory->import(ticket, std::move(fd));
    if (!chunk) return std::unexpected(chunk.error());
    imports_++;
    if (slot >= chunks_.size()) chunks_.resize(slot + 1);
    chunks_[slot] = std::move(*chunk);
    return {};
}

// Only after another subscriber was expelled: its slots were replaced.
// May be called again after timed_out: what was asked for is still on its way, and is waited for
// before anything else is.
Result<void> SubscriberImpl::fetch_slot(std::uint32_t slot, Deadline deadline) {
    while (slot >= chunks_.size() || !chunks_[slot]) {
        if (!asked_) {
            Message request = make_message(MessageKind::want_slot);
            request.slot = slot;
            if (auto sent = send_message(socket_.get(), request); !sent) return sent;
            asked_ = slot;
        }
        auto reply = receive_message(socket_.get(), deadline);  // timed_out: it comes the next time
        if (!reply) return std::unexpected(reply.error());
        if (reply->message.kind != MessageKind::slot || reply->message.slot != *asked_) {
            return refused(Errc::bad_manifest,
                           "the publisher gave no slot: " + text_of(reply->message));
        }
        asked_.reset();
        Fd fd;
        if (!reply->fds.empty()) fd = std::move(reply->fds[0]);
        auto imported = import_slot(reply->message.slot, reply->message.tickets[0], std::move(fd));
        if (!imported) return imported;
    }
    return {};
}

void SubscriberImpl::describe_tensors() {
    const Packing& packing = manifest_.packing;
    std::vector<std::uint32_t> part_of(packing.pieces.size());
    for (std::uint32_t part = 0; part < packing.parts.size(); part++) {
        const Part& at = packing.parts[part];
        std::fill_n(part_of.begin() + at.first_piece, at.pieces, part);
    }
    for (const PackedTensor& tensor : packing.tensors) {
        const PackedTensor& bytes_of =
            tensor.tied_to < 0 ? tensor : packing.tensors[static_cast<std::size_t>(tensor.tied_to)];
        const std::uint32_t first = bytes_of.pieces == 0 ? 0 : part_of[bytes_of.first_piece];
        const std::uint32_t last =
            bytes_of.pieces == 0 ? 0 : part_of[bytes_of.first_piece + bytes_of.pieces - 1];
        infos_.push_back({.name = tensor.name,
                          .dtype = tensor.dtype,
                          .shape = tensor.shape,
                          .tag = tensor.tag,
                          .bytes = tensor.bytes(),
                          .first_part = first,
                          .parts = bytes_of.pieces == 0 ? 0 : last - first + 1,
                          .tied_to = tensor.tied_to});
    }
}

bool SubscriberImpl::shut_down() {
    if (!life_) return true;  // it never attached
    if (!life_->held()) return false;
    const bool quiet = drain(Deadline::after_ms(10'000));
    if (quiet) {
        chunks_.clear();
        set_state(SubscriberState::closed);
        publish(control_->own().closed, 1U);
        FAULT_POINT("weights.closing");
    }
    ring_publisher();
    socket_ = ProcessFd();
    return quiet;
}

}  // namespace weights

Subscriber::Subscriber(std::unique_ptr<weights::SubscriberImpl> impl) : impl_(std::move(impl)) {}
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
Subscriber::~Subscriber() {
    // What the device may still read is better leaked than unmapped under it.
    if (impl_ && !impl_->shut_down()) [[maybe_unused]]
        auto* leaked = impl_.release();
}

Result<Subscriber> Subscriber::attach(std::string_view ring, std::span<const WeightTensor> into,
                                      const SubscriberOptions& options, Deadline deadline) {
    auto impl = weights::SubscriberImpl::attach(ring, into, options, deadline);
    if (!impl) return std::unexpected(impl.error());
    return Subscriber(std::move(*impl));
}

Result<Update> Subscriber::next(Deadline deadline) {
    if (auto found = impl_->next(deadline); !found) return std::unexpected(found.error());
    return Update(impl_.get());
}

std::int64_t Subscriber::live_version() const {
    return impl_->live_version();
}
SubscriberState Subscriber::state() const {
    return impl_->state();
}
std::string_view Subscriber::problem() const {
    return impl_->problem();
}
std::span<const TensorInfo> Subscriber::tensors() const {
    return impl_->tensors();
}
PayloadMemory Subscriber::memory() const {
    return impl_->manifest().memory;
}
std::uint64_t Subscriber::imports() const {
    return impl_->imports();
}

std::string_view name(SubscriberState state) {
    switch (state) {
        case SubscriberState::ready:
            return "ready";
        case SubscriberState::reading:
            return "reading";
        case SubscriberState::staged:
            return "staged";
        case SubscriberState::poisoned:
            return "poisoned";
        case SubscriberState::closed:
            return "closed";
    }
    return "unknown";
}

}  // namespace rollring
