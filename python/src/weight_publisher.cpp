#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "rollring/relay.hpp"
#include "weight_ends.hpp"

namespace rollring::python {
namespace {

nb::dict told(const CommitReport& report) {
    const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e9; };
    nb::dict made;
    made["version"] = report.version;
    made["payload_bytes"] = report.payload_bytes;
    made["subscribers"] = report.subscribers;
    made["wait_slot_s"] = seconds(report.times.wait_slot_ns);
    made["put_s"] = seconds(report.times.put_ns);
    made["publish_s"] = seconds(report.times.publish_ns);
    made["staged_s"] = seconds(report.times.staged_ns);
    made["commit_s"] = seconds(report.times.commit_ns);
    return made;
}

// One version on its way. Steps that an event loop waits for keep it alive.
struct Sent {
    explicit Sent(Transaction begun) : open(std::move(begun)) {}

    Transaction open;
    CommitReport report{};
    std::optional<std::span<std::byte>> lent;  // no caller was told of it yet
};

// A publisher, which its transactions keep alive, and the version that it began last. In a forked
// child the destructors of both do nothing.
struct Sending {
    void close() {
        if (owned.gone()) return;
        waits.cancel();
        auto gone = owned.take([&] {
            if (last) last->open.abort();  // before its publisher ends
        });
        const Released released;
        gone.reset();
    }

    Owned<Publisher> owned{"this weight publisher", &Publisher::interrupt};
    std::shared_ptr<Sent> last;
    Waits<Publisher> waits;
};

// Transaction itself checks in each call whether its version is open.
class PyTransaction {
  public:
    PyTransaction(std::shared_ptr<Sending> sending, std::shared_ptr<Sent> sent)
        : sending_(std::move(sending)), sent_(std::move(sent)) {}

    void put_all(Timeout timeout, std::uintptr_t stream, bool later) {
        wait(timeout, later, [stream](Sent& sent, Deadline until) {
            return sent.open.put_all(until, stream_at(stream));
        });
    }
    void put(const std::string& name, std::uintptr_t source, Timeout timeout, std::uintptr_t stream,
             bool later) {
        wait(timeout, later, [name, source, stream](Sent& sent, Deadline until) {
            return sent.open.put(name, reinterpret_cast<const void*>(source), until,
                                 stream_at(stream));
        });
    }
    // The next part, for the caller to write: lent() has its address. The part of a cancelled wait
    // comes with the next call.
    void lend_part(Timeout timeout, bool later) {
        wait(timeout, later, [](Sent& sent, Deadline until) -> Result<void> {
            if (sent.lent) return {};
            auto lent = RelayTransaction::lend_part(sent.open, until);
            if (!lent) return std::unexpected(std::move(lent.error()));
            sent.lent = *lent;
            return {};
        });
    }
    std::pair<std::uintptr_t, std::uint64_t> lent() {  // address, bytes
        return sending_->owned.in_turn([&](Publisher&) {
            const auto lent =
                std::exchange(sent_->lent, std::nullopt).value_or(std::span<std::byte>());
            return std::pair{reinterpret_cast<std::uintptr_t>(lent.data()), lent.size()};
        });
    }
    void part_written() {
        value_or_raise(sending_->owned.in_turn(
            [&](Publisher&) { return RelayTransaction::part_written(sent_->open); }));
    }
    void wait_staged(Timeout timeout, bool later) {
        wait(timeout, later, [](Sent& sent, Deadline until) -> Result<void> {
            if (auto published = sent.open.publish(); !published) return published;
            return sent.open.wait_staged(until);
        });
    }
    void decide(Timeout timeout, bool later) { end_by<&Transaction::decide>(timeout, later); }
    void commit(Timeout timeout, bool later) { end_by<&Transaction::commit>(timeout, later); }
    nb::dict report() {
        return told(sending_->owned.in_turn([&](Publisher&) { return sent_->report; }));
    }
    void check_open() {
        value_or_raise(
            sending_->owned.in_turn([&](Publisher&) { return sent_->open.check_open(); }));
    }
    // Does nothing once the version is over.
    void abort(const std::string& why) {
        if (sending_->owned.gone()) return;
        sending_->owned.in_turn([&](Publisher&) {
            sent_->open.abort(why);
            return true;
        });
    }

  private:
    template <auto End>
    void end_by(Timeout timeout, bool later) {
        wait(timeout, later, [](Sent& sent, Deadline until) -> Result<void> {
            if (auto published = sent.open.publish(); !published) return published;
            auto report = (sent.open.*End)(until);
            if (!report) return std::unexpected(std::move(report.error()));
            sent.report = *report;
            return {};
        });
    }
    template <class Step>
    void wait(Timeout timeout, bool later, Step step) {
        sending_->waits.run(
            sending_->owned, timeout, later,
            [sent = sent_, step = std::move(step)](Publisher&, Deadline until) -> Result<void> {
                return step(*sent, until);
            });
    }

    std::shared_ptr<Sending> sending_;
    std::shared_ptr<Sent> sent_;
};

class PyPublisher {
  public:
    PyPublisher(const std::string& ring, nb::list tensors, nb::dict given) {
        const auto described = tensors_of(std::move(tensors));
        const PublisherOptions options = publisher_options(std::move(given));
        auto made = [&] {
            const Released released;
            return Publisher::create(ring, described, options);
        }();
        owned_.hold(value_or_raise(std::move(made)));
    }

    // Opens a version: one at a time, which its caller commits or gives up.
    PyTransaction begin(std::int64_t version) {
        return open([&](Publisher& publisher) { return publisher.begin(version); });
    }
    void resume(std::int64_t version) {
        value_or_raise(
            owned_.in_turn([&](Publisher& publisher) { return publisher.resume(version); }));
    }
    PyTransaction begin_again() {
        return open([](Publisher& publisher) { return publisher.begin_again(); });
    }

    void wait_subscribers(std::uint32_t count, Timeout timeout, bool later) {
        waits_.run(owned_, timeout, later, [count](Publisher& publisher, Deadline until) {
            return publisher.wait_subscribers(count, until);
        });
    }
    void wait_live(std::uint32_t count, Timeout timeout, bool later) {
        waits_.run(owned_, timeout, later, [count](Publisher& publisher, Deadline until) {
            return publisher.wait_live(count, until);
        });
    }
    int fd() { return waits_.fd(); }
    void outcome() { waits_.outcome(owned_); }
    void cancel() { waits_.cancel(); }

    void expel(const std::string& subscriber) {
        value_or_raise(
            owned_.in_turn([&](Publisher& publisher) { return publisher.expel(subscriber); }));
    }
    std::uint32_t behind() {
        return owned_.in_turn([](Publisher& publisher) { return publisher.behind(); });
    }
    std::int64_t committed_version() {
        return owned_.in_turn([](Publisher& publisher) { return publisher.committed_version(); });
    }
    std::uint64_t payload_bytes() {
        return owned_.in_turn([](Publisher& publisher) { return publisher.payload_bytes(); });
    }
    std::string memory() {
        return owned_.in_turn(
            [](Publisher& publisher) { return std::string(name(publisher.memory())); });
    }
    std::string why_not_direct() {
        return owned_.in_turn(
            [](Publisher& publisher) { return std::string(publisher.why_not_direct()); });
    }
    // Idempotent.
    void close() { sending_->close(); }
    [[nodiscard]] bool closed() const { return owned_.gone(); }

  private:
    template <class Begin>
    PyTransaction open(Begin begin) {
        auto sent = value_or_raise(
            owned_.in_turn([&](Publisher& publisher) -> Result<std::shared_ptr<Sent>> {
                auto begun = begin(publisher);
                if (!begun) return std::unexpected(std::move(begun.error()));
                sending_->last = std::make_shared<Sent>(std::move(*begun));
                return sending_->last;
            }));
        return {sending_, std::move(sent)};
    }

    std::shared_ptr<Sending> sending_ = std::make_shared<Sending>();
    Owned<Publisher>& owned_ = sending_->owned;
    Waits<Publisher>& waits_ = sending_->waits;
};

}  // namespace

void bind_weight_publisher(nb::module_& module) {
    const auto timeout = nb::arg("timeout").none();
    const auto later = nb::arg("later") = false;
    nb::class_<PyTransaction>(module, "WeightTransaction")
        .def("put_all", &PyTransaction::put_all, timeout, nb::arg("stream"), later)
        .def("put", &PyTransaction::put, nb::arg("name"), nb::arg("source"), timeout,
             nb::arg("stream"), later)
        .def("lend_part", &PyTransaction::lend_part, timeout, later)
        .def("lent", &PyTransaction::lent)
        .def("part_written", &PyTransaction::part_written)
        .def("wait_staged", &PyTransaction::wait_staged, timeout, later)
        .def("decide", &PyTransaction::decide, timeout, later)
        .def("commit", &PyTransaction::commit, timeout, later)
        .def("report", &PyTransaction::report)
        .def("check_open", &PyTransaction::check_open)
        .def("abort", &PyTransaction::abort);
    nb::class_<PyPublisher>(module, "WeightPublisher")
        .def(nb::init<const std::string&, nb::list, nb::dict>())
        .def("begin", &PyPublisher::begin)
        .def("resume", &PyPublisher::resume)
        .def("begin_again", &PyPublisher::begin_again)
        .def("wait_subscribers", &PyPublisher::wait_subscribers, nb::arg("count"), timeout, later)
        .def("wait_live", &PyPublisher::wait_live, nb::arg("count"), timeout, later)
        .def("fd", &PyPublisher::fd)
        .def("outcome", &PyPublisher::outcome)
        .def("cancel", &PyPublisher::cancel)
        .def("expel", &PyPublisher::expel)
        .def("behind", &PyPublisher::behind)
        .def("committed_version", &PyPublisher::committed_version)
        .def("payload_bytes", &PyPublisher::payload_bytes)
        .def("memory", &PyPublisher::memory)
        .def("why_not_direct", &PyPublisher::why_not_direct)
        .def("close", &PyPublisher::close)
        .def_prop_ro("closed", &PyPublisher::closed);
}

}  // namespace rollring::python
