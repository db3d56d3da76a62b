#include "outbox.hpp"

#include <nanobind/ndarray.h>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "owned.hpp"
#include "parcel.hpp"
#include "rollring/consumer.hpp"
#include "rollring/relay.hpp"

namespace rollring::python {
namespace {

using Array = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>;

// What lies between two records that follow each other in a lane: the second one's frame.
constexpr std::ptrdiff_t frame_bytes = 64;

struct Parcel {
    std::vector<ParcelEntry> entries;
    std::vector<std::span<const std::byte>> spans;
    std::uint64_t bytes = 0;

    // Records that follow each other in memory share a span.
    void add(const Record& record) {
        const std::byte* const at = record.bytes.data();
        const bool follows = !spans.empty() && entries.back().lane == record.ref.lane &&
                             at == spans.back().data() + spans.back().size() + frame_bytes;
        if (follows) {
            spans.back() = {spans.back().data(), at + record.bytes.size()};
        } else {
            spans.push_back(record.bytes);
        }
        entries.push_back({.position = record.ref.position,
                           .sequence = record.sequence,
                           .offset = static_cast<std::uint64_t>(at - spans.back().data()),
                           .bytes = record.bytes.size(),
                           .lane = record.ref.lane,
                           .epoch = record.producer_epoch,
                           .span = static_cast<std::uint32_t>(spans.size() - 1),
                           .reserved = 0});
        bytes += record.bytes.size();
    }
};

class PyOutbox {
  public:
    // `places`: bounds the groups of its producers from the start.
    PyOutbox(const std::string& ring, std::optional<std::uint64_t> places) {
        auto opened = [&] {
            const Released released;
            return Consumer::open(ring, {.attach_timeout = std::chrono::nanoseconds(0)});
        }();
        owned_.hold(value_or_raise(std::move(opened)));
        if (places) RelayConsumer::bound_groups(*owned_.object, *places);
    }

    // (index, spans, bytes, records) of what is there, once something is: so many bytes, or what
    // comes within `linger` of the first. None: nothing came in time, or interrupt().
    nb::object collect(std::uint64_t bytes, double linger, double timeout) {
        owned_.check();
        Parcel parcel;
        const Poll answer = in_turns(
            owned_.turns, deadline_of(timeout),
            [&](Deadline deadline) { return fill(parcel, bytes, linger, deadline); },
            // An interrupt() is to be seen at once: what it is for may be more than a turn.
            Poll::empty);
        if (answer == Poll::closed) {
            raise("closed", owned_.in_turn([](Consumer& consumer) { return consumer.problem(); }));
        }
        if (parcel.entries.empty()) return nb::none();
        const auto* const index = reinterpret_cast<const char*>(parcel.entries.data());
        nb::list spans;
        for (const auto& span : parcel.spans) {
            const auto* const data = reinterpret_cast<const std::uint8_t*>(span.data());
            spans.append(Array(data, {span.size()}, nb::find(this)).cast());
        }
        return nb::make_tuple(nb::bytes(index, parcel.entries.size() * sizeof(ParcelEntry)), spans,
                              parcel.bytes, parcel.entries.size());
    }
    // The oldest records that were collected, so many: nobody may look at their spans any more.
    void release(std::uint64_t records) {
        owned_.in_turn([&](Consumer& consumer) {
            for (; records != 0 && !held_.empty(); records--) {
                static_cast<void>(consumer.release(held_.front()));
                held_.pop_front();
            }
            return true;
        });
    }
    // Producers may open so many groups at once: a group counts until its first record is released.
    void bound_groups(std::uint64_t places) {
        owned_.in_turn([&](Consumer& consumer) {
            RelayConsumer::bound_groups(consumer, places);
            return true;
        });
    }
    [[nodiscard]] std::uint64_t announced_groups() {
        return owned_.in_turn(
            [](Consumer& consumer) { return RelayConsumer::announced_groups(consumer); });
    }
    void interrupt() {
        if (owned_.object) owned_.object->interrupt();
    }
    // The seat is another's. Nobody may look at spans any more. Twice is fine.
    void close() {
        if (owned_.gone()) return;
        static_cast<void>(owned_.take([] {}));
    }
    // (lane, epoch) of producers that have gone since it was asked last.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> gone() {
        return owned_.in_turn([](Consumer& consumer) {
            std::vector<std::pair<std::uint32_t, std::uint32_t>> producers;
            Event event;
            while (consumer.next_event(event)) {
                if (event.kind == Event::Kind::producer_closed ||
                    event.kind == Event::Kind::producer_died) {
                    producers.emplace_back(event.lane, event.epoch);
                }
            }
            return producers;
        });
    }
    [[nodiscard]] std::uint32_t producers() {
        return owned_.in_turn([](Consumer& consumer) { return consumer.producers_active(); });
    }

  private:
    Poll fill(Parcel& parcel, std::uint64_t bytes, double linger, Deadline deadline) {
        if (!owned_.object) return Poll::closed;  // by another thread
        Consumer& consumer = *owned_.object;
        Record record;
        Poll answer = consumer.wait(record, deadline);
        if (answer == Poll::timed_out) return Poll::timed_out;
        const Deadline until = deadline_of(linger);
        while (answer == Poll::record) {
            parcel.add(record);
            held_.push_back(record.ref);
            if (parcel.bytes >= bytes) break;
            answer = consumer.poll(record);
            if (answer == Poll::empty && !until.passed()) answer = consumer.wait(record, until);
        }
        return answer == Poll::closed && parcel.entries.empty() ? Poll::closed : Poll::record;
    }

    Owned<Consumer> owned_{"this outbox", &Consumer::interrupt};
    std::deque<RecordRef> held_;
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

}  // namespace rollring::python
