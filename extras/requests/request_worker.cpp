#include <errno.h>
#include <fmt/core.h>
#include <unistd.h>

#include <utility>

#include "fault_point.hpp"
#include "liveness.hpp"
#include "request_pages.hpp"
#include "rollring/extras/requests.hpp"

namespace rollring {

using requests::Bodies;
using requests::LookAround;
using requests::request_seats;
using requests::RequestEntry;
using requests::RequestPages;
using requests::RequestSeat;
using requests::State;
using requests::Word;

struct RequestWorker::Impl {
    RequestPages pages;
    LifeLock life;
    std::uint32_t seat;
    std::uint64_t generation = fork_generation();
    LookAround around{};
    Interruption interruption{};

    // Takes the oldest waiting request; empty if there is none.
    std::optional<TakenRequest> find() const;
    // The present word, if this worker still has the request.
    [[nodiscard]] std::optional<std::uint64_t> ours(const TakenRequest& request) const;
};

namespace {

// Takes a seat and its life byte, and returns the requests of its last worker, which is now proven
// to be gone.
Result<std::optional<std::pair<std::uint32_t, LifeLock>>> take_seat(const RequestPages& pages) {
    for (std::uint32_t seat = 0; seat < request_seats; seat++) {
        auto lock = LifeLock::take(pages.fd(), requests::seat_byte(seat));
        if (!lock) return std::unexpected(lock.error());
        if (!lock->has_value()) continue;
        FAULT_POINT("requests.seat_taken");
        pages.let_go(seat);
        return std::pair(seat, std::move(**lock));
    }
    return std::nullopt;
}

}  // namespace

std::optional<TakenRequest> RequestWorker::Impl::find() const {
    while (true) {
        std::optional<std::uint32_t> oldest;
        std::uint64_t oldest_word = 0;
        for (std::uint32_t place = 0; place < pages.count(); place++) {
            const std::uint64_t packed = observe(pages.entry(place).word);
            const Word word = Word::of(packed);
            if (word.state != State::waiting) continue;
            if (oldest && !requests::older(word.serial, Word::of(oldest_word).serial)) continue;
            oldest = place;
            oldest_word = packed;
        }
        if (!oldest) return std::nullopt;
        Word mine = Word::of(oldest_word);
        mine.state = State::taken;
        mine.seat = seat;
        RequestEntry& entry = pages.entry(*oldest);
        if (!entry.word.compare_exchange_strong(oldest_word, mine.packed())) continue;
        FAULT_POINT("requests.taken");
        pages.changed(*oldest);
        const std::uint64_t bytes = peek(entry.bytes);
        if (bytes > pages.body_bytes()) {  // the word was overwritten
            pages.let_go(*oldest, mine.packed());
            continue;
        }
        return TakenRequest{requests::number_of(mine.serial, *oldest),
                            mine.attempt,
                            {pages.body(*oldest), bytes},
                            mine.packed()};
    }
}

std::optional<std::uint64_t> RequestWorker::Impl::ours(const TakenRequest& request) const {
    if (generation != fork_generation()) return std::nullopt;
    const std::uint32_t place = requests::place_of(request.number);
    if (place >= pages.count()) return std::nullopt;
    const std::uint64_t packed = observe(pages.entry(place).word);
    Word word = Word::of(packed);
    word.withdrawn = false;
    return word.packed() == request.word && word.seat == seat ? std::optional(packed)
                                                              : std::nullopt;
}

RequestWorker::RequestWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RequestWorker::RequestWorker(RequestWorker&&) noexcept = default;
RequestWorker& RequestWorker::operator=(RequestWorker&&) noexcept = default;
RequestWorker::~RequestWorker() {
    if (impl_ != nullptr && impl_->life.held()) impl_->pages.let_go(impl_->seat);
}

Result<RequestWorker> RequestWorker::open(std::string_view ring, std::string_view name,
                                          Deadline deadline) {
    while (true) {
        auto pages = RequestPages::attach(ring, deadline, Bodies::read);
        if (!pages) return std::unexpected(pages.error());
        auto seat = take_seat(*pages);
        if (!seat) return std::unexpected(seat.error());
        if (!*seat) {
            return refused(Errc::busy, fmt::format("ring {} already has {} request workers", ring,
                                                   request_seats));
        }
        auto stays = pages->stays(deadline);
        if (!stays) return std::unexpected(stays.error());
        if (!*stays) continue;  // removed meanwhile: there may be a new one of that name
        RequestSeat& own = pages->seat((*seat)->first);
        own.name.store(name.empty() ? program_invocation_short_name : name);
        poke(own.pid, static_cast<std::uint32_t>(getpid()));
        return RequestWorker(std::unique_ptr<Impl>(
            new Impl{std::move(*pages), std::move((*seat)->second), (*seat)->first}));
    }
}

Result<std::optional<TakenRequest>> RequestWorker::take(Deadline deadline) {
    std::optional<TakenRequest> taken;
    Result<void> usable;
    const bool answered = wait_plain(impl_->pages.worker_bell(), {}, deadline, [&] {
        const bool due = impl_->around.due();
        usable = impl_->pages.usable(impl_->generation, due);
        if (!usable) return true;
        if (due) impl_->pages.let_go_of_dead();
        taken = impl_->find();
        return taken.has_value() || impl_->interruption.take();
    });
    if (answered && !usable) return std::unexpected(usable.error());
    return taken;
}

bool RequestWorker::finish(const TakenRequest& request) {
    while (auto word = impl_->ours(request)) {
        std::uint64_t seen = *word;
        RequestEntry& entry = impl_->pages.entry(requests::place_of(request.number));
        FAULT_POINT("requests.before_finish");
        if (!entry.word.compare_exchange_strong(seen, Word{}.packed())) continue;
        FAULT_POINT("requests.finished");
        const bool wanted = !Word::of(*word).withdrawn;
        if (wanted) add(impl_->pages.seat(impl_->seat).finished, std::uint64_t{1});
        ring_plain(impl_->pages.board_bell());
        return wanted;
    }
    return false;
}

bool RequestWorker::give_back(const TakenRequest& request) {
    while (auto word = impl_->ours(request)) {
        if (impl_->pages.let_go(requests::place_of(request.number), *word)) {
            return !Word::of(*word).withdrawn;
        }
    }
    return false;
}

void RequestWorker::interrupt() {
    impl_->interruption.raise(impl_->pages.worker_bell());
}

bool RequestWorker::withdrawn(const TakenRequest& request) const {
    const auto word = impl_->ours(request);
    return !word || Word::of(*word).withdrawn;
}

}  // namespace rollring
