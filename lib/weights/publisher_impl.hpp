#pragma once
// One publisher: its parts, and the order of its steps from begin to commit.

#include <optional>
#include <string>
#include <vector>

#include "backend.hpp"
#include "control_map.hpp"
#include "gpus.hpp"
#include "liveness.hpp"
#include "publication.hpp"
#include "published_tensors.hpp"
#include "ranks.hpp"
#include "reception.hpp"
#include "ring_link.hpp"
#include "rollring/weights.hpp"
#include "seats.hpp"
#include "slot_filler.hpp"

namespace rollring::weights {

using device::Backend;
using device::Gpus;

class PublisherImpl {
  public:
    static Result<std::unique_ptr<PublisherImpl>> create(std::string_view ring,
                                                         std::span<const WeightTensor> tensors,
                                                         const PublisherOptions& options,
                                                         const Gpus& gpus);
    // Call it before destruction. False: the object must not be destroyed.
    bool shut_down();
    [[nodiscard]] Result<void> check_process() const { return maker_.check("publisher"); }

    Result<void> begin(std::int64_t version);
    Result<void> begin_again();  // the committed one, for those that are behind
    Result<void> resume(std::int64_t version);
    // Steps of the open version: its Transaction has checked that it is open.
    Result<void> put_all(Deadline deadline, Stream stream);
    [[nodiscard]] SlotFiller& filler() { return *filler_; }
    Result<void> put(std::string_view tensor, const void* source, Deadline deadline, Stream stream);
    Result<void> publish_all();
    Result<void> wait_all_staged(Deadline deadline);
    Result<CommitReport> decide(Deadline deadline);
    Result<CommitReport> commit(Deadline deadline);
    void abort(std::string_view why);
    Result<void> expel(const std::string& name);
    // Until `count` subscribers are attached, and until `count` serve the committed version.
    Result<void> wait_joined(std::uint32_t count, Deadline deadline);
    Result<void> wait_live(std::uint32_t count, Deadline deadline);
    void interrupt() { seats_.interrupt(); }
    // Attached subscribers that lack the committed version.
    std::uint32_t behind() {
        return publication_.committed() < 0 ? 0 : seats_.behind(publication_.committed());
    }

    [[nodiscard]] const Publication& publication() const { return publication_; }
    // Whether a transaction of this publication has something to do.
    [[nodiscard]] bool is_at(std::uint64_t publication) const {
        return publication_.number() == publication && (publication_.is_open() || is_decided_);
    }
    [[nodiscard]] const Packing& packing() const { return tensors_.packing(); }
    [[nodiscard]] std::uint32_t slots() const { return options_.slots; }
    [[nodiscard]] PayloadMemory memory() const { return tensors_.manifest().memory; }
    [[nodiscard]] const std::string& why_not_direct() const { return why_not_direct_; }

  private:
    PublisherImpl(std::string_view ring, const PublisherOptions& options, RingLink link,
                  std::uint64_t token, OwnControl control, PublishedTensors tensors);
    Result<void> make_slots(PayloadMemory memory, const Gpus& gpus);
    // The tensors where they lie. unsupported: why they cannot be read there.
    Result<void> expose_tensors(const Gpus& gpus);
    Result<PayloadMemory> choose_memory(const Gpus& gpus);
    Result<void> set_up(const Gpus& gpus);
    Result<void> open_reception(Listener listener);

    // Waits until `count()` reaches `wanted`.
    template <class Count>
    Result<void> wait_for(std::uint32_t wanted, std::string_view what, Deadline deadline,
                          const Count& count);

    void open_publication(std::int64_t version, bool only_behind);
    [[nodiscard]] bool is_again() const;
    [[nodiscard]] std::unexpected<Error> still_open() const;
    [[nodiscard]] std::string_view next_tensor() const;
    Result<void> wait_staged(Deadline deadline);
    Result<void> carry_through(Deadline deadline);
    void finish_commit();
    // Until engines have all that they want of the tensors themselves; at once with slots.
    Result<void> wait_read(Deadline deadline);
    // Engines that still read the tensors adopt nothing.
    void stop_readers();
    void give_up(std::string_view why);
    // The committed version once more, from the slots that have it, for engines that lack it.
    void offer_again();
    [[nodiscard]] bool is_sharded() const { return !options_.layout.empty(); }

    MakerProcess maker_;
    std::string ring_name_;
    PublisherOptions options_;
    std::string why_not_direct_;
    RingLink link_;
    std::uint64_t token_;
    PublishedTensors tensors_;
    TiedPuts tied_{tensors_};
    Backend backend_;
    OwnControl control_;
    std::optional<LifeLock> life_;
    Publication publication_;
    Refusals refusals_;
    Seats seats_;
    Ranks ranks_;
    std::optional<SlotFiller> filler_;
    std::unique_ptr<Reception> reception_;

    std::int64_t begun_version_ = -1;  // the highest; one that is sent again does not count
    CommitReport report_;              // of the open version
    bool all_staged_ = false;          // of the open version: no subscriber is asked again
    bool is_decided_ = false;          // it is committed, and engines may still read the tensors
    std::int64_t begun_ns_ = 0;
    std::int64_t put_done_ns_ = 0;
};

}  // namespace rollring::weights
