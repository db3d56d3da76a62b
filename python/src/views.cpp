#include "views.hpp"

#include "rollring/batch.hpp"

namespace rollring::python {

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
        .def("gather", &PyViews::gather, nb::arg("columns"), nb::arg("layout"), nb::arg("threads"),
             nb::arg("gpu").none(), nb::arg("stream"))
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
