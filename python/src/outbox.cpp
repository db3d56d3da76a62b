#include "outbox.hpp"

#include <nanobind/ndarray.h>

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "forks.hpp"
#include "parcel.hpp"
#include "released.hpp"
#include "rollring/consumer.hpp"
#include "turn.hpp"

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
        if (!opened) raise(opened.error());
        consumer_.emplace(std::move(*opened));
        if (places) consumer_->bound_groups(*places);
    }
    ~PyOutbox() {
        if (turns_.inherited()) leave_undestroyed(consumer_);
    }

    // (index, spans, bytes, records) of what is there, once something is: so many bytes, or what
    // comes within `linger` of the first. None: nothing came in time, or interrupt().
    nb::object collect(std::uint64_t bytes, double linger, double timeout) {
        check();
        Parcel parcel;
        const Poll answer = in_slices(
            turns_, deadline_of(timeout),
            [&](Deadline deadline) { return fill(parcel, bytes, linger, deadline); },
            // An interrupt() is to be seen at once: what it is for may be more than a turn.
            Poll::empty);
        if (answer == Poll::closed) raise("closed", consumer_->problem());
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
        check();
        const Turn turn(turns_);
        for (; records != 0 && !held_.empty(); records--) {
            static_cast<void>(consumer_->release(held_.front()));
            held_.pop_front();
        }
    }
    // Producers may open so many groups at once: a group counts until its first record is released.
    void bound_groups(std::uint64_t places) {
        check();
        const Turn turn(turns_);
        consumer_->bound_groups(places);
    }
    [[nodiscard]] std::uint64_t announced_groups() {
        check();
        const Turn turn(turns_);
        return consumer_->announced_groups();
    }
    void interrupt() {
        if (consumer_) consumer_->interrupt();
    }
    // The seat is another's. Nobody may look at spans any more. Twice is fine.
    void close() {
        if (turns_.inherited()) return;
        const Turn turn(turns_);
        consumer_.reset();
    }
    // (lane, epoch) of producers that have gone since it was asked last.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> gone() {
        check();
        std::vector<std::pair<std::uint32_t, std::uint32_t>> producers;
        const Turn turn(turns_);
        Event event;
        while (consumer_->next_event(event)) {
            if (event.kind == Event::Kind::producer_closed ||
                event.kind == Event::Kind::producer_died) {
                producers.emplace_back(event.lane, event.epoch);
            }
        }
        return producers;
    }
    [[nodiscard]] std::uint32_t producers() {
        check();
        const Turn turn(turns_);
        return consumer_->producers_active();
    }

  private:
    void check() const {
        turns_.check("this outbox");
        if (!consumer_) raise("closed", "this outbox is closed");
    }
    Poll fill(Parcel& parcel, std::uint64_t bytes, double linger, Deadline deadline) {
        Record record;
        Poll answer = consumer_->wait(record, deadline);
        if (answer == Poll::timed_out) return Poll::timed_out;
        const Deadline until = deadline_of(linger);
        while (answer == Poll::record) {
            parcel.add(record);
            held_.push_back(record.ref);
            if (parcel.bytes >= bytes) break;
            answer = consumer_->poll(record);
            if (answer == Poll::empty && !until.passed()) answer = consumer_->wait(record, until);
        }
        return answer == Poll::closed && parcel.entries.empty() ? Poll::closed : Poll::record;
    }

    Turns turns_{[this] {
        if (consumer_) consumer_->interrupt();
    }};
    std::optional<Consumer> consumer_;
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
