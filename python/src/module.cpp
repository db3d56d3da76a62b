// rollring._core, the base of rollring/*.py. Not for users.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "bindings.hpp"
#include "column_input.hpp"
#include "errors.hpp"
#include "fields.hpp"
#include "leased.hpp"
#include "nb.hpp"
#include "options.hpp"
#include "producing.hpp"
#include "released.hpp"
#include "rollring/extras/requests.hpp"
#include "rollring/ring.hpp"
#include "rollring/schema.hpp"
#include "rollring/stat.hpp"
#include "rollring/version.hpp"
#include "rollring/weights.hpp"
#include "sequence.hpp"
#include "stat_dict.hpp"
#include "views.hpp"
#include "window.hpp"

namespace rollring::python {
namespace {

// Creates the ring. Returns the texts of its plan, each of which may be empty.
nb::dict create(const std::string& name, nb::dict given) {
    const RingOptions options = ring_options(given);
    Result<RingPlan> planned = [&]() -> Result<RingPlan> {
        const Released released;
        auto plan = plan_ring(options);
        if (!plan) return plan;
        if (auto made = create_ring(name, options); !made) return std::unexpected(made.error());
        return plan;
    }();
    const RingPlan plan = value_or_raise(std::move(planned));
    nb::dict texts;
    texts["why"] = text(plan.why);
    texts["warning"] = text(plan.warning);
    return texts;
}

// A ring that goes with this process. In a forked child it does nothing.
class PyOwnedRing {
  public:
    PyOwnedRing(const std::string& name, nb::dict given) {
        const RingOptions options = ring_options(given);
        auto made = [&] {
            const Released released;
            return OwnedRing::create(name, options);
        }();
        ring_.emplace(value_or_raise(std::move(made)));
    }
    void remove() { ring_.reset(); }

  private:
    std::optional<OwnedRing> ring_;
};
void expect(const std::string& name, nb::dict given) {
    const RingExpectation wanted = ring_expectation(given);
    const Result<void> same = [&] {
        const Released released;
        return expect_ring(name, wanted);
    }();
    value_or_raise(Result<void>(same));
}

nb::dict ring_stat(const std::string& name) {
    const RingStat stat = value_or_raise(stat_ring(name));
    nb::dict made = stat_dict(stat);
    nb::list lanes;
    for (const LaneStat& lane : stat.lanes) lanes.append(stat_dict(lane));
    made["lanes"] = lanes;
    nb::list columns;  // the ring's own, in the form for create()
    for (const Column& column :
         stat.schema.columns().subspan(static_cast<std::size_t>(Std::count))) {
        columns.append(nb::make_tuple(text(column.name), column.dtype.to_string(),
                                      column.per == Per::token, nb::cast(column.dims)));
    }
    made["columns"] = columns;
    made["ring_id"] = std::to_string(stat.ring_id);  // an ID, not a quantity
    return made;
}

nb::dict stash_stat(const std::string& name) {
    const StashStat stat = value_or_raise(stat_stash(name));
    nb::dict made = stat_dict(stat);
    nb::list groups;
    for (const GroupStat& group : stat.groups) groups.append(stat_dict(group));
    made["groups"] = groups;
    made["account"] = stat_dict(stat.account);
    const LatestBatch& batch = stat.latest_batch;
    nb::dict latest;
    latest["sequences"] = batch.sequences;
    latest["tokens"] = batch.tokens;
    latest["rewarded"] = batch.rewarded;
    latest["mean_reward"] =
        batch.rewarded == 0 ? nb::object(nb::none()) : nb::object(nb::float_(batch.mean_reward));
    made["latest_batch"] = latest;
    return made;
}

nb::dict requests_stat(const std::string& name) {
    const RequestsStat stat = value_or_raise(stat_requests(name));
    nb::dict made = stat_dict(stat);
    nb::list workers;
    for (const RequestWorkerStat& worker : stat.workers) workers.append(stat_dict(worker));
    made["workers"] = workers;
    nb::list under_way;
    for (const RequestStat& request : stat.requests) under_way.append(stat_dict(request));
    made["under_way"] = under_way;
    return made;
}

nb::list weights_stat(const std::string& name) {
    auto looked = [&] {
        const Released released;  // waits for a stopped publisher
        return stat_weights(name);
    }();
    const std::vector<WeightsStat> ranks = value_or_raise(std::move(looked));
    nb::list all;
    for (const WeightsStat& rank : ranks) {
        nb::dict made = stat_dict(rank);
        nb::list engines;
        for (const SubscriberStat& engine : rank.subscribers) {
            nb::dict one = stat_dict(engine);
            if (engine.delta.version >= 0) one["delta"] = stat_dict(engine.delta);
            engines.append(one);
        }
        made["last_sync"] = stat_dict(rank.last_times);
        made["engines"] = engines;
        all.append(made);
    }
    return all;
}

// None: no trouble.
nb::object find_trouble(const std::string& name_of, double stale_after, bool waiting) {
    const std::chrono::nanoseconds span(
        static_cast<std::int64_t>(std::min(stale_after, 1e9) * 1e9));
    const TrainerDoes trainer = waiting ? TrainerDoes::waits : TrainerDoes::anything;
    const RunTrouble found = value_or_raise(rollring::find_trouble(name_of, span, trainer));
    if (found.trouble == Trouble::none) return nb::none();
    nb::dict made;
    made["trouble"] = std::string(name(found.trouble));
    made["text"] = text(found.text);
    made["group"] = text(found.instance_id);
    made["producer"] = text(found.producer);
    made["lane"] = found.lane;
    made["pid"] = found.pid;
    made["seconds"] = static_cast<double>(found.for_ns) * 1e-9;
    return made;
}

// Name, full name and struct's letter of each.
nb::list dtypes() {
    const auto text = [](std::string_view of) { return nb::str(of.data(), of.size()); };
    nb::list made;
    for (const KnownDType& known : known_dtypes) {
        made.append(nb::make_tuple(text(known.name), text(known.full_name), text(known.letter)));
    }
    return made;
}

}  // namespace

NB_MODULE(_core, module) {
    nb::set_leak_warnings(false);  // such objects end with the process
    bind_window(module);
    bind_draft(module);
    bind_producer(module);
    bind_sequence(module);
    bind_views(module);
    bind_batch(module);
    bind_reader(module);
    bind_ledger(module);
    bind_parked(module);
    bind_recording(module);
    bind_stash(module);
    bind_weights(module);
    bind_domain(module);
    bind_dlpack(module);
    bind_consumer(module);
    bind_outbox(module);
    bind_inbox(module);
    bind_requests(module);
    bind_plain(module);
    bind_store(module);
    bind_tap(module);
    module.def("set_error_classes", &set_error_classes);
    module.def("set_helpers", &set_helpers);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&Released::end));
    module.def("dtypes", &dtypes);
    module.def("version", [] { return std::string(version()); });
    module.def("create", &create);
    nb::class_<PyOwnedRing>(module, "OwnedRing")
        .def(nb::init<const std::string&, nb::dict>())
        .def("remove", &PyOwnedRing::remove);
    module.def("expect", &expect);
    module.def("remove", [](const std::string& name, bool force) {
        value_or_raise(remove_ring(name, force));
    });
    module.def("rings", &list_rings);
    module.def("ring_stat", &ring_stat);
    module.def("stash_stat", &stash_stat);
    module.def("requests_stat", &requests_stat);
    module.def("weights_stat", &weights_stat);
    module.def("find_trouble", &find_trouble);
}

}  // namespace rollring::python
