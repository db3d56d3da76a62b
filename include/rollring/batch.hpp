#pragma once
// The records of a batch, or of a rank's share of one, where they lie: what both of them show, and
// all that packing and gathering need to know of either.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "rollring/export.hpp"
#include "rollring/lease.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

// One record of a batch: a sequence to train on.
struct Sequence {
    const TrajectoryView& view;  // valid while the batch is leased, as what it shows
    std::uint32_t group;         // index of its group, as in groups()
    std::uint32_t member;        // index of its member within the group
    bool withheld;               // stale: counts for the baseline, is not to be trained on
};

struct BatchGroupInfo {
    GroupKey key;
    std::uint32_t size;     // asked for
    std::uint32_t members;  // shipped; fewer if members failed or the deadline came
    // Of its members, those whose reward is NaN or infinite: not shipped, or shipped as if they had
    // none (StashOptions::bad_reward).
    std::uint32_t bad_rewards;
    // Shipped without a reward: advantage 0, and the others are compared without them.
    std::uint32_t unrewarded;
};

namespace detail {

// What the columns of records are that have the same ones: with the number of tokens it says where
// in a record each begins.
struct RecordForm {
    struct Column {
        std::uint64_t head;  // of its view: head_of()
        std::array<std::uint32_t, 3> inner;
        std::uint32_t row_bytes;  // of each token; 0: it has no row for each
        std::uint32_t bytes;      // from there to the next column, where it has none
    };
    std::vector<Column> columns;

    static constexpr std::uint64_t line = 64;  // that columns begin with
    // Number, dtype and count of dims, which lie together. One load: bytes put together in memory
    // would have to be written before they are read.
    static std::uint64_t head_of(const ColumnView& column) {
        static_assert(offsetof(ColumnView, shape) == sizeof(std::uint64_t));
        constexpr std::size_t bytes = offsetof(ColumnView, dims) + sizeof(ColumnView::dims);
        std::uint64_t head = 0;
        std::memcpy(&head, static_cast<const void*>(&column), sizeof head);
        return head & ((std::uint64_t{1} << (8 * bytes)) - 1);
    }
    // From a column of so many tokens to the next one.
    static std::uint64_t bytes_of(std::uint64_t row_bytes, std::uint64_t tokens) {
        return (row_bytes * tokens + line - 1) / line * line;
    }
};

// Where the columns of a sequence lie: what its view says, in fewer lines, one after the other.
struct RecordPlace {
    const std::byte* columns;  // where the first begins
    std::uint32_t tokens;
    std::uint32_t form;                                   // index in forms(), or:
    static constexpr std::uint32_t no_form = 0xffffffff;  // its view alone says where they lie
};

}  // namespace detail

// All of it is empty once it is not leased any more.
class ROLLRING_API Sequences {
  public:
    Sequences(const Sequences&) = delete;
    Sequences& operator=(const Sequences&) = delete;

    [[nodiscard]] bool leased() const { return lease_.holds(); }
    // To be kept with what is made of its views.
    [[nodiscard]] const Lease& lease() const { return lease_; }
    [[nodiscard]] std::span<const BatchGroupInfo> groups() const { return groups_; }
    // Group by group, member by member (in order of repetition), subsequence by subsequence.
    [[nodiscard]] std::span<const Sequence> sequences() const { return sequences_; }
    // sequences() of group g are [group_offsets()[g], group_offsets()[g + 1]).
    [[nodiscard]] std::span<const std::uint32_t> group_offsets() const { return group_offsets_; }
    // Token offsets of the sequences laid end to end, as flash-attention's cu_seqlens.
    [[nodiscard]] std::span<const std::int64_t> cu_seqlens() const { return cu_seqlens_; }

    // One value a sequence. A member's subsequences share its reward and its advantage.
    [[nodiscard]] std::span<const double> rewards() const {  // absent: NaN
        return rewards_;
    }
    [[nodiscard]] std::span<const double> advantages() const { return advantages_; }
    [[nodiscard]] std::span<const std::uint32_t> repetition_ids() const { return repetition_ids_; }
    // Oldest policy version among the generated tokens of this sequence, not of its whole member;
    // -1: unknown.
    [[nodiscard]] std::span<const std::int64_t> policy_versions() const { return versions_; }

    // For who reads columns of many of them.
    [[nodiscard]] std::span<const detail::RecordPlace> places() const { return places_; }
    [[nodiscard]] std::span<const detail::RecordForm> forms() const { return forms_; }

  protected:
    Sequences() = default;
    Sequences(Sequences&&) noexcept = default;
    Sequences& operator=(Sequences&&) noexcept = default;
    ~Sequences() = default;

    // A new lease, which keeps `keeper`.
    void lease_to(std::shared_ptr<void> keeper, Batch* batch,
                  std::shared_ptr<const MappedLanes> lanes);
    // To be filled group by group: sequences first, then the group that they are of.
    void begin(std::size_t sequences);
    void add(const TrajectoryView& view, std::uint32_t member, bool withheld, double reward,
             double advantage);
    void end_group(const BatchGroupInfo& group);
    void clear();

    Lease lease_;

  private:
    std::vector<BatchGroupInfo> groups_;
    std::vector<Sequence> sequences_;
    std::vector<detail::RecordPlace> places_;
    std::vector<detail::RecordForm> forms_;  // a few at most
    std::vector<std::uint32_t> group_offsets_;
    std::vector<std::int64_t> cu_seqlens_;
    std::vector<double> rewards_;
    std::vector<double> advantages_;
    std::vector<std::uint32_t> repetition_ids_;
    std::vector<std::int64_t> versions_;
};

}  // namespace rollring
