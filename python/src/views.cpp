#include "views.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "errors.hpp"
#include "fields.hpp"
#include "released.hpp"
#include "rollring/batch.hpp"
#include "rollring/gather.hpp"
#include "sequence.hpp"

namespace rollring::python {
namespace {

template <std::size_t length>
struct Name {
    char text[length];
    consteval Name(const char (&given)[length])  // NOLINT(google-explicit-constructor): a literal
        : text{} {
        std::ranges::copy(given, text);
    }
};

// The name is interned once: Python finds such a name in its cache of a type's attributes.
template <Name name, class T>
T field(nb::handle of) {
    static PyObject* const interned = PyUnicode_InternFromString(name.text);
    if (interned == nullptr) throw nb::python_error();
    PyObject* const found = PyObject_GetAttr(of.ptr(), interned);
    if (found == nullptr) throw nb::python_error();
    return nb::cast<T>(nb::steal(found));
}

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

// A GatherColumn of rollring/_gather.py, of the column's own dtype and without a target.
GatherColumn column_of(const Schema& schema, nb::handle given) {
    const auto name = field<"column", std::string>(given);
    GatherColumn made{.missing = field<"missing", std::optional<double>>(given),
                      .pad = field<"pad", double>(given),
                      .shift = field<"shift", std::int32_t>(given),
                      .beyond = field<"beyond", double>(given)};
    if (const auto found = schema.find(name)) {
        made.column = *found;
    } else if (name == "position_ids") {
        made.source = Source::position_ids;
    } else if (name == "batch.advantages") {
        made.source = Source::advantages;
    } else if (name == "batch.rewards") {
        made.source = Source::rewards;
    } else {
        raise("no_column", "this ring has no column '" + name + "'");
    }
    return made;
}

nb::tuple told(const ArrayShape& shape) {
    nb::list lengths;
    for (std::size_t i = 0; i < shape.dims; i++) lengths.append(shape.shape[i]);
    return nb::make_tuple(shape.dtype.to_string(), nb::tuple(lengths));
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
    nb::list made;
    const auto declared = schema().columns();
    for (std::size_t column = 0; column < declared.size(); column++) {
        if (declared[column].per != Per::token) continue;
        const bool common = std::ranges::all_of(shown().sequences(), [&](const Sequence& one) {
            return one.view.find(static_cast<std::uint16_t>(column)) != nullptr;
        });
        if (common) made.append(text(declared[column].name));
    }
    return made;
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

nb::tuple PyViews::gather_shape(nb::handle column, nb::handle layout) {
    const LayoutOf of(layout);
    const Sequences& from = shown();
    return told(
        value_or_raise(gathered_shape(from, schema(), column_of(schema(), column), of.layout)));
}

nb::bytes PyViews::offsets(nb::handle layout) {
    const LayoutOf of(layout);
    const auto made = value_or_raise(gathered_offsets(shown(), of.layout));
    return array(std::span<const std::int64_t>(made));
}

// NOLINTNEXTLINE(readability-function-size): the arguments of Python
void PyViews::gather(nb::list columns, nb::list targets, nb::handle layout, std::uint32_t threads,
                     std::optional<int> gpu, std::uintptr_t stream) {
    const LayoutOf of(layout);
    const Sequences& from = shown();
    std::vector<GatherColumn> asked;
    asked.reserve(columns.size());
    for (std::size_t i = 0; i < columns.size(); i++) {
        const nb::handle target = targets[i];
        GatherColumn& one = asked.emplace_back(column_of(schema(), columns[i]));
        one.dtype = DType::parse(field<"dtype", std::string>(target));
        one.to = {reinterpret_cast<std::byte*>(field<"address", std::uintptr_t>(target)),
                  field<"nbytes", std::uint64_t>(target)};
    }
    if (!gpu) {
        return copying(
            [&](auto&) { return rollring::gather(from, schema(), asked, of.layout, threads); });
    }
    reading(*gpu, stream, [&](Gatherer& gatherer) {
        return gatherer.gather(from, schema(), asked, of.layout, queue(stream));
    });
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
        .def("sequences", &PyViews::sequences)
        .def("groups", &PyViews::groups)
        .def("n_sequences", &PyViews::n_sequences)
        .def("n_groups", &PyViews::n_groups)
        .def("common_columns", &PyViews::common_columns)
        .def("gather_shape", &PyViews::gather_shape)
        .def("offsets", &PyViews::offsets)
        .def("gather", &PyViews::gather, nb::arg("columns"), nb::arg("targets"), nb::arg("layout"),
             nb::arg("threads"), nb::arg("gpu").none(), nb::arg("stream"))
        .def("prepare", &PyViews::prepare)
        .def("mark", &PyViews::mark)
        .def("wait_reads", &PyViews::wait_reads)
        .def("gather_stat", &PyViews::gather_stat);
    module.def("micro_batches",
               [](const std::vector<std::uint32_t>& lengths, std::uint64_t tokens) {
                   const MicroBatches made = value_or_raise(micro_batches(lengths, tokens));
                   return nb::make_tuple(made.bins, made.fill);
               });
}

}  // namespace rollring::python
