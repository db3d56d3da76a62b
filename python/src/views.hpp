#pragma once
// What a batch and a rank's share of one have in common, for rollring/_views.py.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "fields.hpp"
#include "lent.hpp"
#include "nb.hpp"
#include "released.hpp"
#include "rollring/columns.hpp"
#include "sequence.hpp"

namespace rollring::python {

inline nb::bytes copy_of(const void* data, std::size_t bytes) {
    return nb::bytes(static_cast<const char*>(data), bytes);
}

class PyViews {
  public:
    explicit PyViews(std::shared_ptr<Lent> lent) : lent_(std::move(lent)) {}

    [[nodiscard]] bool leased() const { return lent_->leased(); }
    // Each as the bytes of an array, for numpy to look at.
    nb::bytes rewards() { return array(shown().rewards()); }
    nb::bytes advantages() { return array(shown().advantages()); }
    nb::bytes cu_seqlens() { return array(shown().cu_seqlens()); }
    nb::bytes group_offsets() { return array(shown().group_offsets()); }
    nb::bytes repetition_ids() { return array(shown().repetition_ids()); }
    nb::bytes policy_versions() { return array(shown().policy_versions()); }

    std::size_t n_sequences() { return shown().sequences().size(); }
    std::size_t n_groups() { return shown().groups().size(); }
    // (size, bad rewards, unrewarded, members), a member as (begin and end of its sequences,
    // advantage, reward).
    nb::list groups() {
        nb::list made;
        for (std::size_t i = 0; i < shown().groups().size(); i++) {
            const BatchGroupInfo& group = shown().groups()[i];
            made.append(nb::make_tuple(
                group.size, group.bad_rewards, group.unrewarded,
                members(shown().group_offsets()[i], shown().group_offsets()[i + 1])));
        }
        return made;
    }
    // Each an instance of this class, which is derived from ours.
    nb::list sequences(nb::handle kind) { return made_sequences(lent_, kind); }
    // Names of the per-token columns that every sequence carries, in the schema's order.
    nb::list common_columns() {
        nb::list made;
        const auto declared = schema().columns();
        for (std::uint16_t column = 0; column < declared.size(); column++) {
            if (declared[column].per != Per::token) continue;
            const bool common = std::ranges::all_of(shown().sequences(), [&](const Sequence& one) {
                return one.view.find(column) != nullptr;
            });
            if (common) made.append(text(declared[column].name));
        }
        return made;
    }
    // (dtype, shape) of the packed array.
    nb::tuple packed_shape(std::string_view column_name) {
        return told(value_or_raise(rollring::packed_shape(shown(), schema(), index(column_name))));
    }
    nb::tuple padded_shape(std::string_view column_name, double pad, bool left,
                           std::uint64_t length, std::uint64_t multiple_of) {
        return told(value_or_raise(rollring::padded_shape(
            shown(), schema(), index(column_name), padding(pad, left, length, multiple_of))));
    }
    // `target`: the address of so many bytes that nobody else uses, kept by the caller.
    void pack(std::string_view column_name, std::uintptr_t target, std::uint64_t bytes,
              const std::string& dtype, std::optional<double> missing, std::uint32_t threads) {
        const std::uint16_t column = index(column_name);
        const Sequences& from = shown();
        copying([&] {
            return pack_column(from, schema(), column, memory(target, bytes),
                               copy(dtype, missing, threads));
        });
    }
    void pad(std::string_view column_name, std::uintptr_t target, std::uint64_t bytes,
             const std::string& dtype, std::optional<double> missing, std::uint32_t threads,
             double value, bool left, std::uint64_t length, std::uint64_t multiple_of) {
        const std::uint16_t column = index(column_name);
        const Sequences& from = shown();
        copying([&] {
            return pad_column(from, schema(), column, memory(target, bytes),
                              padding(value, left, length, multiple_of),
                              copy(dtype, missing, threads));
        });
    }

  private:
    const Sequences& shown() const { return lent_->shown(); }
    const Schema& schema() const { return lent_->schema(); }
    nb::list members(std::size_t begin, std::size_t end) const {
        nb::list made;
        while (begin < end) {
            std::size_t next = begin + 1;
            while (next < end &&
                   shown().sequences()[next].member == shown().sequences()[begin].member)
                next++;
            made.append(
                nb::make_tuple(begin, next, shown().advantages()[begin], shown().rewards()[begin]));
            begin = next;
        }
        return made;
    }
    std::uint16_t index(std::string_view column_name) const {
        shown();
        const auto found = schema().find(column_name);
        if (!found) {
            raise("no_column", "this ring has no column '" + std::string(column_name) + "'");
        }
        return *found;
    }
    template <class Copy>
    void copying(Copy run) {
        lent_->begin_copy();
        Result<void> done;
        {
            const Released released;
            done = run();
        }
        lent_->end_copy();
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

    std::shared_ptr<Lent> lent_;
};

void bind_views(nb::module_& module);

}  // namespace rollring::python
