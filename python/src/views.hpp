#pragma once
// The common part of a batch and of a rank's share of one, for rollring/_views.py.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "fields.hpp"
#include "gathering.hpp"
#include "lent.hpp"
#include "nb.hpp"
#include "released.hpp"
#include "rollring/gather.hpp"
#include "sequence.hpp"
#include "turn.hpp"

namespace rollring::python {

inline nb::bytes copy_of(const void* data, std::size_t bytes) {
    return nb::bytes(static_cast<const char*>(data), bytes);
}

class PyViews {
  public:
    explicit PyViews(std::shared_ptr<Lent> lent) : lent_(std::move(lent)) {}

    [[nodiscard]] bool leased() const { return lent_->leased(); }
    // Each as the bytes of an array, for numpy.
    nb::bytes rewards() { return array(shown().rewards()); }
    nb::bytes advantages() { return array(shown().advantages()); }
    nb::bytes cu_seqlens() { return array(shown().cu_seqlens()); }
    nb::bytes group_offsets() { return array(shown().group_offsets()); }
    nb::bytes repetition_ids() { return array(shown().repetition_ids()); }
    nb::bytes policy_versions() { return array(shown().policy_versions()); }

    std::size_t n_sequences() { return shown().sequences().size(); }
    std::size_t n_groups() { return shown().groups().size(); }
    // (size, bad rewards, unrewarded, members), a member as (begin and end of its sequences,
    // advantage, reward, repetition_id).
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
    // Each is an instance of this class, which is derived from ours.
    nb::list sequences(nb::handle kind) { return made_sequences(lent_, kind); }
    // Names of the per-token columns that every sequence has, in the schema's order.
    nb::list common_columns() {
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
    // (dtype, shape) of the gathered array.
    nb::tuple gather_shape(nb::handle column, nb::handle args) {
        const LayoutOf of(args);
        const Sequences& from = shown();
        return told(
            value_or_raise(gathered_shape(from, schema(), column_of(schema(), column), of.layout)));
    }
    // The rows at which the sequences begin, as the bytes of i64s.
    nb::bytes offsets(nb::handle args) {
        const LayoutOf of(args);
        const auto made = value_or_raise(gathered_offsets(shown(), of.layout));
        return array(std::span<const std::int64_t>(made));
    }
    // The addresses are of unshared memory that the caller keeps; with a GPU, of its memory, which
    // is written once the stream gets there.
    void gather(nb::list columns, nb::handle args, std::uint32_t threads, std::optional<int> gpu,
                std::uintptr_t stream) {
        const LayoutOf of(args);
        const Sequences& from = shown();
        std::vector<GatherColumn> targets;
        targets.reserve(columns.size());
        for (const nb::handle column : columns) targets.push_back(column_of(schema(), column));
        if (!gpu) {
            return copying([&](auto&) {
                return rollring::gather(from, schema(), targets, of.layout, threads);
            });
        }
        reading(*gpu, stream, [&](Gatherer& gatherer) {
            return gatherer.gather(from, schema(), targets, of.layout, queue(stream));
        });
    }
    // Registers the ring's lanes with the GPU.
    void prepare(int gpu) {
        const Sequences& from = shown();
        reading(gpu, 0, [&](Gatherer& gatherer) { return gatherer.prepare(from); });
    }
    // Work queued on the stream by now reads the batch, too.
    void mark(int gpu, std::uintptr_t stream) {
        static_cast<void>(shown());
        reading(gpu, stream, [](Gatherer&) { return Result<void>(); });
    }
    // See Lent.
    bool wait_reads(double seconds) { return lent_->wait_reads(deadline_of(seconds)); }
    nb::dict gather_stat(int gpu) {
        const GatherStat stat = lent_->gatherers().stat(gpu);
        nb::dict made;
        made["registered_bytes"] = stat.registered_bytes;
        made["read_bytes"] = stat.read_bytes;
        made["staged_bytes"] = stat.staged_bytes;
        made["why_staged"] = stat.why_staged;
        return made;
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
            made.append(nb::make_tuple(begin, next, shown().advantages()[begin],
                                       shown().rewards()[begin], shown().repetition_ids()[begin]));
            begin = next;
        }
        return made;
    }
    template <class Copy>
    void copying(Copy run) {
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
    void reading(int gpu, std::uintptr_t stream, Run run) {
        copying([&](std::optional<DeviceRead>& read) {
            return lent_->gatherers().use(gpu, queue(stream), run, read);
        });
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
    static Stream queue(std::uintptr_t stream) { return {reinterpret_cast<void*>(stream)}; }

    std::shared_ptr<Lent> lent_;
};

void bind_views(nb::module_& module);

}  // namespace rollring::python
