#include "session.hpp"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "fault_point.hpp"
#include "find_publisher.hpp"
#include "greeting.hpp"

namespace rollring::weights {

std::string Holding::text() const {
    if (is_mixed()) return "this subscriber is poisoned until it receives a complete version";
    if (live_version_ < 0) return "this subscriber holds no version yet";
    return fmt::format("this subscriber holds all of version {}", live_version_);
}

void Holding::give_up(std::string problem) {
    state_ = is_mixed() ? SubscriberState::poisoned : SubscriberState::ready;
    being_written_ = false;
    problem_ = std::move(problem);
}

void Holding::adopt(std::int64_t version) {
    live_version_ = received_version_ = version;
    state_ = SubscriberState::ready;
    being_written_ = false;
    problem_.clear();
}

void Holding::go_back(std::int64_t version) {
    live_version_ = version;
    being_written_ = false;
}

Result<std::unique_ptr<Session>> Session::meet(std::string_view ring, std::uint32_t rank,
                                               const Own& own, Patience& patience) {
    auto socket = connect_to(ring, rank);
    if (!socket) return std::unexpected(socket.error());
    auto answer =
        greet(socket->get(), MessageKind::hello_subscriber, own.link, own.options.name, patience);
    if (!answer) return std::unexpected(answer.error());
    if (!own.options.rank && answer->message.ranks > 1 &&
        !is_on_gpu(answer->message, own.options.device,
                   own.gpus)) {  // the right one may be about to come
        return refused(Errc::not_found, fmt::format("ring {} has 1 live publisher of {}", ring,
                                                    answer->message.ranks));
    }
    std::unique_ptr<Session> made(new Session(ring, own.options, own.holding));
    made->socket_ = ProcessFd(std::move(*socket));
    auto accepted = patience.work([&] { return made->accept(std::move(*answer), own.gpus); });
    if (accepted) return made;
    if (made->control_ && accepted.error().code == Errc::device_error) {
        if (auto lives = made->check_not_dying(); !lives) return std::unexpected(lives.error());
    }
    made->tell_refusal(own.link, accepted.error().message);
    return std::unexpected(accepted.error());
}

Result<void> Session::accept(Received answer, const device::Gpus& gpus) {
    const Message& welcome = answer.message;
    seat_ = welcome.seat;
    epoch_ = welcome.epoch;
    auto read = manifest_of(answer);
    if (!read) return std::unexpected(read.error());
    manifest_ = std::move(*read);
    auto control = PeerControl::accept(std::move(answer.fds[0]), welcome.control_bytes);
    if (!control) return std::unexpected(control.error());
    control_ = std::move(*control);
    if (auto opened = open_backend(gpus); !opened) return opened;
    std::size_t next_fd = 2;
    for (std::uint32_t slot = 0; slot < welcome.tickets_used; slot++) {
        Fd fd;
        if (welcome.tickets[slot].has_fd != 0) {
            if (next_fd == answer.fds.size()) {
                return refused(Errc::bad_manifest, "the publisher's welcome lacks descriptors");
            }
            fd = std::move(answer.fds[next_fd++]);
        }
        auto imported = import_slot(slot, welcome.tickets[slot], std::move(fd));
        if (!imported) return imported;
    }
    if (manifest_.memory == PayloadMemory::direct && !is_placed_) {
        return refused(Errc::bad_manifest, "the publisher's welcome lacks its tensors");
    }
    return {};
}

Result<void> Session::open_backend(const device::Gpus& gpus) {
    if (options_.device.is_gpu()) {
        auto backend = gpus.open(options_.device, manifest_.memory);
        if (!backend) return std::unexpected(backend.error());
        backend_ = std::move(*backend);
        backend_.mover->take_share(options_.staging_share);
        return {};
    }
    if (manifest_.memory != PayloadMemory::host) {
        return refused(Errc::unsupported,
                       fmt::format("the publisher's payload is GPU memory ({}): attach with a GPU "
                                   "as device, or publish with memory host",
                                   name(manifest_.memory)));
    }
    backend_ = device::make_host_backend();
    return {};
}

// Each step at all publishers before the next one: a publisher refuses at its welcome, and an
// engine that cannot continue finds out before any publisher has admitted it.
Result<void> Session::enter(std::span<Session* const> sessions, Patience& patience) {
    for (Session* one : sessions) {
        if (auto seated = one->take_seat(patience); !seated) return seated;
    }
    for (const Session* one : sessions) {
        auto sent = send_message(one->socket_.get(), make_message(MessageKind::ready));
        if (!sent) return sent;
    }
    for (Session* one : sessions) {
        if (auto admitted = one->wait_admitted(patience); !admitted) return admitted;
    }
    FAULT_POINT("weights.admitted");
    // The word first: a version that is begun from here on waits for this engine.
    for (const Session* one : sessions) store_release(one->own().attached, 1U);
    for (const Session* one : sessions) {
        auto sent = send_message(one->socket_.get(), make_message(MessageKind::confirmed));
        if (!sent) return sent;
    }
    FAULT_POINT("weights.attached");
    return {};
}

Result<void> Session::wait_admitted(Patience& patience) {
    const auto admitted = patience.receive(socket_.get());
    if (!admitted) return std::unexpected(admitted.error());
    if (admitted->message.kind == MessageKind::admitted) return {};
    return refused(Errc::bad_manifest, "the publisher refused: " + text_of(admitted->message));
}

Result<void> Session::take_seat(Patience& patience) {
    if (auto taken = control_->take_seat(seat_); !taken) return taken;
    reading_.emplace(mover(), own(), own_bell(), publisher_bell());
    const int fd = control_->memory().fd();
    auto life = LifeLock::take(fd, LifeByte::subscriber(seat_));
    // The last holder may be dying: its socket is closed before its byte is free.
    for (; life && !*life && !patience.over(); nap()) {
        life = LifeLock::take(fd, LifeByte::subscriber(seat_));
    }
    if (!life) return std::unexpected(life.error());
    if (!*life) return refused(Errc::busy, "another process holds this subscriber's seat");
    life_ = std::move(**life);

    SubscriberPage& page = own();
    store_release(page.epoch, std::uint64_t{0});
    for (auto* word : {&page.read_done, &page.publications_read, &page.staged, &page.rejected}) {
        poke(*word, std::uint64_t{0});
    }
    poke(page.staged_version, holding_->live_version());
    poke(page.live_version, holding_->live_version());
    poke(page.state, static_cast<std::uint32_t>(SubscriberState::ready));
    poke(page.closed, 0U);
    poke(page.attached, 0U);
    poke(page.delta_version, std::uint64_t{0});
    poke(page.answered, std::uint64_t{0});
    poke(page.takes_requests, options_.rollback_when_asked ? 1U : 0U);
    poke(page.pid, static_cast<std::uint32_t>(getpid()));
    const GpuUuid gpu = mover().gpu();
    std::uint64_t words[2];
    std::memcpy(words, gpu.bytes.data(), sizeof words);
    poke(page.gpu[0], words[0]);
    poke(page.gpu[1], words[1]);
    page.name.store(options_.name);
    page.problem.store("");
    store_release(page.epoch, epoch_);
    return {};
}

void Session::tell_refusal(const RingLink& link, std::string_view why) const {
    static_cast<void>(weights::tell_refusal(socket_.get(), link, options_.name, why));
}

bool Session::close() {
    if (!life_) return true;  // it never got its seat
    if (!is_ours()) return false;
    const bool quiet = reading_->drain(Deadline::after_ms(10'000));
    if (quiet) {
        slots_.clear();
        say(SubscriberState::closed);
        store_release(own().closed, 1U);
        FAULT_POINT("weights.closing");
    }
    ring_publisher();
    socket_ = ProcessFd();
    return quiet;
}

Result<void> Session::import_slot(std::uint32_t slot, const WireTicket& wire, Fd fd) {
    const BlockTicket ticket = from_wire(wire);
    if (ticket.memory != manifest_.memory || ticket.bytes < manifest_.packing.slot_bytes ||
        ticket.bytes > 2 * slot_bytes_max) {
        return refused(Errc::bad_manifest, "a slot's memory does not match the manifest");
    }
    auto block = backend_.memory->import(ticket, std::move(fd));
    if (!block) return std::unexpected(block.error());
    imports_++;
    if (slot >= slots_.size()) slots_.resize(slot + 1);
    slots_[slot] = std::move(*block);
    return manifest_.memory == PayloadMemory::direct ? place_pieces(*slots_[slot]) : Result<void>();
}

// From the publisher's block to the allocations as they were mapped here.
Result<void> Session::place_pieces(const SharedBlock& block) {
    if (is_placed_) return refused(Errc::bad_manifest, "the publisher sent its tensors twice");
    is_placed_ = true;
    const std::vector<PackedTensor>& tensors = manifest_.packing.tensors;
    for (Piece& piece : manifest_.packing.pieces) {
        const std::uint64_t bytes = piece.elements * tensors[piece.tensor].dtype.bytes();
        const auto distance = block.distance(piece.slot_offset, bytes);
        if (!distance) return std::unexpected(distance.error());
        piece.slot_offset = *distance;
    }
    return {};
}

// Asks for a slot only after another subscriber was expelled, because its slots were replaced.
// After timed_out the answer is still on its way, and is received before anything else.
Result<std::byte*> Session::map_slot(std::uint32_t slot, Deadline deadline) {
    while (slot >= slots_.size() || !slots_[slot]) {
        if (!asked_) {
            Message request = make_message(MessageKind::want_slot);
            request.slot = slot;
            auto sent = send_message(socket_.get(), request);
            if (!sent) return std::unexpected(sent.error());
            asked_ = slot;
        }
        auto reply = receive_message(socket_.get(), deadline);  // timed_out: the next call gets it
        if (!reply) return std::unexpected(reply.error());
        if (reply->message.kind != MessageKind::slot || reply->message.slot != *asked_) {
            return refused(Errc::bad_manifest,
                           "the publisher did not provide a slot: " + text_of(reply->message));
        }
        asked_.reset();
        Fd fd;
        if (!reply->fds.empty()) fd = std::move(reply->fds[0]);
        auto imported = import_slot(reply->message.slot, reply->message.tickets[0], std::move(fd));
        if (!imported) return std::unexpected(imported.error());
    }
    return slots_[slot]->data();
}

Result<std::uint32_t> Session::slot_of(std::uint32_t part, std::uint64_t part_number) const {
    const PartLine& line = publisher().parts[part_number % parts_kept];
    const std::uint32_t slot = observe(line.slot);
    if (observe(line.number) != part_number || observe(line.part) != part || slot >= slots_limit) {
        return refused(Errc::bad_manifest,
                       fmt::format("the publisher's line for part {} is damaged", part));
    }
    return slot;
}

std::string Session::why_aborted(std::uint64_t publication) const {
    return publisher().publications[publication % publications_kept].why.load();
}

Result<void> Session::check_publisher() const {
    const bool closed = observe(publisher().closed) != 0;
    if (!closed && alive(control_->memory().fd(), LifeByte::publisher())) return {};
    return refused(Errc::peer_gone,
                   fmt::format("the publisher of ring {} {}; {}; attach again", ring_name_,
                               closed ? "has closed" : "died", holding_->text()));
}

// A process that dies takes its memory away first, and is proven dead a moment later.
Result<void> Session::check_not_dying() const {
    Result<void> lives = check_publisher();
    for (const Deadline moment = Deadline::after_ms(200); lives && !moment.passed();) {
        nap();
        lives = check_publisher();
    }
    return lives;
}

Result<void> Session::check_admitted() const {
    if (!is_expelled()) return {};
    return refused(Errc::expelled,
                   fmt::format("the publisher of ring {} continued without '{}'; {}; attach again",
                               ring_name_, options_.name, holding_->text()));
}

Result<void> Session::look_around(std::string_view what) const {
    if (interruption_.take()) return late(what);
    if (auto admitted = check_admitted(); !admitted) return admitted;
    return check_publisher();
}

std::unexpected<Error> Session::late(std::string_view what) const {
    return refused(Errc::timed_out, fmt::format("'{}' waited for {} until the deadline; {}",
                                                options_.name, what, holding_->text()));
}

}  // namespace rollring::weights
