#include "rollring/tap.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "owned.hpp"
#include "taking.hpp"

namespace rollring::python {
namespace {

class PyTap {
  public:
    PyTap(const std::string& ring, double timeout, std::uint64_t round_bytes) {
        auto made = opened(deadline_of(timeout), {Errc::not_found, Errc::not_ready},
                           [&](std::chrono::nanoseconds patience) {
                               return Tap::attach(
                                   ring, {.attach_timeout = patience, .round_bytes = round_bytes});
                           });
        schema_ = std::make_shared<const Schema>(made.schema());
        ring_id_ = made.ring_id();
        tap_.hold(std::move(made));
    }

    // None: the round is over. Otherwise the record, its lane, epoch, sequence, committed_ns and
    // producer, and the key of its group as in the facts of a stash.
    nb::object next() {
        std::optional<Copied> copied;
        TapRecord record;
        std::string producer;
        GroupKey key;
        const TapPoll answer = tap_.in_turn([&](Tap& tap) {
            const TapPoll got = tap.poll(record);
            if (got == TapPoll::record) {
                copied.emplace(record.view);
                producer = record.producer;
                key = record.view.group_key();
            }
            return got;
        });
        removed_ = answer == TapPoll::removed;
        if (!copied) return nb::none();
        return nb::make_tuple(nb::cast(Taken(std::move(*copied), schema_)), record.lane,
                              record.epoch, record.sequence, record.committed_ns, text(producer),
                              nb::make_tuple(key.low, key.high));
    }
    [[nodiscard]] bool removed() const { return removed_; }
    [[nodiscard]] std::uint64_t ring_id() const { return ring_id_; }
    nb::dict stats() {
        const TapStats stats = tap_.in_turn([](Tap& tap) { return tap.stats(); });
        nb::dict made;
        made["records"] = stats.records;
        made["tokens"] = stats.tokens;
        made["bytes"] = stats.bytes;
        made["missed"] = stats.missed;
        made["gone"] = stats.gone;
        made["unreadable"] = stats.unreadable;
        made["rounds"] = stats.rounds;
        return made;
    }
    // Idempotent.
    void close() {
        if (!tap_.gone()) static_cast<void>(tap_.take([] {}));
    }

  private:
    Owned<Tap> tap_{"this tap"};
    std::shared_ptr<const Schema> schema_;
    std::uint64_t ring_id_ = 0;
    bool removed_ = false;
};

}  // namespace

void bind_tap(nb::module_& module) {
    nb::class_<PyTap>(module, "Tap")
        .def(nb::init<const std::string&, double, std::uint64_t>())
        .def("next", &PyTap::next)
        .def_prop_ro("removed", &PyTap::removed)
        .def_prop_ro("ring_id", &PyTap::ring_id)
        .def("stats", &PyTap::stats)
        .def("close", &PyTap::close);
}

}  // namespace rollring::python
