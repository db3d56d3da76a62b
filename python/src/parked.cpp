// Parked rollouts, for rollring/_parked.py.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "given.hpp"
#include "memory.hpp"
#include "owned.hpp"
#include "rollring/extras/parked.hpp"
#include "taking.hpp"
#include "with_files.hpp"

namespace rollring::python {
namespace {

class PyParkedRollout {
  public:
    PyParkedRollout(ParkedRollout rollout, std::shared_ptr<const Schema> schema)
        : schema_(std::move(schema)) {
        rollout_->hold(std::move(rollout));
    }
    Taken record() {
        return {rollout_->in_turn([](ParkedRollout& one) { return Copied(one.record()); }),
                schema_};
    }
    nb::bytes state() {
        const std::span<const std::byte> of =
            rollout_->in_turn([](ParkedRollout& one) { return one.state(); });
        return nb::bytes(reinterpret_cast<const char*>(of.data()), of.size());
    }
    std::int64_t parked_ns() {
        return rollout_->in_turn([](ParkedRollout& one) { return one.parked_ns(); });
    }
    // Parks a rollout that replaces it.
    template <class Park>
    void replaced_by(Park park) {
        with_files(*rollout_, park);
    }
    void done() {
        with_files(*rollout_, [](ParkedRollout& one) { return one.done(); });
    }
    void give_back() {
        static_cast<void>(rollout_->take([] {}));
    }

  private:
    std::shared_ptr<const Schema> schema_;
    std::unique_ptr<Owned<ParkedRollout>> rollout_ =
        std::make_unique<Owned<ParkedRollout>>("this parked rollout");
};

class PyParking {
  public:
    explicit PyParking(const std::string& ring) : parking_(open(ring)) {}

    void park(nb::handle instance_id, nb::dict fields, nb::handle state,
              PyParkedRollout* replaces) {
        const Given given(*schema_, instance_id, fields);
        given.check_versions();
        const Bytes bytes(state);
        if (replaces != nullptr) {
            replaces->replaced_by(
                [&](ParkedRollout& old) { return parking_.park(given.draft, bytes.get(), &old); });
            return;
        }
        auto parked = [&] {
            const Released released;
            return parking_.park(given.draft, bytes.get());
        }();
        value_or_raise(std::move(parked));
    }
    std::optional<PyParkedRollout> take(std::optional<std::int64_t> source_id) {
        const Parking::Accept of_source = [&](const TrajectoryView& record, const auto&) {
            return !source_id || record.meta().source_id == source_id;
        };
        auto taken = value_or_raise([&] {
            const Released released;
            return parking_.take(of_source);
        }());
        if (!taken) return std::nullopt;
        return PyParkedRollout(std::move(*taken), schema_);
    }

  private:
    static Parking open(const std::string& ring) {
        auto opened = [&] {
            const Released released;
            return Parking::open(ring);
        }();
        return value_or_raise(std::move(opened));
    }
    Parking parking_;
    std::shared_ptr<const Schema> schema_ = std::make_shared<const Schema>(parking_.schema());
};

nb::dict of_list(const ParkedInfo& one) {
    nb::dict made;
    made["file"] = one.file;
    made["ring"] = one.ring;
    made["instance_id"] = one.instance_id;
    made["visit"] = one.visit;
    made["repetition_id"] =
        one.repetition_id.has_value() ? nb::cast(std::uint32_t{one.repetition_id}) : nb::none();
    made["tokens"] = one.tokens;
    made["state_bytes"] = one.state_bytes;
    made["file_bytes"] = one.file_bytes;
    made["parked_ns"] = one.parked_ns;
    made["is_taken"] = one.is_taken;
    return made;
}

// The rollouts of a ledger, and the damage.
nb::tuple parked_list(const std::string& directory) {
    const auto list = value_or_raise([&] {
        const Released released;
        return list_parked(directory);
    }());
    nb::list rollouts;
    for (const ParkedInfo& one : list.rollouts) rollouts.append(of_list(one));
    nb::list damaged;
    for (const std::string& one : list.damaged) damaged.append(nb::str(one.data(), one.size()));
    return nb::make_tuple(rollouts, damaged);
}

}  // namespace

void bind_parked(nb::module_& module) {
    nb::class_<PyParkedRollout>(module, "ParkedRollout")
        .def("record", &PyParkedRollout::record)
        .def("state", &PyParkedRollout::state)
        .def("parked_ns", &PyParkedRollout::parked_ns)
        .def("done", &PyParkedRollout::done)
        .def("give_back", &PyParkedRollout::give_back);
    nb::class_<PyParking>(module, "Parking")
        .def(nb::init<const std::string&>())
        .def("park", &PyParking::park, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
        .def("take", &PyParking::take, nb::arg("source_id").none());
    module.def("parked_list", &parked_list);
}

}  // namespace rollring::python
