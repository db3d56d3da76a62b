#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forks.hpp"
#include "rollring/relay.hpp"
#include "rollring/ring.hpp"
#include "rollring/weight_layout.hpp"
#include "stat_dict.hpp"
#include "weight_ends.hpp"

namespace rollring::python {
namespace {

// One attempt of any duration, because several would look like several engines to the trainer.
// Signals are handled meanwhile.
template <class Call>
auto wait_for_publisher(const std::string& ring, nb::dict given, const Call& call) {
    SubscriberOptions options = subscriber_options(std::move(given));
    std::optional<Error> no_ring;
    std::optional<Released> released;
    options.keep_waiting = [&] {
        auto there = stat_ring(ring);
        if (!there && there.error().code == Errc::not_found) {
            no_ring = std::move(there.error());
            return false;
        }
        released.reset();
        const bool signalled = PyErr_CheckSignals() != 0;
        released.emplace();
        return !signalled;
    };
    released.emplace();
    auto made = call(options);
    released.reset();
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    if (no_ring) raise(*no_ring);
    if (!made) raise(made.error());
    return std::move(*made);
}

nb::list list_of(std::span<const TensorInfo> tensors) {
    nb::list made;
    for (const TensorInfo& tensor : tensors) {
        nb::list shape;
        for (const std::int64_t length : tensor.shape) shape.append(length);
        made.append(nb::make_tuple(tensor.name, tensor.dtype.to_string(), nb::tuple(shape),
                                   tensor.tied_to));
    }
    return made;
}

nb::list published_tensors(const std::string& ring, nb::dict given, Timeout timeout) {
    const Deadline deadline = deadline_of(timeout);
    return list_of(
        wait_for_publisher(ring, std::move(given), [&](const SubscriberOptions& options) {
            return Subscriber::published(ring, options, deadline);
        }));
}

nb::bytes published_layout(const std::string& ring, nb::dict given, Timeout timeout) {
    const Deadline deadline = deadline_of(timeout);
    const WeightLayout found =
        wait_for_publisher(ring, std::move(given), [&](const SubscriberOptions& options) {
            return Subscriber::published_layout(ring, options, deadline);
        });
    const auto table = found.to_bytes();
    return nb::bytes(table.data(), table.size());
}

class PySubscriber {
  public:
    PySubscriber(const std::string& ring, nb::list tensors, nb::dict given, Timeout timeout) {
        const auto into = tensors_of(std::move(tensors));
        const Deadline deadline = deadline_of(timeout);
        owned_.hold(
            wait_for_publisher(ring, std::move(given), [&](const SubscriberOptions& options) {
                return Subscriber::attach(ring, into, options, deadline);
            }));
    }
    ~PySubscriber() {
        if (owned_.turns.inherited()) leave_undestroyed(update_);
    }

    // Rejects the version under way, unless no caller has received it yet: then it is the next one.
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
    // A part, for engines that load by themselves: the pieces() of the last one are valid until
    // done_part().
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
    // Copies each piece to its address in host memory, which the caller keeps.
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
    // `stream`: has the work that reads the part.
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
    void wait_committed(std::int64_t version, Timeout timeout, bool later) {
        wait_update(version, timeout, later,
                    [](Update& update, Deadline until) { return update.wait_committed(until); });
    }
    void adopt(std::int64_t version, Timeout timeout, bool later) {
        wait_update(version, timeout, later, [this](Update& update, Deadline until) {
            auto adopted = update.adopt(until);
            if (adopted) update_.reset();
            return adopted;
        });
    }
    // Does nothing if the version is not under way.
    void reject(std::int64_t version, const std::string& why, const std::string& tensor) {
        if (owned_.gone()) return;
        owned_.in_turn([&](Subscriber&) {
            if (!update_ || update_->version() != version) return false;
            update_->reject(why, tensor);
            update_.reset();
            return true;
        });
    }
    void rollback() {
        waits_.run(owned_, std::nullopt, false,
                   [](Subscriber& subscriber, Deadline) { return subscriber.rollback(); });
    }
    nb::object delta() {  // None: no version was taken in by difference
        const DeltaReport report =
            owned_.in_turn([](Subscriber& subscriber) { return subscriber.delta(); });
        if (report.version < 0) return nb::none();
        return stat_dict(report);
    }
    // Each is (name, address, bytes).
    void check_memory(nb::list places) {
        std::vector<WeightTensor> tensors;
        for (const nb::handle one : places) {
            WeightTensor tensor;
            tensor.name = nb::cast<std::string>(one[0]);
            tensor.dtype = dtype_u8;
            tensor.shape = {nb::cast<std::int64_t>(one[2])};
            tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(one[1]));
            tensors.push_back(std::move(tensor));
        }
        value_or_raise(owned_.in_turn(
            [&](Subscriber& subscriber) { return subscriber.check_memory(tensors); }));
    }
    // Also before next() has returned the version that is to be read.
    void refuse(const std::string& why) {
        if (owned_.gone()) return;
        owned_.in_turn([&](Subscriber& subscriber) {
            subscriber.refuse(why);
            update_.reset();
            return true;
        });
    }
    int fd() { return waits_.fd(); }
    void outcome() { waits_.outcome(owned_); }
    void cancel() { waits_.cancel(); }

    std::int64_t taken() {  // the version of next(), handed out by this; -1: none
        return owned_.in_turn([&](Subscriber&) {
            handed_ = true;
            return update_ ? update_->version() : -1;
        });
    }
    std::int64_t live_version() {
        return owned_.in_turn([](Subscriber& subscriber) { return subscriber.live_version(); });
    }
    std::uint64_t staging_bytes() {
        return owned_.in_turn([](Subscriber& subscriber) { return subscriber.staging_bytes(); });
    }
    std::string why_not_staged() {
        return owned_.in_turn(
            [](Subscriber& subscriber) { return std::string(subscriber.why_not_staged()); });
    }
    std::int64_t publisher_id() {
        return owned_.in_turn([](Subscriber& subscriber) { return subscriber.publisher_id(); });
    }
    std::uint64_t part_bytes() {
        return value_or_raise(owned_.in_turn(
            [](Subscriber& subscriber) { return RelaySubscriber::part_bytes(subscriber); }));
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
        return list_of(found);
    }
    // Idempotent.
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

    Owned<Subscriber> owned_{"this weight subscriber", &Subscriber::interrupt};
    std::optional<Update> update_;  // under way; ends before its subscriber
    bool handed_ = false;           // out, by taken()
    std::vector<TensorPiece> pieces_;
    Waits<Subscriber> waits_;
};

}  // namespace

void bind_weight_subscriber(nb::module_& module) {
    const auto timeout = nb::arg("timeout").none();
    const auto later = nb::arg("later") = false;
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
        .def("wait_committed", &PySubscriber::wait_committed, nb::arg("version"), timeout, later)
        .def("rollback", &PySubscriber::rollback)
        .def("delta", &PySubscriber::delta)
        .def("adopt", &PySubscriber::adopt, nb::arg("version"), timeout, later)
        .def("reject", &PySubscriber::reject)
        .def("check_memory", &PySubscriber::check_memory)
        .def("refuse", &PySubscriber::refuse)
        .def("fd", &PySubscriber::fd)
        .def("outcome", &PySubscriber::outcome)
        .def("cancel", &PySubscriber::cancel)
        .def("taken", &PySubscriber::taken)
        .def("live_version", &PySubscriber::live_version)
        .def("state", &PySubscriber::state)
        .def("problem", &PySubscriber::problem)
        .def("publisher_id", &PySubscriber::publisher_id)
        .def("staging_bytes", &PySubscriber::staging_bytes)
        .def("why_not_staged", &PySubscriber::why_not_staged)
        .def("part_bytes", &PySubscriber::part_bytes)
        .def("tensors", &PySubscriber::tensors)
        .def("close", &PySubscriber::close)
        .def_prop_ro("closed", &PySubscriber::closed);
    module.def("published_tensors", &published_tensors, nb::arg("ring"), nb::arg("options"),
               timeout);
    module.def("published_layout", &published_layout, nb::arg("ring"), nb::arg("options"), timeout);
    module.def("refuse_weights",
               [](const std::string& ring, const std::string& name, const std::string& why) {
                   return value_or_raise([&] {
                       const Released released;
                       return refuse_weights(ring, name, why);
                   }());
               });
}

}  // namespace rollring::python
