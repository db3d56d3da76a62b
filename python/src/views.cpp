#include "views.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "fields.hpp"
#include "interned.hpp"
#include "released.hpp"
#include "rollring/batch.hpp"
#include "rollring/gather.hpp"
#include "sequence.hpp"
#include "targets.hpp"

namespace rollring::python {
namespace {

// A Layout of rollring/_gather.py.
struct LayoutOf {
    explicit LayoutOf(nb::handle given) {
        layout.form = static_cast<Form>(field<"form", int>(given));
        layout.part = static_cast<Part>(field<"part", int>(given));
        layout.padding = {.side = field<"left", bool>(given) ? Side::left : Side::right,
                          .length = field<"length", std::uint64_t>(given),
                          .multiple_of = field<"multiple_of", std::uint64_t>(given)};
        const auto order = field<"order", std::optional<nb::bytes>>(given);
        if (!order) return;
        order_.resize(order->size() / sizeof(std::uint32_t));
        if (!order_.empty()) std::memcpy(order_.data(), order->c_str(), order->size());
        layout.order = order_;
    }
    LayoutOf(const LayoutOf&) = delete;
    LayoutOf& operator=(const LayoutOf&) = delete;
    Layout layout;

  private:
    std::vector<std::uint32_t> order_;
};

// A column by its name, as it is in the records or in the batch.
GatherColumn column_named(const Schema& schema, std::string_view name) {
    if (const auto found = schema.find(name)) return {.column = *found};
    if (name == "position_ids") return {.source = Source::position_ids};
    if (name == "batch.advantages") return {.source = Source::advantages};
    if (name == "batch.rewards") return {.source = Source::rewards};
    raise("no_column", "this ring has no column '" + std::string(name) + "'");
}

// A GatherColumn of rollring/_gather.py, of the column's own dtype and without a target.
GatherColumn column_of(const Schema& schema, nb::handle given) {
    GatherColumn made = column_named(schema, field<"column", std::string>(given));
    made.missing = field<"missing", std::optional<double>>(given);
    made.pad = field<"pad", double>(given);
    made.shift = field<"shift", std::int32_t>(given);
    made.beyond = field<"beyond", double>(given);
    return made;
}

// The rows at which sequences begin, for flash-attention, which takes i32.
template <class Get>
nb::object row_numbers(const Get& get) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (const std::int64_t rows = get().back(); rows > most) {
        const std::string told =
            std::to_string(rows) + " tokens are too many for i32 offsets: use smaller batches";
        PyErr_SetString(PyExc_OverflowError, told.c_str());
        throw nb::python_error();
    }
    return copied<std::int32_t>(dtype_i32, get);
}

Stream queue(std::uintptr_t stream) {
    return {reinterpret_cast<void*>(stream)};
}

}  // namespace

nb::list PyViews::members(std::size_t begin, std::size_t end) const {
    nb::list made;
    while (begin < end) {
        std::size_t next = begin + 1;
        while (next < end && shown().sequences()[next].member == shown().sequences()[begin].member)
            next++;
        made.append(nb::make_tuple(begin, next, shown().advantages()[begin],
                                   shown().rewards()[begin], shown().repetition_ids()[begin]));
        begin = next;
    }
    return made;
}

nb::list PyViews::groups() {
    nb::list made;
    for (std::size_t i = 0; i < shown().groups().size(); i++) {
        const BatchGroupInfo& group = shown().groups()[i];
        made.append(
            nb::make_tuple(group.size, group.bad_rewards, group.unrewarded,
                           members(shown().group_offsets()[i], shown().group_offsets()[i + 1])));
    }
    return made;
}

nb::list PyViews::sequences(nb::handle kind) {
    return made_sequences(lent_, kind);
}

nb::list PyViews::common_columns() {
    const auto sequences = shown().sequences();
    const auto places = shown().places();
    // Records of one form have the same columns.
    std::vector<const TrajectoryView*> kinds;
    std::uint32_t last = detail::RecordPlace::no_form;
    for (std::size_t i = 0; i < sequences.size(); i++) {
        const std::uint32_t form = places[i].form;
        if (form != last || form == detail::RecordPlace::no_form)
            kinds.push_back(&sequences[i].view);
        last = form;
    }
    nb::list made;
    const auto declared = schema().columns();
    for (std::size_t column = 0; column < declared.size(); column++) {
        if (declared[column].per != Per::token) continue;
        const bool common = std::ranges::all_of(kinds, [&](const TrajectoryView* view) {
            return view->find(static_cast<std::uint16_t>(column)) != nullptr;
        });
        if (common) made.append(text(declared[column].name));
    }
    return made;
}

nb::object PyViews::rewards() {
    return copied<double>(dtype_f64, [this] { return shown().rewards(); });
}
nb::object PyViews::advantages() {
    return copied<double>(dtype_f64, [this] { return shown().advantages(); });
}
nb::object PyViews::group_offsets() {
    return copied<std::uint32_t>(dtype_u32, [this] { return shown().group_offsets(); });
}
nb::object PyViews::repetition_ids() {
    return copied<std::uint32_t>(dtype_u32, [this] { return shown().repetition_ids(); });
}
nb::object PyViews::policy_versions() {
    return copied<std::int64_t>(dtype_i64, [this] { return shown().policy_versions(); });
}
nb::object PyViews::cu_seqlens() {
    return row_numbers([this] { return shown().cu_seqlens(); });
}
nb::dict PyViews::lists() {
    nb::dict made;
    made["cu_seqlens"] = cu_seqlens();
    made["rewards"] = rewards();
    made["advantages"] = advantages();
    made["group_offsets"] = group_offsets();
    made["repetition_ids"] = repetition_ids();
    return made;
}
std::int64_t PyViews::n_tokens() {
    return shown().cu_seqlens().back();
}

template <class Copy>
void PyViews::copying(Copy run) {
    std::optional<DeviceRead> read;
    lent_->begin_copy();
    Result<void> done;
    {
        const Released released;
        done = run(read);
    }
    if (read) lent_->add_read(std::move(*read));
    lent_->end_copy();
    value_or_raise(std::move(done));
}

template <class Run>
void PyViews::reading(int gpu, std::uintptr_t stream, Run run) {
    copying([&](std::optional<DeviceRead>& read) {
        return lent_->gatherers().use(gpu, queue(stream), run, read);
    });
}

std::string PyViews::dtype_of(std::string_view column) {
    const GatherColumn found = column_named(schema(), column);
    return value_or_raise(gathered_shape(shown(), schema(), found, {})).dtype.to_string();
}

nb::object PyViews::offsets(nb::handle layout) {
    const LayoutOf of(layout);
    const auto made = value_or_raise(gathered_offsets(shown(), of.layout));
    return row_numbers([&] { return std::span(made); });
}

// NOLINTNEXTLINE(readability-function-size): the arguments of Python
nb::list PyViews::gather(nb::list columns, nb::handle layout, nb::handle make,
                         std::uint32_t threads, std::optional<int> gpu, std::uintptr_t stream) {
    const LayoutOf of(layout);
    std::vector<GatherColumn> asked;
    asked.reserve(columns.size());
    Targets targets(make);
    for (const nb::handle given : columns) {
        GatherColumn& one = asked.emplace_back(column_of(schema(), given));
        const auto shape = value_or_raise(gathered_shape(shown(), schema(), one, of.layout));
        targets.add(given, shape, one);
    }
    const Sequences& from = shown();  // Python code has run since
    if (gpu) {
        reading(*gpu, stream, [&](Gatherer& gatherer) {
            return gatherer.gather(from, schema(), asked, of.layout, queue(stream));
        });
    } else {
        copying([&](auto&) { return rollring::gather(from, schema(), asked, of.layout, threads); });
    }
    return targets.arrays();
}

void PyViews::prepare(int gpu) {
    const Sequences& from = shown();
    reading(gpu, 0, [&](Gatherer& gatherer) { return gatherer.prepare(from); });
}

void PyViews::mark(int gpu, std::uintptr_t stream) {
    static_cast<void>(shown());
    reading(gpu, stream, [](Gatherer&) { return Result<void>(); });
}

nb::dict PyViews::gather_stat(int gpu) {
    const GatherStat stat = lent_->gatherers().stat(gpu);
    nb::dict made;
    made["registered_bytes"] = stat.registered_bytes;
    made["read_bytes"] = stat.read_bytes;
    made["staged_bytes"] = stat.staged_bytes;
    made["why_staged"] = stat.why_staged;
    return made;
}

void bind_views(nb::module_& module) {
    nb::class_<PyViews>(module, "Views")
        .def_prop_ro("leased", &PyViews::leased)
        .def("rewards", &PyViews::rewards)
        .def("advantages", &PyViews::advantages)
        .def("cu_seqlens", &PyViews::cu_seqlens)
        .def("group_offsets", &PyViews::group_offsets)
        .def("repetition_ids", &PyViews::repetition_ids)
        .def("policy_versions", &PyViews::policy_versions)
        .def("lists", &PyViews::lists)
        .def("sequences", &PyViews::sequences)
        .def("groups", &PyViews::groups)
        .def("n_tokens", &PyViews::n_tokens)
        .def("n_sequences", &PyViews::n_sequences)
        .def("n_groups", &PyViews::n_groups)
        .def("common_columns", &PyViews::common_columns)
        .def("dtype_of", &PyViews::dtype_of)
        .def("offsets", &PyViews::offsets)
        .def("gather", &PyViews::gather, nb::arg("columns"), nb::arg("layout"),
             nb::arg("make").none(), nb::arg("threads"), nb::arg("gpu").none(), nb::arg("stream"))
        .def("prepare", &PyViews::prepare)
        .def("mark", &PyViews::mark)
        .def("wait_reads", &PyViews::wait_reads)
        .def("gather_stat", &PyViews::gather_stat);
    module.def("set_numpy_helpers", &set_numpy_helpers);
    module.def("micro_batches",
               [](const std::vector<std::uint32_t>& lengths, std::uint64_t tokens) {
                   const MicroBatches made = value_or_raise(micro_batches(lengths, tokens));
                   return nb::make_tuple(made.bins, made.fill);
               });
}

}  // namespace rollring::python
