#include "reception.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>

#include "doorbell.hpp"
#include "quiet_thread.hpp"

namespace rollring::weights {

RefusalLine* Refusals::line_of(std::string_view name) const {
    auto* const found = std::ranges::find_if(
        page_->lines, [&](const RefusalLine& line) { return line.name.load() == name; });
    return found == std::end(page_->lines) ? nullptr : found;
}

void Refusals::note(std::string_view name, std::uint32_t pid, std::string_view why) {
    const std::scoped_lock lock(mutex_);
    RefusalLine* line = line_of(name);
    if (line == nullptr) line = line_of("");
    if (line == nullptr) line = &page_->lines[noted_ % refusals_kept];
    noted_++;
    line->name.store("");
    line->why.store(why);
    poke(line->pid, pid);
    line->name.store(name);
}

void Refusals::forget(std::string_view name) {
    const std::scoped_lock lock(mutex_);
    if (RefusalLine* line = line_of(name)) line->name.store("");
}

void Refusals::clear() {
    const std::scoped_lock lock(mutex_);
    for (RefusalLine& line : page_->lines) line.name.store("");
}

std::string Refusals::text() const {
    const std::scoped_lock lock(mutex_);
    std::string all;
    for (const RefusalLine& line : page_->lines) {
        const std::string name = line.name.load();
        if (!name.empty()) all += fmt::format("; '{}' refused: {}", name, line.why.load());
    }
    return all;
}

namespace {

constexpr std::ptrdiff_t silent_max = 64;

}  // namespace

Result<std::unique_ptr<Reception>> Reception::open(Listener listener, const Facts& facts,
                                                   const Shared& shared) {
    auto made = std::unique_ptr<Reception>(new Reception(std::move(listener), facts, shared));
    made->stop_ = Fd(eventfd(0, EFD_CLOEXEC));
    if (!made->stop_) {
        return failed(Errc::system, errno, "cannot make an eventfd");
    }
    const int error = start_quiet_thread(made->thread_, [self = made.get()] { self->serve(); });
    if (error == 0) return made;
    return failed(Errc::system, error, "cannot start the publisher's thread");
}

Reception::~Reception() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    eventfd_write(stop_.get(), 1);
    thread_.join();
    // Those that have not come so far can only leave: their seats are not waited for.
    for (const Connection& one : connections_) {
        if (one.kind == Connection::Kind::subscriber) seats_->vacate(one.id);
    }
}

void Reception::serve() {
    std::vector<pollfd> waits;
    for (;;) {
        waits.clear();
        waits.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
        // Without a free descriptor a new connection waits in the queue until one may be free
        // again.
        waits.push_back({.fd = crowded_ ? -1 : listener_.fd(), .events = POLLIN, .revents = 0});
        for (const Connection& connection : connections_) {
            waits.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
        }
        const int got = poll(waits.data(), waits.size(), crowded_ ? 100 : -1);
        crowded_ = false;
        if (got < 0) {  // more connections than RLIMIT_NOFILE now allows, or no memory
            if (stopping_) return;
            nap();
            continue;
        }
        if (waits[0].revents != 0) return;
        std::size_t i = 2;
        const auto over = [&](Connection& connection) {
            return waits[i++].revents != 0 && !answer(connection);
        };
        bool someone_left = false;
        std::erase_if(connections_, [&](Connection& connection) {
            if (!over(connection)) return false;
            if (connection.kind == Connection::Kind::subscriber ||
                connection.kind == Connection::Kind::ready) {
                seats_->vacate(connection.id);
            }
            someone_left = true;
            return true;
        });
        if (someone_left) ring_plain(control_->bell(ControlOffsets::publisher_bell()));
        if (waits[1].revents != 0) accept_all();
    }
}

void Reception::accept_all() {
    Fd socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
        crowded_ = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        return;
    }
    if (const auto checked = check_peer(socket.get()); !checked) {
        Message refusal = make_message(MessageKind::refusal);
        refusal.code = static_cast<std::uint32_t>(checked.error().code);
        set_text(refusal, checked.error().message);
        static_cast<void>(send_message(socket.get(), refusal));
        return;
    }
    connections_.push_back({.socket = ProcessFd(std::move(socket))});
    // Connections that say nothing must not use up our descriptors.
    const auto silent = [](const Connection& one) { return one.kind == Connection::Kind::unknown; };
    if (std::ranges::count_if(connections_, silent) > silent_max) {
        connections_.erase(std::ranges::find_if(connections_, silent));
    }
}

bool Reception::answer(Connection& connection) {
    auto received = receive_message(connection.socket.get(), Deadline::now());
    if (!received) return received.error().code == Errc::timed_out;
    const Message& message = received->message;
    Result<void> done;
    switch (message.kind) {
        case MessageKind::hello_subscriber:
        case MessageKind::hello_observer:
        case MessageKind::hello_rank:
            done = hello(connection, message);
            break;
        case MessageKind::ready:
            if (connection.kind != Connection::Kind::subscriber) return false;
            connection.kind = Connection::Kind::ready;
            seats_->join(connection.id);
            done = send_message(connection.socket.get(), make_message(MessageKind::admitted));
            break;
        case MessageKind::confirmed:
            if (connection.kind != Connection::Kind::ready) return false;
            seats_->confirm(connection.id);
            refusals_->forget(connection.name);
            ring_plain(control_->bell(ControlOffsets::publisher_bell()));
            break;
        case MessageKind::refuses:
            done = note_refusal(connection, message);
            break;
        case MessageKind::roll_back:
            done = ask_rollback(connection, message);
            break;
        case MessageKind::want_slot:
            done = give_slot(connection, message);
            break;
        default:
            return false;
    }
    if (done) return true;
    Message refusal = make_message(MessageKind::refusal);
    refusal.code = static_cast<std::uint32_t>(done.error().code);
    const int error = done.error().system_errno;  // ours: the other side only shows it
    set_text(refusal, error == 0 ? done.error().message
                                 : fmt::format("{} (the publisher: {})", done.error().message,
                                               std::generic_category().message(error)));
    static_cast<void>(send_message(connection.socket.get(), refusal));
    return false;
}

Result<void> Reception::check_token(const Message& message) const {
    if (message.ring_id == facts_.ring_id && message.token == facts_.token) return {};
    return refused(Errc::permission_denied,
                   "the token does not match: this publisher belongs to another ring of that "
                   "name, removed or made again since; attach to the ring again");
}

Result<void> Reception::note_refusal(const Connection& connection, const Message& message) {
    if (auto known = check_token(message); !known) return known;
    refusals_->note(name_of(message), message.seat, text_of(message));
    ring_plain(control_->bell(ControlOffsets::publisher_bell()));
    return send_message(connection.socket.get(), make_message(MessageKind::noted));
}

Result<void> Reception::ask_rollback(const Connection& connection, const Message& message) {
    if (auto known = check_token(message); !known) return known;
    const std::int64_t version = publication_->shown_version();
    if (version < 0) return refused(Errc::not_found, "no version is committed yet");
    Message reply = make_message(MessageKind::asked);
    reply.epoch = publication_->ask_rollback(version);
    seats_->ring_all();
    return send_message(connection.socket.get(), reply);
}

Result<void> Reception::hello(Connection& connection, const Message& message) {
    if (connection.kind != Connection::Kind::unknown) {
        return refused(Errc::invalid_argument, "a second hello on one connection");
    }
    if (auto known = check_token(message); !known) return known;
    if (message.kind != MessageKind::hello_subscriber) {
        connection.kind = message.kind == MessageKind::hello_rank ? Connection::Kind::rank
                                                                  : Connection::Kind::observer;
        return welcome(connection, false);
    }
    const std::string name = name_of(message);
    if (name.empty()) return refused(Errc::invalid_argument, "a subscriber needs a name");
    const auto id = seats_->reserve(name);
    if (!id) return std::unexpected(id.error());
    connection.kind = Connection::Kind::subscriber;
    connection.id = *id;
    connection.name = name;
    return welcome(connection, true);
}

Result<void> Reception::welcome(Connection& connection, bool with_slots) {
    Message message = make_message(MessageKind::welcome);
    message.seat = connection.id.seat;
    message.epoch = connection.id.epoch;
    message.control_bytes = control_->bytes();
    message.manifest_bytes = facts_.manifest_bytes;
    message.ranks = control_->offsets().ranks;
    std::memcpy(message.gpu, facts_.gpu.bytes.data(), sizeof message.gpu);
    Fd control(-1);  // an observer cannot write
    if (connection.kind == Connection::Kind::observer) {
        auto reopened = control_->memory().read_only();
        if (!reopened) return std::unexpected(reopened.error());
        control = std::move(*reopened);
    }
    std::vector<int> fds{control ? control.get() : control_->memory().fd(), facts_.manifest_fd};
    if (with_slots) {
        for (const auto& [ticket, fd] : seats_->slots_for_wire()) {
            message.tickets[message.tickets_used++] = ticket;
            if (ticket.has_fd != 0) fds.push_back(fd);
        }
    }
    if (with_slots) publication_->count_handles(2 + std::uint64_t{message.tickets_used});
    return send_message(connection.socket.get(), message, fds);
}

Result<void> Reception::give_slot(Connection& connection, const Message& message) {
    const auto slots = seats_->slots_for_wire();
    if (connection.kind != Connection::Kind::ready || message.slot >= slots.size()) {
        return refused(Errc::invalid_argument, "no such slot");
    }
    Message reply = make_message(MessageKind::slot);
    reply.slot = message.slot;
    const auto& [ticket, fd] = slots[message.slot];
    reply.tickets[0] = ticket;
    reply.tickets_used = 1;
    publication_->count_handles(1);
    const std::span<const int> fds(&fd, ticket.has_fd != 0 ? 1 : 0);
    return send_message(connection.socket.get(), reply, fds);
}

}  // namespace rollring::weights
