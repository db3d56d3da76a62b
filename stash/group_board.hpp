#pragma once
// What a stash shows of its groups: a row each for people (`rollring groups`), the hashed keys for
// producers who ask whether a group is open already, and the graves of groups that are over for the
// next process that takes the seat. One writer: the consumer.

#include <cstdint>
#include <span>
#include <vector>

#include "group.hpp"
#include "key_table.hpp"
#include "ring_map.hpp"

namespace rollring {

struct KnownGrave {
    GroupKey key;
    std::int64_t buried_ns;
};

class GroupBoard {
  public:
    // Reserves and maps the board, and clears what a predecessor left but for its graves.
    static Result<GroupBoard> open(const RingMap& map, ReaderControl& control);

    // Shows the group in its row; the name is told when the group opens.
    // `buried`: dug for it beforehand.
    void show(std::uint32_t slot, const Group& group, std::int64_t now_ns, bool buried = false);
    void name(std::uint32_t slot, std::string_view instance_id);
    // It is open, and has no name yet.
    [[nodiscard]] bool wants_name(std::uint32_t slot) const { return shown_[slot].nameless; }
    [[nodiscard]] std::uint32_t rows() const { return row_count_; }

    // Graves for groups that the next journal entry ends: they count from its commit on.
    void dig(std::span<const GroupKey> keys, std::int64_t now_ns);
    // Oldest first.
    [[nodiscard]] std::vector<KnownGrave> graves(std::int64_t now_ns = monotonic_ns()) const;

  private:
    GroupBoard(Mapping memory, const Geometry& geometry, ReaderControl& control);
    void write_grave(std::uint64_t number, const GroupKey& key, std::int64_t now_ns);
    void dig_grave(const GroupKey& key, std::int64_t now_ns);
    void open(std::uint32_t slot, const Group& group);
    void close(std::uint32_t slot, std::int64_t now_ns, bool buried);
    [[nodiscard]] GroupRow& row(std::uint32_t slot) const {
        return memory_.at<GroupRow>(slot * sizeof(GroupRow));
    }

    Mapping memory_;
    std::uint32_t row_count_;
    KeyTable keys_;
    Grave* graves_;
    std::uint64_t grave_count_;
    std::uint64_t key_count_;
    std::uint64_t keys_held_ = 0;
    struct Shown {
        GroupKey key;
        bool open = false;
        bool in_table = false;
        bool nameless = false;
    };
    std::vector<Shown> shown_;  // by slot
    ReaderControl* control_;
};

}  // namespace rollring
