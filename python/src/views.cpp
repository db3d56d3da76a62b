#include "views.hpp"

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
        .def("packed_shape", &PyViews::packed_shape)
        .def("padded_shape", &PyViews::padded_shape)
        .def("pack", &PyViews::pack, nb::arg("column"), nb::arg("target"), nb::arg("bytes"),
             nb::arg("dtype"), nb::arg("missing").none(), nb::arg("threads"))
        .def("pad", &PyViews::pad, nb::arg("column"), nb::arg("target"), nb::arg("bytes"),
             nb::arg("dtype"), nb::arg("missing").none(), nb::arg("threads"), nb::arg("value"),
             nb::arg("left"), nb::arg("length"), nb::arg("multiple_of"));
}

}  // namespace rollring::python
