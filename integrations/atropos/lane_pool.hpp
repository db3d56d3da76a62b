#pragma once
// The sending side of the server: whole groups into lanes of the ring, one lane per group. When
// unreleased records fill a lane, another one is taken; when there is no other, the sender waits.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/producer.hpp"

namespace rollring::cli {

enum class LaneSend {
    ok,
    no_room,     // the lanes are full, or the stash is: nothing of the group was sent
    too_large,   // no lane can ever hold it
    bad_record,  // a record breaks the schema: nothing of the group was sent
    given_up,    // the sender is gone
    closed,      // the ring was removed
};

class LanePool {
  public:
    // The name of a server's producers in `rollring stat`, followed by a number.
    static constexpr std::string_view producer_name = "serve-atropos ";
    // Takes the first lane.
    static Result<std::unique_ptr<LanePool>> open(const std::string& ring);

    // Any thread may call it. Waits `wait_ms` for a lane with room and for a credit of the stash
    // before the first record, and then until all are in. `gone` is called from time to time;
    // `problem` has the reason if it is not ok.
    LaneSend send(std::span<const Draft> group, std::int64_t wait_ms,
                  const std::function<bool()>& gone, std::string& problem);
    [[nodiscard]] const Schema& schema() const { return first_->producer.schema(); }
    [[nodiscard]] bool consumer_alive() const { return first_->producer.consumer_alive(); }

  private:
    struct Lane {
        explicit Lane(Producer one) : producer(std::move(one)) {}
        std::mutex mutex;  // of the sender
        Producer producer;
        std::uint64_t depth = 0;     // bytes that it pinned at the last look
        std::uint64_t reserved = 0;  // of groups on their way
        std::uint64_t sent = 0;      // since the last look

        [[nodiscard]] std::uint64_t filled() const { return depth + reserved + sent; }
    };

    explicit LanePool(std::string ring) : ring_(std::move(ring)) {}
    [[nodiscard]] Result<void> add();
    void look();  // updates the bytes that lanes pin
    [[nodiscard]] Lane* choose(std::uint64_t bytes);
    LaneSend push(Lane& lane, std::span<const Draft> group, Deadline deadline,
                  const std::function<bool()>& gone, std::string& problem);

    std::string ring_;
    std::uint32_t lanes_max_ = 1;
    std::uint64_t lane_bytes_ = 0;  // from the ring: a producer's stats are for its sender alone
    Lane* first_ = nullptr;         // lanes_ moves when it grows
    std::mutex mutex_;              // guards the following, except data under a lane's own mutex
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::int64_t refused_ns_ = 0;  // when another lane was last refused
};

}  // namespace rollring::cli
