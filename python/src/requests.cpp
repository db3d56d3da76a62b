#include "bindings.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "owned.hpp"
#include "rollring/extras/requests.hpp"

namespace rollring::python {
namespace {

using Timeout = std::optional<double>;

class PyRequestBoard {
  public:
    PyRequestBoard(const std::string& ring, std::uint32_t attempts, double timeout) {
        owned_.hold(opened(deadline_of(timeout), {Errc::not_ready}, [&](auto) {
            return RequestBoard::open(ring, {.attempts = attempts, .attach_timeout = {}});
        }));
    }

    std::uint64_t post(nb::handle body, Timeout timeout) {
        const Bytes bytes(body);
        std::uint64_t number = 0;
        Waits<RequestBoard>().run(owned_, timeout, false, posting(bytes.get(), number));
        return number;
    }
    // For an event loop, one at a time: true if it was posted at once. Otherwise the body is kept
    // here until it is posted. The first attempt ends the slice of a running wait; the thread that
    // waits afterwards does not. A wait that a closed loop has left is withdrawn.
    bool begin_post(nb::handle body, Timeout timeout) {
        const Bytes bytes(body);
        owned_.check();
        cancel_post();
        if (std::exchange(posting_, false) && number_ != 0) withdraw(number_);
        number_ = 0;
        auto posted = owned_.in_turn([&](RequestBoard& board) {
            return posting(bytes.get(), number_)(board, Deadline::now());
        });
        if (posted) return true;
        if (posted.error().code != Errc::timed_out) raise(posted.error());
        body_ = {};
        body_.append(bytes.get().data(), bytes.get().size());
        posts_.run(owned_, timeout, true, posting({body_.data(), body_.size()}, number_));
        posting_ = true;
        return false;
    }
    // The number of a request posted in this way; 0: it was not posted.
    [[nodiscard]] std::uint64_t number() const { return number_; }
    int post_fd() { return posts_.fd(); }
    void post_outcome() {
        posting_ = false;
        posts_.outcome(owned_);
    }
    void cancel_post() { posts_.cancel(); }

    // Requests that were found and not returned come with the next call.
    void given_up(Timeout timeout, bool later) {
        const auto look = [this](RequestBoard& board, Deadline until) -> Result<void> {
            if (!numbers_.empty()) return {};
            auto numbers = board.given_up(until);
            if (!numbers) return std::unexpected(numbers.error());
            if (numbers->empty()) return refused(Errc::timed_out, "no request was given up");
            numbers_ = std::move(*numbers);
            return {};
        };
        waits_.run(owned_, timeout, later, look);
    }
    std::vector<std::uint64_t> numbers() {
        return owned_.in_turn([this](RequestBoard&) { return std::exchange(numbers_, {}); });
    }
    int fd() { return waits_.fd(); }
    void outcome() { waits_.outcome(owned_); }
    void cancel() { waits_.cancel(); }

    bool withdraw(std::uint64_t number) {
        return owned_.in_turn([number](RequestBoard& board) { return board.withdraw(number); });
    }
    nb::dict counts() {
        const RequestCounts counts =
            owned_.in_turn([](const RequestBoard& board) { return board.counts(); });
        nb::dict made;
        made["waiting"] = counts.waiting;
        made["taken"] = counts.taken;
        made["given_up"] = counts.given_up;
        made["workers"] = counts.workers;
        return made;
    }
    void close() {
        if (owned_.gone()) return;
        posts_.cancel();
        waits_.cancel();
        auto last = owned_.take([] {});
        const Released released;
        last.reset();
    }
    [[nodiscard]] bool closed() const { return owned_.gone(); }

  private:
    static Waits<RequestBoard>::Step posting(std::span<const std::byte> body,
                                             std::uint64_t& number) {
        return [body, &number](RequestBoard& board, Deadline until) -> Result<void> {
            auto posted = board.post(body, until);
            if (!posted) return std::unexpected(posted.error());
            number = *posted;
            return {};
        };
    }

    Owned<RequestBoard> owned_{"this request board", &RequestBoard::interrupt};
    Memory body_;
    std::uint64_t number_ = 0;
    bool posting_ = false;  // an event loop has not asked for the outcome yet
    std::vector<std::uint64_t> numbers_;
    Waits<RequestBoard> posts_;
    Waits<RequestBoard> waits_;
};

class PyRequestWorker {
  public:
    PyRequestWorker(const std::string& ring, const std::string& name, double timeout) {
        owned_.hold(opened(deadline_of(timeout), {Errc::not_ready},
                           [&](auto) { return RequestWorker::open(ring, name, Deadline::now()); }));
    }

    void take(Timeout timeout, bool later) {
        waits_.run(owned_, timeout, later,
                   [this](RequestWorker& worker, Deadline until) { return look(worker, until); });
    }
    // Takes a request that is there now, before an event loop waits; false if there is none.
    bool take_now() {
        auto found =
            owned_.in_turn([this](RequestWorker& worker) { return look(worker, Deadline::now()); });
        if (!found && found.error().code != Errc::timed_out) raise(found.error());
        return found.has_value();
    }
    // (number, attempt, body) of the request that take() has found; None: nothing.
    nb::object taken() {
        Memory body;
        const auto found = owned_.in_turn([&](RequestWorker&) {
            if (found_) has_.insert_or_assign(found_->number, *found_);
            body = std::exchange(body_, Memory());
            return std::exchange(found_, std::nullopt);
        });
        if (!found) return nb::none();
        return nb::make_tuple(found->number, found->attempt, nb::cast(std::move(body)));
    }
    bool finish(std::uint64_t number) {
        return let_go(number, [](RequestWorker& worker, const TakenRequest& request) {
            return worker.finish(request);
        });
    }
    bool give_back(std::uint64_t number) {
        return let_go(number, [](RequestWorker& worker, const TakenRequest& request) {
            return worker.give_back(request);
        });
    }
    bool withdrawn(std::uint64_t number) {
        return owned_.in_turn([this, number](const RequestWorker& worker) {
            const auto found = has_.find(number);
            return found == has_.end() || worker.withdrawn(found->second);
        });
    }
    int fd() { return waits_.fd(); }
    void outcome() { waits_.outcome(owned_); }
    void cancel() { waits_.cancel(); }
    void close() {
        if (owned_.gone()) return;
        waits_.cancel();
        auto last = owned_.take([this] { has_.clear(); });
        const Released released;
        last.reset();
    }
    [[nodiscard]] bool closed() const { return owned_.gone(); }

  private:
    Result<void> look(RequestWorker& worker, Deadline until) {
        if (found_) return {};  // by a wait that was cancelled
        auto taken = worker.take(until);
        if (!taken) return std::unexpected(taken.error());
        if (!*taken) return refused(Errc::timed_out, "no request came in time");
        found_ = **taken;
        body_ = {};
        body_.append(found_->body.data(), found_->body.size());
        return {};
    }
    template <class How>
    bool let_go(std::uint64_t number, How how) {
        return owned_.in_turn([this, number, how](RequestWorker& worker) {
            const auto found = has_.extract(number);
            return !found.empty() && how(worker, found.mapped());
        });
    }

    Owned<RequestWorker> owned_{"this request worker", &RequestWorker::interrupt};
    std::optional<TakenRequest> found_;
    Memory body_;  // of the found request
    std::map<std::uint64_t, TakenRequest> has_;
    Waits<RequestWorker> waits_;
};

}  // namespace

void bind_requests(nb::module_& module) {
    const auto timeout = nb::arg("timeout").none();
    const auto later = nb::arg("later") = false;
    nb::class_<PyRequestBoard>(module, "RequestBoard")
        .def(nb::init<const std::string&, std::uint32_t, double>())
        .def("post", &PyRequestBoard::post, nb::arg("body"), timeout)
        .def("begin_post", &PyRequestBoard::begin_post, nb::arg("body"), timeout)
        .def("number", &PyRequestBoard::number)
        .def("post_fd", &PyRequestBoard::post_fd)
        .def("post_outcome", &PyRequestBoard::post_outcome)
        .def("cancel_post", &PyRequestBoard::cancel_post)
        .def("given_up", &PyRequestBoard::given_up, timeout, later)
        .def("numbers", &PyRequestBoard::numbers)
        .def("fd", &PyRequestBoard::fd)
        .def("outcome", &PyRequestBoard::outcome)
        .def("cancel", &PyRequestBoard::cancel)
        .def("withdraw", &PyRequestBoard::withdraw)
        .def("counts", &PyRequestBoard::counts)
        .def("close", &PyRequestBoard::close)
        .def_prop_ro("closed", &PyRequestBoard::closed);
    nb::class_<PyRequestWorker>(module, "RequestWorker")
        .def(nb::init<const std::string&, const std::string&, double>())
        .def("take", &PyRequestWorker::take, timeout, later)
        .def("take_now", &PyRequestWorker::take_now)
        .def("taken", &PyRequestWorker::taken)
        .def("finish", &PyRequestWorker::finish)
        .def("give_back", &PyRequestWorker::give_back)
        .def("withdrawn", &PyRequestWorker::withdrawn)
        .def("fd", &PyRequestWorker::fd)
        .def("outcome", &PyRequestWorker::outcome)
        .def("cancel", &PyRequestWorker::cancel)
        .def("close", &PyRequestWorker::close)
        .def_prop_ro("closed", &PyRequestWorker::closed);
}

}  // namespace rollring::python
