// Both ends of a relay (extras/relay) in Python.

#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "errors.hpp"
#include "extras/relay/inbox.hpp"
#include "extras/relay/outbox.hpp"
#include "forks.hpp"
#include "memory.hpp"
#include "owned.hpp"
#include "released.hpp"
#include "turn.hpp"

namespace rollring::python {
namespace {

using Array = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;
using relay::Outbox;
using relay::Parcel;

class PyOutbox {
  public:
    PyOutbox(const std::string& ring, std::optional<std::uint64_t> places) {
        auto opened = [&] {
            const Released released;
            return Outbox::open(ring, places);
        }();
        owned_.hold(value_or_raise(std::move(opened)));
    }

    // (index, spans, bytes, records). None: nothing arrived in time, or interrupt().
    nb::object collect(std::uint64_t bytes, double linger, double timeout) {
        owned_.check();
        const auto linger_ns = static_cast<std::int64_t>(std::clamp(linger, 0.0, 1e6) * 1e9);
        Parcel parcel;
        const Poll answer = in_turns(
            owned_.turns, deadline_of(timeout),
            [&](Deadline deadline) {
                if (!owned_.object) return Poll::closed;  // closed by another thread
                return owned_.object->collect(parcel, bytes, linger_ns, deadline);
            },
            // Return after any interrupt(); do not resume the wait.
            Poll::empty);
        if (answer == Poll::closed) {
            raise("closed", owned_.in_turn([](Outbox& outbox) { return outbox.problem(); }));
        }
        if (parcel.entries.empty()) return nb::none();
        const auto* const index = reinterpret_cast<const char*>(parcel.entries.data());
        nb::list spans;
        for (const auto& span : parcel.spans) {
            const auto* const data = reinterpret_cast<const std::uint8_t*>(span.data());
            spans.append(Array(data, {span.size()}, nb::find(this)).cast());
        }
        return nb::make_tuple(nb::bytes(index, parcel.entries.size() * sizeof(relay::ParcelEntry)),
                              spans, parcel.bytes, parcel.entries.size());
    }
    void release(std::uint64_t records) {
        owned_.in_turn([&](Outbox& outbox) {
            outbox.release(records);
            return true;
        });
    }
    void bound_groups(std::uint64_t places) {
        owned_.in_turn([&](Outbox& outbox) {
            outbox.bound_groups(places);
            return true;
        });
    }
    [[nodiscard]] std::uint64_t announced_groups() {
        return owned_.in_turn([](Outbox& outbox) { return outbox.announced_groups(); });
    }
    void interrupt() {
        if (owned_.object) owned_.object->interrupt();
    }
    // Releases the seat. Spans must not be used afterwards. Idempotent.
    void close() {
        if (owned_.gone()) return;
        static_cast<void>(owned_.take([] {}));
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> gone() {
        return owned_.in_turn([](Outbox& outbox) { return outbox.gone(); });
    }
    [[nodiscard]] std::uint32_t producers() {
        return owned_.in_turn([](Outbox& outbox) { return outbox.producers(); });
    }

  private:
    Owned<Outbox> owned_{"this outbox", &Outbox::interrupt};
};

}  // namespace

void bind_outbox(nb::module_& module) {
    nb::class_<PyOutbox>(module, "Outbox")
        .def(nb::init<const std::string&, std::optional<std::uint64_t>>(), nb::arg("ring"),
             nb::arg("places") = nb::none())
        .def("collect", &PyOutbox::collect, nb::arg("bytes"), nb::arg("linger"), nb::arg("timeout"))
        .def("release", &PyOutbox::release, nb::arg("records"))
        .def("bound_groups", &PyOutbox::bound_groups, nb::arg("places"))
        .def("announced_groups", &PyOutbox::announced_groups)
        .def("interrupt", &PyOutbox::interrupt)
        .def("gone", &PyOutbox::gone)
        .def("close", &PyOutbox::close)
        .def("producers", &PyOutbox::producers);
}

namespace {

using relay::Carried;
using relay::Inbox;
using relay::InboxStats;
using relay::ParcelEntry;

// One thread calls step(); others may call give() and ask(). The caller keeps the spans alive until
// step() has reported their parcel.
class PyInbox {
  public:
    // `memory`: that of Carried, writable.
    // NOLINTNEXTLINE(readability-function-size): the arguments of Python
    PyInbox(const std::string& ring, const std::string& name, const std::string& keep_for,
            nb::handle memory, std::uint64_t source, std::uint64_t destination, std::uint32_t lanes,
            double timeout) {
        memory_.emplace(memory, PyBUF_WRITABLE);
        if (memory_->get().size() < Carried::bytes(lanes)) {
            raise("invalid_argument", "the memory of an inbox is too short");
        }
        Carried carried(memory_->writable(), source, destination, lanes);
        ProducerOptions options;
        options.name = name;
        options.keep_for = keep_for;
        options.attach_timeout = std::chrono::nanoseconds(
            static_cast<std::int64_t>(std::clamp(timeout, 0.0, 1e6) * 1e9));
        auto opened = [&] {
            const Released released;
            return Inbox::open(ring, options, std::move(carried));
        }();
        inbox_ = value_or_raise(std::move(opened));
    }
    ~PyInbox() {
        if (forks_ != fork_number()) static_cast<void>(inbox_.release());
    }

    void give(std::uint64_t number, nb::handle index, nb::list spans, std::uint64_t spare) {
        const Bytes shown(index);
        const auto bytes = shown.get();
        std::vector<ParcelEntry> entries(bytes.size() / sizeof(ParcelEntry));
        if (!entries.empty()) {
            std::memcpy(entries.data(), bytes.data(), entries.size() * sizeof(ParcelEntry));
        }
        std::vector<std::span<const std::byte>> memory;
        for (const nb::handle span : spans) memory.push_back(Bytes(span).get());
        const auto problem = inbox().give(number, std::move(entries), memory, spare);
        if (!problem.empty()) raise("invalid_argument", "a parcel: " + std::string(problem));
    }
    // NOLINTNEXTLINE(readability-function-size): the arguments of Python
    void ask(std::uint64_t number, std::uint64_t worker, const std::string& instance_id,
             std::uint64_t visit, std::uint32_t group_size, std::uint64_t record_bytes) {
        inbox().ask({number, worker, instance_id, visit, {group_size, record_bytes}});
    }
    void forget(std::uint64_t number) { inbox().forget(number); }
    void cancel(std::uint64_t worker, const std::string& instance_id, std::uint64_t visit) {
        inbox().cancel(worker, GroupKey::of(instance_id, visit));
    }
    void worker_gone(std::uint64_t worker) { inbox().worker_gone(worker); }
    std::vector<std::uint64_t> workers() {
        Inbox& box = inbox();
        std::vector<std::uint64_t> found;
        between_steps([&] { found = box.workers(); });
        return found;
    }
    std::uint64_t spare() {
        Inbox& box = inbox();
        std::uint64_t count = 0;
        between_steps([&] { count = box.spare(); });
        return count;
    }
    // (parcels, answers, spare, short): numbers of parcels that are in the ring; (number, code,
    // reason) for each request; the node's prefetched places, and whether it should return some.
    nb::tuple step(double timeout) {
        Inbox& box = inbox();
        const Inbox::News news = [&] {
            const Released released;
            const std::scoped_lock turn(stepping_);
            // A caller that wants the lock interrupts one step: do not start the next before that
            // caller had its turn.
            return wanted_ > 0 ? Inbox::News{} : box.step(deadline_of(timeout));
        }();
        if (news.problem != Push::ok) raise(rollring::name(news.problem), news.why);
        nb::list answers;
        for (const Inbox::Answer& one : news.answers) {
            answers.append(nb::make_tuple(one.number, rollring::name(one.push), one.why));
        }
        return nb::make_tuple(nb::cast(news.sent), answers, news.spare, news.is_short);
    }
    void drop_parcels() {
        Inbox& box = inbox();
        between_steps([&] { box.drop_parcels(); });
    }
    void interrupt() { inbox().interrupt(); }
    nb::dict stats() {
        const InboxStats stats = inbox().stats();
        nb::dict made;
        made["records"] = stats.records;
        made["tokens"] = stats.tokens;
        made["bytes"] = stats.bytes;
        made["repeated"] = stats.repeated;
        made["refused"] = stats.refused;
        made["waiting"] = stats.waiting;
        return made;
    }
    // Idempotent.
    void close() {
        if (inbox_ == nullptr || forks_ != fork_number()) return;
        between_steps([&] {
            inbox_->close();
            inbox_.reset();
        });
        memory_.reset();
    }

  private:
    template <class Call>
    void between_steps(Call call) {
        wanted_++;
        inbox_->interrupt();
        {
            const Released released;
            const std::scoped_lock turn(stepping_);
            call();
        }
        wanted_--;
    }
    Inbox& inbox() {
        if (forks_ != fork_number()) raise("forked", "this inbox belongs to another process");
        if (inbox_ == nullptr) raise("closed", "this inbox is closed");
        return *inbox_;
    }

    std::optional<Bytes> memory_;
    std::uint64_t forks_ = fork_number();
    std::mutex stepping_;
    std::atomic<int> wanted_ = 0;  // callers that wait for a step to end
    std::unique_ptr<Inbox> inbox_;
};

}  // namespace

void bind_inbox(nb::module_& module) {
    nb::class_<PyInbox>(module, "Inbox")
        .def(nb::init<const std::string&, const std::string&, const std::string&, nb::handle,
                      std::uint64_t, std::uint64_t, std::uint32_t, double>(),
             nb::arg("ring"), nb::arg("name"), nb::arg("keep_for"), nb::arg("memory"),
             nb::arg("source"), nb::arg("destination"), nb::arg("lanes"), nb::arg("timeout"))
        .def_static("memory_bytes", &Carried::bytes, nb::arg("lanes"))
        .def("give", &PyInbox::give, nb::arg("number"), nb::arg("index"), nb::arg("spans"),
             nb::arg("spare") = 0)
        .def("ask", &PyInbox::ask, nb::arg("number"), nb::arg("worker"), nb::arg("instance_id"),
             nb::arg("visit"), nb::arg("group_size"), nb::arg("record_bytes"))
        .def("forget", &PyInbox::forget, nb::arg("number"))
        .def("cancel", &PyInbox::cancel, nb::arg("worker"), nb::arg("instance_id"),
             nb::arg("visit"))
        .def("worker_gone", &PyInbox::worker_gone, nb::arg("worker"))
        .def("workers", &PyInbox::workers)
        .def("spare", &PyInbox::spare)
        .def("step", &PyInbox::step, nb::arg("timeout"))
        .def("drop_parcels", &PyInbox::drop_parcels)
        .def("interrupt", &PyInbox::interrupt)
        .def("stats", &PyInbox::stats)
        .def("close", &PyInbox::close);
}

}  // namespace rollring::python
