#pragma once
// The public state of a stash's groups: a row for each, for people (`rollring groups`); the hashed
// keys, for producers that check whether a group is open already; and the tombstones of finished
// groups, for the next holder of the seat. Only the consumer writes it.

#include <cstdint>
#include <span>
#include <vector>

#include "group.hpp"
#include "key_table.hpp"
#include "ring_map.hpp"

namespace rollring {

struct KnownTombstone {
    GroupKey key;
    std::int64_t over_ns;
};

class GroupBoard {
  public:
    // Reserves and maps the board, and clears everything of a predecessor except its tombstones.
    static Result<GroupBoard> open(const RingMap& map, ReaderControl& control);

    // Writes the group to its row; its name comes by name(). `has_tombstone`: the tombstone is
    // already written.
    void show(std::uint32_t index, const Group& group, std::int64_t now_ns,
              bool has_tombstone = false);
    void name(std::uint32_t index, std::string_view instance_id);
    // Whether the group is open and has no name yet.
    [[nodiscard]] bool wants_name(std::uint32_t index) const { return shown_[index].nameless; }
    [[nodiscard]] std::uint32_t rows() const { return row_count_; }
    // When the group was last shown; 0 if it has no row.
    [[nodiscard]] std::int64_t changed_ns(std::uint32_t index) const {
        return index < row_count_ ? peek(row(index).changed_ns) : 0;
    }

    // Writes tombstones for groups that the next journal entry ends: they count from its commit on.
    void prepare_tombstones(std::span<const GroupKey> keys, std::int64_t now_ns);
    // The tombstones that count, oldest first.
    [[nodiscard]] std::vector<KnownTombstone> tombstones(
        std::int64_t now_ns = monotonic_ns()) const;

  private:
    GroupBoard(Mapping memory, const Geometry& geometry, ReaderControl& control);
    void write_tombstone(std::uint64_t number, const GroupKey& key, std::int64_t now_ns);
    void add_tombstone(const GroupKey& key, std::int64_t now_ns);
    void open(std::uint32_t index, const Group& group);
    void close(std::uint32_t index, std::int64_t now_ns, bool has_tombstone);
    [[nodiscard]] GroupRow& row(std::uint32_t index) const {
        return memory_.at<GroupRow>(index * sizeof(GroupRow));
    }

    Mapping memory_;
    std::uint32_t row_count_;
    KeyTable keys_;
    Tombstone* tombstones_;
    std::uint64_t tombstone_count_;
    std::uint64_t key_count_;
    std::uint64_t keys_held_ = 0;
    struct Shown {
        GroupKey key;
        bool open = false;
        bool in_table = false;
        bool nameless = false;
    };
    std::vector<Shown> shown_;  // by index
    ReaderControl* control_;
};

}  // namespace rollring
