#pragma once
// The common part of a batch and of a rank's share of one, for rollring/_views.py.

#include <memory>
#include <optional>
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
    // Each list as the bytes of an array, for numpy.
    nb::bytes rewards() { return array(shown().rewards()); }
    nb::bytes advantages() { return array(shown().advantages()); }
    nb::bytes cu_seqlens() { return array(shown().cu_seqlens()); }
    nb::bytes group_offsets() { return array(shown().group_offsets()); }
    nb::bytes repetition_ids() { return array(shown().repetition_ids()); }
    nb::bytes policy_versions() { return array(shown().policy_versions()); }

    std::size_t n_sequences() { return shown().sequences().size(); }
    std::size_t n_groups() { return shown().groups().size(); }
    // A group is (size, bad rewards, unrewarded, members), a member is (begin and end of its
    // sequences, advantage, reward, repetition_id).
    nb::list groups();
    // Instances of `kind`, a class that is derived from ours.
    nb::list sequences(nb::handle kind);
    // Names of the per-token columns that every sequence has, in the schema's order.
    nb::list common_columns();

    // `column`, `layout`: a GatherColumn and a Layout of rollring/_gather.py. Returns (dtype,
    // shape) of the gathered array.
    nb::tuple gather_shape(nb::handle column, nb::handle layout);
    // The rows at which the sequences begin, as the bytes of i64s.
    nb::bytes offsets(nb::handle layout);
    // `targets`: for each column, memory of this process or of the GPU, which the caller keeps
    // alive. A GPU's memory is written when the stream reaches this call.
    void gather(nb::list columns, nb::list targets, nb::handle layout, std::uint32_t threads,
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
    template <class T>
    static nb::bytes array(std::span<const T> values) {
        return copy_of(values.data(), values.size_bytes());
    }

    std::shared_ptr<Lent> lent_;
};

void bind_views(nb::module_& module);

}  // namespace rollring::python
