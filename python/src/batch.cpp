#include "batch.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fields.hpp"
#include "nb.hpp"
#include "rollring/columns.hpp"

namespace rollring::python {
namespace {

nb::bytes copy_of(const void* data, std::size_t bytes) {
    return nb::bytes(static_cast<const char*>(data), bytes);
}

class PyBatch {
  public:
    explicit PyBatch(std::shared_ptr<Leased> leased) : leased_(std::move(leased)) {}

    [[nodiscard]] bool leased() const {
        return !leased_->inherited() && !leased_->later && leased_->batch->leased();
    }
    // Each as the bytes of an array, for numpy to look at.
    nb::bytes rewards() { return array(batch().rewards()); }
    nb::bytes advantages() { return array(batch().advantages()); }
    nb::bytes cu_seqlens() { return array(batch().cu_seqlens()); }
    nb::bytes group_offsets() { return array(batch().group_offsets()); }
    nb::bytes repetition_ids() { return array(batch().repetition_ids()); }
    nb::bytes policy_versions() { return array(batch().policy_versions()); }

    std::size_t sequences() { return batch().sequences().size(); }
    nb::list groups() {
        nb::list made;
        for (const BatchGroupInfo& group : batch().groups()) {
            made.append(nb::make_tuple(group.key.low, group.key.high, group.size, group.members,
                                       group.bad_rewards, group.unrewarded));
        }
        return made;
    }
    // What Meta has of a sequence, by name.
    nb::dict fields(std::size_t i) {
        const Sequence& sequence = at(i);
        nb::dict made = fields_of(sequence.view);
        made["group"] = sequence.group;
        made["member"] = sequence.member;
        made["withheld"] = sequence.withheld;
        return made;
    }
    // By its place in field_names().
    nb::object field(std::size_t i, std::size_t number) {
        return record_fields.at(number).of(at(i).view);
    }
    bool withheld(std::size_t i) { return at(i).withheld; }
    nb::list columns(std::size_t i, bool per_token) {
        const TrajectoryView& view = at(i).view;
        const auto declared = schema().columns();
        nb::list made;
        for (std::uint16_t column = 0; column < declared.size(); column++) {
            if (view.find(column) == nullptr) continue;
            if (per_token && declared[column].per != Per::token) continue;
            made.append(text(declared[column].name));
        }
        return made;
    }
    bool has_column(std::string_view column_name) {
        batch();
        return schema().find(column_name).has_value();
    }
    std::unique_ptr<Window> column(std::size_t i, std::string_view column_name) {
        const Sequence& sequence = at(i);
        const auto index = schema().find(column_name);
        const ColumnView* found = index ? sequence.view.find(*index) : nullptr;
        if (found == nullptr) return nullptr;
        auto* bytes = const_cast<std::byte*>(found->data.data());
        return std::make_unique<Window>(
            leased_,
            std::string(column_name) + " of '" + std::string(sequence.view.instance_id()) +
                "', repetition " + std::to_string(sequence.view.meta().repetition_id),
            found->dtype, std::span(bytes, found->data.size()),
            std::span(found->shape).first(found->dims), false);
    }

    // (dtype, shape) of the packed array.
    nb::tuple packed_shape(std::string_view column_name) {
        return told(value_or_raise(rollring::packed_shape(batch(), schema(), index(column_name))));
    }
    nb::tuple padded_shape(std::string_view column_name, double pad, bool left,
                           std::uint64_t length, std::uint64_t multiple_of) {
        return told(value_or_raise(rollring::padded_shape(
            batch(), schema(), index(column_name), padding(pad, left, length, multiple_of))));
    }
    // `target`: the address of so many bytes that nobody else uses, kept by the caller.
    void pack(std::string_view column_name, std::uintptr_t target, std::uint64_t bytes,
              const std::string& dtype, std::optional<double> missing, std::uint32_t threads) {
        const std::uint16_t column = index(column_name);
        const Batch& from = batch();
        copying([&] {
            return pack_column(from, schema(), column, memory(target, bytes),
                               copy(dtype, missing, threads));
        });
    }
    void pad(std::string_view column_name, std::uintptr_t target, std::uint64_t bytes,
             const std::string& dtype, std::optional<double> missing, std::uint32_t threads,
             double value, bool left, std::uint64_t length, std::uint64_t multiple_of) {
        const std::uint16_t column = index(column_name);
        const Batch& from = batch();
        copying([&] {
            return pad_column(from, schema(), column, memory(target, bytes),
                              padding(value, left, length, multiple_of),
                              copy(dtype, missing, threads));
        });
    }

    // No step: one more than the last.
    void ack(std::optional<std::int64_t> step, bool later) {
        batch();
        enum class Did { acked, put_off, refused };
        Result<void> acked;
        const Did did = leased_->shared->in_turn([&](Stash&) {
            leased_->step = step;
            if (!leased_->in_use()) {
                acked = leased_->ack();
                return Did::acked;
            }
            if (!later) return Did::refused;
            leased_->later = leased_->ack_later = true;
            return Did::put_off;
        });
        if (did == Did::acked) value_or_raise(std::move(acked));
        if (did != Did::refused) return;
        raise("views_alive", "cannot acknowledge the batch: " + leased_->use_text() +
                                 "; delete what refers to it, copy it (array.copy()), or use "
                                 "ack(later=True)");
    }
    // At once, or as soon as the last array is gone.
    void nack() {
        if (!leased()) return;
        leased_->shared->in_turn([&](Stash&) {
            if (leased_->in_use()) {
                leased_->later = true;
            } else {
                leased_->batch->nack();
            }
            return true;
        });
    }
    nb::bytes receipt() {
        batch();
        const std::string made =
            leased_->shared->in_turn([&](Stash&) { return leased_->batch->receipt(); });
        return copy_of(made.data(), made.size());
    }

  private:
    const Batch& batch() const {
        if (leased_->inherited()) {
            raise("forked", "this batch is leased to the process that forked this one");
        }
        if (leased_->later || !leased_->batch->leased()) {
            raise("not_leased",
                  "the batch was acknowledged or given back before, or its stash is "
                  "closed: what it showed may be another record by now");
        }
        return *leased_->batch;
    }
    const Schema& schema() const { return leased_->shared->stash->consumer().schema(); }
    const Sequence& at(std::size_t i) const {
        if (i >= batch().sequences().size()) throw nb::index_error("no such sequence");
        return batch().sequences()[i];
    }
    std::uint16_t index(std::string_view column_name) const {
        batch();
        const auto found = schema().find(column_name);
        if (!found) {
            raise("no_column", "this ring has no column '" + std::string(column_name) + "'");
        }
        return *found;
    }
    template <class Copy>
    void copying(Copy run) {
        leased_->copies++;
        Result<void> done;
        {
            const Released released;
            done = run();
        }
        leased_->copies--;
        leased_->on_free();  // what was put off while it ran
        value_or_raise(std::move(done));
    }
    template <class T>
    static nb::bytes array(std::span<const T> values) {
        return copy_of(values.data(), values.size_bytes());
    }
    static nb::tuple told(const ArrayShape& shape) {
        nb::list lengths;
        for (std::size_t i = 0; i < shape.dims; i++) lengths.append(shape.shape[i]);
        return nb::make_tuple(shape.dtype.to_string(), nb::tuple(lengths));
    }
    static Padding padding(double value, bool left, std::uint64_t length,
                           std::uint64_t multiple_of) {
        return {value, left ? Side::left : Side::right, length, multiple_of};
    }
    static ColumnCopy copy(const std::string& dtype, std::optional<double> missing,
                           std::uint32_t threads) {
        return {DType::parse(dtype), missing, threads};
    }
    static std::span<std::byte> memory(std::uintptr_t target, std::uint64_t bytes) {
        return {reinterpret_cast<std::byte*>(target), bytes};
    }

    std::shared_ptr<Leased> leased_;
};

}  // namespace

nb::object made_batch(std::shared_ptr<Leased> leased) {
    return nb::cast(PyBatch(std::move(leased)));
}

void bind_batch(nb::module_& module) {
    module.def("field_names", [] {
        nb::list names;
        for (const Field& field : record_fields) names.append(field.name);
        return names;
    });
    nb::class_<PyBatch>(module, "Batch")
        .def_prop_ro("leased", &PyBatch::leased)
        .def("rewards", &PyBatch::rewards)
        .def("advantages", &PyBatch::advantages)
        .def("cu_seqlens", &PyBatch::cu_seqlens)
        .def("group_offsets", &PyBatch::group_offsets)
        .def("repetition_ids", &PyBatch::repetition_ids)
        .def("policy_versions", &PyBatch::policy_versions)
        .def("sequences", &PyBatch::sequences)
        .def("groups", &PyBatch::groups)
        .def("fields", &PyBatch::fields)
        .def("field", &PyBatch::field)
        .def("withheld", &PyBatch::withheld)
        .def("columns", &PyBatch::columns)
        .def("has_column", &PyBatch::has_column)
        .def("column", &PyBatch::column)
        .def("packed_shape", &PyBatch::packed_shape)
        .def("padded_shape", &PyBatch::padded_shape)
        .def("pack", &PyBatch::pack, nb::arg("column"), nb::arg("target"), nb::arg("bytes"),
             nb::arg("dtype"), nb::arg("missing").none(), nb::arg("threads"))
        .def("pad", &PyBatch::pad, nb::arg("column"), nb::arg("target"), nb::arg("bytes"),
             nb::arg("dtype"), nb::arg("missing").none(), nb::arg("threads"), nb::arg("value"),
             nb::arg("left"), nb::arg("length"), nb::arg("multiple_of"))
        .def("ack", &PyBatch::ack, nb::arg("step").none(), nb::arg("later"))
        .def("nack", &PyBatch::nack)
        .def("receipt", &PyBatch::receipt);
}

}  // namespace rollring::python
