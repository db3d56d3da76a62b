#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "fault_point.hpp"
#include "human.hpp"
#include "liveness.hpp"
#include "request_pages.hpp"
#include "rollring/extras/requests.hpp"

namespace rollring {

using requests::Bodies;
using requests::LookAround;
using requests::request_seats;
using requests::RequestControl;
using requests::RequestEntry;
using requests::RequestPages;
using requests::State;
using requests::Word;

struct RequestBoard::Impl {
    RequestPages pages;
    LifeLock life;
    std::uint64_t serial;  // of the next request
    std::uint64_t generation = fork_generation();
    LookAround around{};
    Interruption interruption{};
    struct Place {
        bool used = false;  // its last request may still be under way
        std::uint64_t serial = 0;
        std::uint64_t reserved_bytes = 0;
    };
    std::vector<Place> places{};
    std::vector<std::uint32_t> free{};

    void withdraw_all();
    // A taken request becomes free when its worker lets go of it, any other one now. False: its
    // word is no longer `seen`.
    [[nodiscard]] bool withdraw(std::uint32_t place, std::uint64_t seen) const;
    // A free entry. Its word is then this board's to write, until it says `waiting`.
    std::optional<std::uint32_t> find_place();
    // Whether the entry's last request is finished, or its word was overwritten.
    [[nodiscard]] bool over(std::uint32_t place) const;
    std::vector<std::uint64_t> take_given_up();
};

namespace {

Result<std::optional<LifeLock>> take_board(const RequestPages& pages, Deadline deadline) {
    while (true) {
        auto lock = LifeLock::take(pages.fd(), requests::board_byte());
        if (!lock || lock->has_value() || deadline.passed()) return lock;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}  // namespace

// No worker begins a waiting request any more; a taken one ends when its worker lets go of it.
void RequestBoard::Impl::withdraw_all() {
    places.resize(pages.count());
    for (std::uint32_t place = 0; place < pages.count(); place++) {
        while (true) {
            const std::uint64_t seen = observe(pages.entry(place).word);
            if (!withdraw(place, seen)) continue;
            const Word word = Word::of(seen);
            places[place].used = word.state == State::taken;
            places[place].serial = word.serial;
            break;
        }
    }
}

bool RequestBoard::Impl::withdraw(std::uint32_t place, std::uint64_t seen) const {
    const Word word = Word::of(seen);
    Word next;
    if (word.state == State::taken) {
        next = word;
        next.withdrawn = true;
    }
    if (!pages.entry(place).word.compare_exchange_strong(seen, next.packed())) return false;
    if (word.state == State::waiting || (word.state == State::taken && !word.withdrawn)) {
        add(pages.control().withdrawn, std::uint64_t{1});
    }
    return true;
}

bool RequestBoard::Impl::over(std::uint32_t place) const {
    const Word word = Word::of(observe(pages.entry(place).word));
    const bool known =
        word.state == State::waiting || word.state == State::taken || word.state == State::given_up;
    return !known || word.serial != static_cast<std::uint32_t>(places[place].serial);
}

std::optional<std::uint32_t> RequestBoard::Impl::find_place() {
    if (free.empty()) {
        // The lowest last, because it is taken first.
        for (std::uint32_t place = pages.count(); place-- > 0;) {
            if (places[place].used && !over(place)) continue;
            places[place].used = false;
            free.push_back(place);
        }
    }
    if (free.empty()) return std::nullopt;
    const std::uint32_t place = free.back();
    free.pop_back();
    return place;
}

std::vector<std::uint64_t> RequestBoard::Impl::take_given_up() {
    std::vector<std::uint64_t> found;
    for (std::uint32_t place = 0; place < pages.count(); place++) {
        if (!places[place].used) continue;
        std::uint64_t seen = observe(pages.entry(place).word);
        const Word word = Word::of(seen);
        if (word.state != State::given_up ||
            word.serial != static_cast<std::uint32_t>(places[place].serial)) {
            continue;
        }
        found.push_back(requests::number_of(places[place].serial, place));
        store_release(pages.entry(place).word, Word{}.packed());
    }
    return found;
}

RequestBoard::RequestBoard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RequestBoard::RequestBoard(RequestBoard&&) noexcept = default;
RequestBoard& RequestBoard::operator=(RequestBoard&&) noexcept = default;
RequestBoard::~RequestBoard() {
    if (impl_ != nullptr && impl_->life.held()) impl_->withdraw_all();
}

Result<RequestBoard> RequestBoard::open(std::string_view ring, const RequestBoardOptions& options) {
    if (options.attempts < 1 || options.attempts > requests::attempts_most) {
        return refused(Errc::invalid_argument,
                       fmt::format("attempts is {}, must be 1 to {}", options.attempts,
                                   requests::attempts_most));
    }
    const Deadline deadline = Deadline::after(options.attach_timeout);
    while (true) {
        auto pages = RequestPages::attach(ring, deadline, Bodies::written);
        if (!pages) return std::unexpected(pages.error());
        auto life = take_board(*pages, deadline);
        if (!life) return std::unexpected(life.error());
        if (!life->has_value()) {
            return refused(Errc::busy,
                           fmt::format("another process posts requests on ring {}", ring));
        }
        auto stays = pages->stays(deadline);
        if (!stays) return std::unexpected(stays.error());
        if (!*stays) continue;
        RequestControl& control = pages->control();
        const std::uint32_t epoch = peek(control.epoch) + 1;
        poke(control.attempts, options.attempts);
        poke(control.pid, static_cast<std::uint32_t>(getpid()));
        store_release(control.epoch, epoch);
        // Serials of one board differ from the last ones of the board before.
        auto impl = std::unique_ptr<Impl>(new Impl{std::move(*pages), std::move(**life),
                                                   (std::uint64_t{epoch & 0xfff} << 20) + 1});
        impl->withdraw_all();
        return RequestBoard(std::move(impl));
    }
}

Result<std::uint64_t> RequestBoard::post(std::span<const std::byte> body, Deadline deadline) {
    const RequestPages& pages = impl_->pages;
    if (body.size() > pages.body_bytes()) {
        return refused(
            Errc::too_large,
            fmt::format(
                "a request has {}, but the ring allows {}: create it with larger --request-bytes",
                human_bytes(body.size()), human_bytes(pages.body_bytes())));
    }
    std::optional<std::uint32_t> place;
    Result<void> usable;
    const bool found = wait_plain(pages.board_bell(), {}, deadline, [&] {
        const bool due = impl_->around.due();
        usable = pages.usable(impl_->generation, due);
        if (!usable) return true;
        place = impl_->find_place();
        if (!place && due) pages.let_go_of_dead();
        return place.has_value() || impl_->interruption.take();
    });
    if (!usable) return std::unexpected(usable.error());
    if (!found || !place) {
        return refused(Errc::timed_out,
                       fmt::format("all {} requests of the ring are under way", pages.count()));
    }
    Impl::Place& own = impl_->places[*place];
    if (body.size() > own.reserved_bytes) {
        if (auto reserved = pages.reserve(*place, body.size()); !reserved) {
            impl_->free.push_back(*place);
            return std::unexpected(reserved.error());
        }
        own.reserved_bytes = body.size();
    }
    if (!body.empty()) std::memcpy(pages.body(*place), body.data(), body.size());
    RequestEntry& entry = pages.entry(*place);
    poke(entry.bytes, std::uint64_t{body.size()});
    const std::int64_t now_ns = monotonic_ns();
    poke(entry.posted_ns, now_ns);
    poke(entry.changed_ns, now_ns);
    FAULT_POINT("requests.before_post");
    own.used = true;
    own.serial = impl_->serial++;
    store_release(
        entry.word,
        Word{State::waiting, false, 0, 0, static_cast<std::uint32_t>(own.serial)}.packed());
    add(pages.control().posted, std::uint64_t{1});
    FAULT_POINT("requests.after_post");
    ring_plain(pages.worker_bell());
    return requests::number_of(own.serial, *place);
}

bool RequestBoard::withdraw(std::uint64_t number) {
    const RequestPages& pages = impl_->pages;
    const std::uint32_t place = requests::place_of(number);
    if (!pages.usable(impl_->generation, false) || place >= pages.count()) return false;
    while (true) {
        const std::uint64_t seen = observe(pages.entry(place).word);
        if (impl_->over(place) || Word::of(seen).serial != requests::serial_of(number)) {
            return false;
        }
        if (impl_->withdraw(place, seen)) return true;
    }
}

Result<std::vector<std::uint64_t>> RequestBoard::given_up(Deadline deadline) {
    std::vector<std::uint64_t> numbers;
    Result<void> usable;
    const bool found = wait_plain(impl_->pages.board_bell(), {}, deadline, [&] {
        const bool due = impl_->around.due();
        usable = impl_->pages.usable(impl_->generation, due);
        if (!usable) return true;
        if (due) impl_->pages.let_go_of_dead();
        numbers = impl_->take_given_up();
        return !numbers.empty() || impl_->interruption.take();
    });
    if (found && !usable) return std::unexpected(usable.error());
    return numbers;
}

void RequestBoard::interrupt() {
    impl_->interruption.raise(impl_->pages.board_bell());
}

RequestCounts RequestBoard::counts() const {
    const RequestPages& pages = impl_->pages;
    RequestCounts counts;
    for (std::uint32_t place = 0; place < pages.count(); place++) {
        const State state = Word::of(observe(pages.entry(place).word)).state;
        counts.waiting += state == State::waiting;
        counts.taken += state == State::taken;
        counts.given_up += state == State::given_up;
    }
    for (std::uint32_t seat = 0; seat < request_seats; seat++) {
        counts.workers += alive(pages.fd(), requests::seat_byte(seat));
    }
    return counts;
}

}  // namespace rollring
