#include <optional>
#include <span>
#include <string>
#include <utility>

#include "forks.hpp"
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

class PyPublisher {
  public:
    PyPublisher(const std::string& ring, nb::list tensors, nb::dict given) {
        const auto described = tensors_of(std::move(tensors));
        const PublisherOptions options = publisher_options(std::move(given));
        auto made = [&] {
            const Released released;
            return Publisher::create(ring, described, options);
        }();
        owned_.object.emplace(value_or_raise(std::move(made)));
    }
    ~PyPublisher() {
        if (owned_.turns.inherited()) leave_undestroyed(open_);
    }

    // Opens a version: one at a time, which whoever opened it commits or gives up.
    void begin(std::int64_t version) {
        open([&](Publisher& publisher) { return publisher.begin(version); });
    }
    void resume(std::int64_t version) {
        value_or_raise(
            owned_.in_turn([&](Publisher& publisher) { return publisher.resume(version); }));
    }
    void begin_again() {
        open([](Publisher& publisher) { return publisher.begin_again(); });
    }
    void put_all(Timeout timeout, std::uintptr_t stream, bool later) {
        wait_open(timeout, later, [stream](Transaction& open, Deadline until) {
            return open.put_all(until, stream_at(stream));
        });
    }
    void put(const std::string& name, std::uintptr_t source, Timeout timeout, std::uintptr_t stream,
             bool later) {
        wait_open(timeout, later, [name, source, stream](Transaction& open, Deadline until) {
            return open.put(name, reinterpret_cast<const void*>(source), until, stream_at(stream));
        });
    }
    // The next part, which whoever asked writes: lent() says where. What a cancelled wait has got
    // comes with the next.
    void lend_part(Timeout timeout, bool later) {
        wait_open(timeout, later, [this](Transaction& open, Deadline until) -> Result<void> {
            if (lent_) return {};
            auto lent = open.lend_part(until);
            if (!lent) return std::unexpected(std::move(lent.error()));
            lent_ = *lent;
            return {};
        });
    }
    std::pair<std::uintptr_t, std::uint64_t> lent() {  // address, bytes
        return owned_.in_turn([&](Publisher&) {
            const auto lent = std::exchange(lent_, std::nullopt).value_or(std::span<std::byte>());
            return std::pair{reinterpret_cast<std::uintptr_t>(lent.data()), lent.size()};
        });
    }
    void part_written() {
        value_or_raise(owned_.in_turn([&](Publisher&) -> Result<void> {
            if (!open_) return refused(Errc::aborted, "this version is over");
            return open_->part_written();
        }));
    }
    void wait_staged(Timeout timeout, bool later) {
        wait_open(timeout, later, [](Transaction& open, Deadline until) -> Result<void> {
            if (auto published = open.publish(); !published) return published;
            return open.wait_staged(until);
        });
    }
    void commit(Timeout timeout, bool later) {
        wait_open(timeout, later, [this](Transaction& open, Deadline until) -> Result<void> {
            if (auto published = open.publish(); !published) return published;
            auto report = open.commit(until);
            if (!report) return std::unexpected(std::move(report.error()));
            report_ = *report;
            open_.reset();
            return {};
        });
    }
    nb::dict report() {
        return told(owned_.in_turn([&](Publisher&) { return report_; }));
    }
    void give_up(const std::string& why) {
        if (owned_.gone()) return;
        owned_.in_turn([&](Publisher&) {
            if (open_) open_->abort(why);
            open_.reset();
            return true;
        });
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
    // Twice is fine.
    void close() {
        if (owned_.gone()) return;
        waits_.cancel();
        auto last = owned_.take([&] { open_.reset(); });
        const Released released;
        last.reset();
    }
    [[nodiscard]] bool closed() const { return owned_.gone(); }

  private:
    template <class Begin>
    void open(Begin begin) {
        value_or_raise(owned_.in_turn([&](Publisher& publisher) -> Result<void> {
            auto begun = begin(publisher);
            if (!begun) return std::unexpected(std::move(begun.error()));
            lent_.reset();
            open_.emplace(std::move(*begun));
            return {};
        }));
    }
    template <class Step>
    void wait_open(Timeout timeout, bool later, Step step) {
        waits_.run(owned_, timeout, later,
                   [this, step = std::move(step)](Publisher&, Deadline until) -> Result<void> {
                       if (!open_) return refused(Errc::aborted, "this version is over");
                       return step(*open_, until);
                   });
    }

    Owned<Publisher> owned_{"this weight publisher", &Publisher::interrupt};
    std::optional<Transaction> open_;  // ends before its publisher
    CommitReport report_;
    std::optional<std::span<std::byte>> lent_;  // nobody was told of it yet
    Waits<Publisher> waits_;
};

}  // namespace

void bind_weight_publisher(nb::module_& module) {
    const auto timeout = nb::arg("timeout").none();
    const auto later = nb::arg("later") = false;
    nb::class_<PyPublisher>(module, "WeightPublisher")
        .def(nb::init<const std::string&, nb::list, nb::dict>())
        .def("begin", &PyPublisher::begin)
        .def("resume", &PyPublisher::resume)
        .def("begin_again", &PyPublisher::begin_again)
        .def("put_all", &PyPublisher::put_all, timeout, nb::arg("stream"), later)
        .def("put", &PyPublisher::put, nb::arg("name"), nb::arg("source"), timeout,
             nb::arg("stream"), later)
        .def("lend_part", &PyPublisher::lend_part, timeout, later)
        .def("lent", &PyPublisher::lent)
        .def("part_written", &PyPublisher::part_written)
        .def("wait_staged", &PyPublisher::wait_staged, timeout, later)
        .def("commit", &PyPublisher::commit, timeout, later)
        .def("report", &PyPublisher::report)
        .def("give_up", &PyPublisher::give_up)
        .def("wait_subscribers", &PyPublisher::wait_subscribers, nb::arg("count"), timeout, later)
        .def("wait_live", &PyPublisher::wait_live, nb::arg("count"), timeout, later)
        .def("fd", &PyPublisher::fd)
        .def("outcome", &PyPublisher::outcome)
        .def("cancel", &PyPublisher::cancel)
        .def("expel", &PyPublisher::expel)
        .def("behind", &PyPublisher::behind)
        .def("committed_version", &PyPublisher::committed_version)
        .def("payload_bytes", &PyPublisher::payload_bytes)
        .def("close", &PyPublisher::close)
        .def_prop_ro("closed", &PyPublisher::closed);
}

}  // namespace rollring::python
