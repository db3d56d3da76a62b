#include "weights.hpp"

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "options.hpp"
#include "owned.hpp"
#include "rollring/weights.hpp"

namespace rollring::python {
namespace {

using Timeout = std::optional<double>;

Stream stream_at(std::uintptr_t address) {
    return {reinterpret_cast<void*>(address)};
}

DType dtype_called(nb::handle name) {
    const auto text = nb::cast<std::string>(name);
    const auto dtype = DType::parse(text);
    if (!dtype) raise("invalid_argument", "'" + text + "' is no dtype");
    return *dtype;
}

// (name, dtype, shape, strides in elements, address, dtype that is published or None, (offset,
// strides) of a view or None) of each: the caller keeps what lies there.
std::vector<WeightTensor> tensors_of(nb::list given) {
    std::vector<WeightTensor> made;
    for (const nb::handle one : given) {
        WeightTensor tensor;
        tensor.name = nb::cast<std::string>(one[0]);
        tensor.dtype = dtype_called(one[1]);
        for (const nb::handle length : one[2]) {
            tensor.shape.push_back(nb::cast<std::int64_t>(length));
        }
        for (const nb::handle stride : one[3]) {
            tensor.strides.push_back(nb::cast<std::int64_t>(stride));
        }
        tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(one[4]));
        if (!one[5].is_none()) tensor.published_dtype = dtype_called(one[5]);
        if (!one[6].is_none()) {
            TensorView& view = tensor.view.emplace();
            view.offset = nb::cast<std::uint64_t>(one[6][0]);
            for (const nb::handle stride : one[6][1]) {
                view.strides.push_back(nb::cast<std::int64_t>(stride));
            }
        }
        made.push_back(std::move(tensor));
    }
    return made;
}

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
        if (owned_.turns.inherited() && open_) new Transaction(std::move(*open_));
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
    // The next part, which whoever asked writes: lent() says where.
    void lend_part(Timeout timeout, bool later) {
        wait_open(timeout, later, [this](Transaction& open, Deadline until) -> Result<void> {
            auto lent = open.lend_part(until);
            if (!lent) return std::unexpected(std::move(lent.error()));
            lent_ = *lent;
            return {};
        });
    }
    [[nodiscard]] std::pair<std::uintptr_t, std::uint64_t> lent() const {  // address, bytes
        return {reinterpret_cast<std::uintptr_t>(lent_.data()), lent_.size()};
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

    Owned<Publisher> owned_{"this weight publisher"};
    std::optional<Transaction> open_;  // ends before its publisher
    CommitReport report_;
    std::span<std::byte> lent_;
    Waits<Publisher> waits_;
};

class PySubscriber {
  public:
    PySubscriber(const std::string& ring, nb::list tensors, nb::dict given, Timeout timeout) {
        const auto into = tensors_of(std::move(tensors));
        const SubscriberOptions options = subscriber_options(std::move(given));
        const Deadline deadline = deadline_of(timeout);
        // Each try is longer: to attach takes what it takes, and begins anew.
        for (std::int64_t try_ns = 50'000'000;; try_ns *= 2) {
            const Deadline slice = Deadline::after_ns(try_ns);
            auto made = [&] {
                const Released released;
                return Subscriber::attach(ring, into, options,
                                          deadline.at_ns <= slice.at_ns ? deadline : slice);
            }();
            if (made) {
                owned_.object.emplace(std::move(*made));
                return;
            }
            if (made.error().code != Errc::timed_out || deadline.passed()) raise(made.error());
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
    }
    ~PySubscriber() {
        if (owned_.turns.inherited() && update_) new Update(std::move(*update_));
    }

    // What is under way is given up, but for one that nobody was handed: that is the next.
    void next(Timeout timeout, bool later) {
        waits_.run(owned_, timeout, later,
                   [this](Subscriber& subscriber, Deadline until) -> Result<void> {
                       if (update_ && !handed_) return {};
                       if (update_) update_->reject("the engine asked for the next version");
                       update_.reset();
                       auto got = subscriber.next(until);
                       if (!got) return std::unexpected(std::move(got.error()));
                       update_.emplace(std::move(*got));
                       handed_ = false;
                       return {};
                   });
    }
    void load(std::int64_t version, Timeout timeout, std::uintptr_t stream, bool later) {
        wait_update(version, timeout, later, [stream](Update& update, Deadline until) {
            return update.load(until, stream_at(stream));
        });
    }
    // A part, for engines that load by themselves: pieces(), of the last one, lie where they lie
    // until done_part().
    void part(std::int64_t version, std::uint32_t number, Timeout timeout, bool later) {
        wait_update(version, timeout, later,
                    [this, number](Update& update, Deadline until) -> Result<void> {
                        auto lent = update.part(number, until);
                        if (!lent) return std::unexpected(std::move(lent.error()));
                        pieces_.assign(lent->begin(), lent->end());
                        return {};
                    });
    }
    nb::list pieces() const {  // (tensor, first element, elements, address) of each
        nb::list made;
        for (const TensorPiece& piece : pieces_) {
            made.append(nb::make_tuple(piece.tensor, piece.first_element, piece.elements,
                                       reinterpret_cast<std::uintptr_t>(piece.data)));
        }
        return made;
    }
    // Each to its address in host memory, which the caller keeps.
    void copy_pieces(std::int64_t version, std::vector<std::uintptr_t> to, bool later) {
        waits_.run(
            owned_, std::nullopt, later,
            [this, version, to = std::move(to)](Subscriber& subscriber, Deadline) -> Result<void> {
                if (!update_ || update_->version() != version) return over(version);
                for (std::size_t i = 0; i < pieces_.size() && i < to.size(); i++) {
                    const TensorPiece& piece = pieces_[i];
                    const DType dtype = subscriber.tensors()[piece.tensor].dtype;
                    std::memcpy(reinterpret_cast<void*>(to[i]), piece.data,
                                piece.elements * dtype.bytes());
                }
                return {};
            });
    }
    // `stream`: where what reads it was queued.
    void done_part(std::int64_t version, std::uint32_t number, std::uintptr_t stream) {
        value_or_raise(owned_.in_turn([&](Subscriber&) -> Result<void> {
            if (!update_ || update_->version() != version) return over(version);
            return update_->done_reading(number, stream_at(stream));
        }));
    }
    std::uint32_t parts() {  // of the version under way
        return owned_.in_turn([&](Subscriber&) { return update_ ? update_->parts() : 0; });
    }
    void stage(std::int64_t version, Timeout timeout, bool later) {
        wait_update(version, timeout, later,
                    [](Update& update, Deadline until) { return update.stage(until); });
    }
    void adopt(std::int64_t version, Timeout timeout, bool later) {
        wait_update(version, timeout, later, [this](Update& update, Deadline until) {
            auto adopted = update.adopt(until);
            if (adopted) update_.reset();
            return adopted;
        });
    }
    // Nothing, if it is not under way.
    void reject(std::int64_t version, const std::string& why, const std::string& tensor) {
        if (owned_.gone()) return;
        owned_.in_turn([&](Subscriber&) {
            if (!update_ || update_->version() != version) return false;
            update_->reject(why, tensor);
            update_.reset();
            return true;
        });
    }
    int fd() { return waits_.fd(); }
    void outcome() { waits_.outcome(owned_); }
    void cancel() { waits_.cancel(); }

    std::int64_t taken() {  // what next() has got, which is handed out by this; -1: nothing
        return owned_.in_turn([&](Subscriber&) {
            handed_ = true;
            return update_ ? update_->version() : -1;
        });
    }
    std::int64_t live_version() {
        return owned_.in_turn([](Subscriber& subscriber) { return subscriber.live_version(); });
    }
    std::int64_t publisher_id() {
        return owned_.in_turn([](Subscriber& subscriber) { return subscriber.publisher_id(); });
    }
    std::uint64_t part_bytes() {
        return owned_.in_turn([](Subscriber& subscriber) { return subscriber.part_bytes(); });
    }
    std::string state() {
        return owned_.in_turn(
            [](Subscriber& subscriber) { return std::string(name(subscriber.state())); });
    }
    std::string problem() {
        return owned_.in_turn(
            [](Subscriber& subscriber) { return std::string(subscriber.problem()); });
    }
    nb::list tensors() {
        const auto found = owned_.in_turn([](Subscriber& subscriber) {
            const auto all = subscriber.tensors();
            return std::vector<TensorInfo>(all.begin(), all.end());
        });
        nb::list made;
        for (const TensorInfo& tensor : found) {
            nb::list shape;
            for (const std::int64_t length : tensor.shape) shape.append(length);
            made.append(nb::make_tuple(tensor.name, tensor.dtype.to_string(), nb::tuple(shape),
                                       tensor.tied_to));
        }
        return made;
    }
    // Twice is fine.
    void close() {
        if (owned_.gone()) return;
        waits_.cancel();
        auto last = owned_.take([&] { update_.reset(); });
        const Released released;
        last.reset();
    }
    [[nodiscard]] bool closed() const { return owned_.gone(); }

  private:
    static std::unexpected<Error> over(std::int64_t version) {
        return refused(Errc::aborted, "version " + std::to_string(version) +
                                          " is over: it was adopted, rejected, or another one was "
                                          "asked for");
    }
    template <class Step>
    void wait_update(std::int64_t version, Timeout timeout, bool later, Step step) {
        waits_.run(
            owned_, timeout, later,
            [this, version, step = std::move(step)](Subscriber&, Deadline until) -> Result<void> {
                if (!update_ || update_->version() != version) return over(version);
                return step(*update_, until);
            });
    }

    Owned<Subscriber> owned_{"this weight subscriber"};
    std::optional<Update> update_;  // under way; ends before its subscriber
    bool handed_ = false;           // out, by taken()
    std::vector<TensorPiece> pieces_;
    Waits<Subscriber> waits_;
};

}  // namespace

void bind_weights(nb::module_& module) {
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
    nb::class_<PySubscriber>(module, "WeightSubscriber")
        .def(nb::init<const std::string&, nb::list, nb::dict, Timeout>(), nb::arg("ring"),
             nb::arg("into"), nb::arg("options"), timeout)
        .def("next", &PySubscriber::next, timeout, later)
        .def("load", &PySubscriber::load, nb::arg("version"), timeout, nb::arg("stream"), later)
        .def("part", &PySubscriber::part, nb::arg("version"), nb::arg("number"), timeout, later)
        .def("pieces", &PySubscriber::pieces)
        .def("copy_pieces", &PySubscriber::copy_pieces, nb::arg("version"), nb::arg("to"), later)
        .def("done_part", &PySubscriber::done_part)
        .def("parts", &PySubscriber::parts)
        .def("stage", &PySubscriber::stage, nb::arg("version"), timeout, later)
        .def("adopt", &PySubscriber::adopt, nb::arg("version"), timeout, later)
        .def("reject", &PySubscriber::reject)
        .def("fd", &PySubscriber::fd)
        .def("outcome", &PySubscriber::outcome)
        .def("cancel", &PySubscriber::cancel)
        .def("taken", &PySubscriber::taken)
        .def("live_version", &PySubscriber::live_version)
        .def("state", &PySubscriber::state)
        .def("problem", &PySubscriber::problem)
        .def("publisher_id", &PySubscriber::publisher_id)
        .def("part_bytes", &PySubscriber::part_bytes)
        .def("tensors", &PySubscriber::tensors)
        .def("close", &PySubscriber::close)
        .def_prop_ro("closed", &PySubscriber::closed);
    module.def("why_no_gpu", &why_no_gpu);
}

}  // namespace rollring::python
