#pragma once
// The bookkeeper of a store: the consumer of both of its rings, in any process. It holds each value
// until it is told to clear it, or until a newer value of the same key arrives. The rings contain
// all that it knows, and its successor reads it there.

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "doorbell.hpp"
#include "ring_map.hpp"
#include "rollring/consumer.hpp"
#include "store_rings.hpp"

namespace rollring {

class Keeper {
  public:
    // Takes both seats. Errc::busy: another process has them. `rings` must outlive this object.
    static Result<Keeper> open(const StoreRings& rings, std::string_view name);

    // Handles all arrivals, until the deadline or the interruption. False: nothing is left to keep,
    // because the store was removed.
    [[nodiscard]] bool serve(Deadline deadline, const Interruption& stop);

  private:
    struct KeyHash {
        std::size_t operator()(const GroupKey& key) const { return key.low; }
    };
    struct Held {
        RecordRef ref;
        GroupKey row;
        GroupKey cell;  // of the row and the column
        std::int64_t put_ns;
        bool keyed;
    };
    Keeper(const StoreRings& rings, Consumer values, Consumer clears);
    bool turn();
    bool take_values();
    void take(const Record& record);
    void clear(const Record& record);
    void drop(std::uint64_t location);

    const StoreRings* rings_;
    Consumer values_;
    Consumer clears_;
    std::unordered_map<std::uint64_t, Held> held_;                            // by location
    std::unordered_map<GroupKey, std::uint64_t, KeyHash> newest_;             // location, by cell
    std::unordered_map<GroupKey, std::vector<std::uint64_t>, KeyHash> rows_;  // locations of a row
};

}  // namespace rollring
