#include "batch.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fields.hpp"
#include "nb.hpp"
#include "rollring/columns.hpp"
#include "sequence.hpp"

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

    std::size_t n_sequences() { return batch().sequences().size(); }
    std::size_t n_groups() { return batch().groups().size(); }
    // (size, bad rewards, unrewarded, members), a member as (begin and end of its sequences,
    // advantage, reward).
    nb::list groups() {
        nb::list made;
        for (std::size_t i = 0; i < batch().groups().size(); i++) {
            const BatchGroupInfo& group = batch().groups()[i];
            made.append(nb::make_tuple(
                group.size, group.bad_rewards, group.unrewarded,
                members(batch().group_offsets()[i], batch().group_offsets()[i + 1])));
        }
        return made;
    }
    // Each an instance of this class, which is derived from ours.
    nb::list sequences(nb::handle kind) { return made_sequences(leased_, kind); }
    // Names of the per-token columns that every sequence carries, in the schema's order.
    nb::list common_columns() {
        nb::list made;
        const auto declared = schema().columns();
        for (std::uint16_t column = 0; column < declared.size(); column++) {
            if (declared[column].per != Per::token) continue;
            const bool common = std::ranges::all_of(batch().sequences(), [&](const Sequence& one) {
                return one.view.find(column) != nullptr;
            });
            if (common) made.append(text(declared[column].name));
        }
        return made;
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
    const Batch& batch() const { return leased_->leased_batch(); }
    const Schema& schema() const { return leased_->schema(); }
    nb::list members(std::size_t begin, std::size_t end) const {
        nb::list made;
        while (begin < end) {
            std::size_t next = begin + 1;
            while (next < end &&
                   batch().sequences()[next].member == batch().sequences()[begin].member)
                next++;
            made.append(
                nb::make_tuple(begin, next, batch().advantages()[begin], batch().rewards()[begin]));
            begin = next;
        }
        return made;
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
        .def("n_sequences", &PyBatch::n_sequences)
        .def("n_groups", &PyBatch::n_groups)
        .def("common_columns", &PyBatch::common_columns)
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
