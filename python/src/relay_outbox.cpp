#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "extras/relay/outbox.hpp"
#include "owned.hpp"
#include "relay.hpp"

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

    // (index, spans, bytes, records). None: nothing came in time, or interrupt().
    nb::object collect(std::uint64_t bytes, double linger, double timeout) {
        owned_.check();
        const auto linger_ns = static_cast<std::int64_t>(std::clamp(linger, 0.0, 1e6) * 1e9);
        Parcel parcel;
        const Poll answer = in_turns(
            owned_.turns, deadline_of(timeout),
            [&](Deadline deadline) {
                if (!owned_.object) return Poll::closed;  // by another thread
                return owned_.object->collect(parcel, bytes, linger_ns, deadline);
            },
            // An interrupt() is to be seen at once: what it is for may be more than a turn.
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
    // The seat is another's. Nobody may look at spans any more. Twice is fine.
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

}  // namespace rollring::python
