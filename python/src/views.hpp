#pragma once
// The common part of a batch and of a rank's share of one, for rollring/_views.py.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lent.hpp"
#include "nb.hpp"

namespace rollring::python {

inline nb::bytes copy_of(const void* data, std::size_t bytes) {
    return nb::bytes(static_cast<const char*>(data), bytes);
}

class PyViews {
  public:
    explicit PyViews(std::shared_ptr<Lent> lent) : lent_(std::move(lent)) {}

    [[nodiscard]] bool leased() const { return lent_->leased(); }
    [[nodiscard]] const std::shared_ptr<Lent>& lent() const { return lent_; }
    // Each list as an array of its own: a copy.
    nb::object rewards();
    nb::object advantages();
    nb::object cu_seqlens();
    nb::object group_offsets();
    nb::object repetition_ids();
    nb::object policy_versions();
    // Those of Batch.as_dict, by their names.
    nb::dict lists();

    std::int64_t n_tokens();
    std::size_t n_sequences() { return shown().sequences().size(); }
    std::size_t n_groups() { return shown().groups().size(); }
    // A group is (size, bad rewards, unrewarded, members), a member is (begin and end of its
    // sequences, advantage, reward, repetition_id).
    nb::list groups();
    // Instances of `kind`, a class that is derived from ours.
    nb::list sequences(nb::handle kind);
    // Names of the per-token columns that every sequence has, in the schema's order.
    nb::list common_columns();

    // Of the array that a gather makes of the column.
    std::string dtype_of(std::string_view column);
    // The rows at which the sequences of a Layout of rollring/_gather.py begin, as an array of i32.
    nb::object offsets(nb::handle layout);
    // `columns`: GatherColumns of rollring/_gather.py. Returns an array of each, which make(column,
    // dtype, shape) has made: see set_numpy_helpers(). None: host memory. A GPU's memory is written
    // when the stream reaches this call.
    nb::list gather(nb::list columns, nb::handle layout, nb::handle make, std::uint32_t threads,
                    std::optional<int> gpu, std::uintptr_t stream);
    // Registers the ring's lanes with the GPU.
    void prepare(int gpu);
    // Declares that work queued on the stream so far reads the batch, too.
    void mark(int gpu, std::uintptr_t stream);
    // See Lent.
    bool wait_reads(double seconds) { return lent_->wait_reads(deadline_of(seconds)); }
    nb::dict gather_stat(int gpu);

  private:
    const Sequences& shown() const { return lent_->shown(); }
    const Schema& schema() const { return lent_->schema(); }
    nb::list members(std::size_t begin, std::size_t end) const;
    template <class Copy>
    void copying(Copy run);
    template <class Run>
    void reading(int gpu, std::uintptr_t stream, Run run);

    std::shared_ptr<Lent> lent_;
};

void bind_views(nb::module_& module);

}  // namespace rollring::python
