#pragma once
// The settings of a simulated run. Costs are those that bench/results/ray_costs.json has of this
// package's forwarder and receiver; docs/scale.md says where every default comes from.

#include <cstdint>

namespace bench::scale {

// A deliberate fault in the model, which its checks must find (tests/scale).
enum class Plant : std::uint8_t {
    none,
    twice,   // a record that arrived is sent once more
    greedy,  // a worker that is refused a place goes on as if it had one
    idle,    // the trainer forgets how long it waited
};

struct Settings {
    std::uint32_t nodes = 10;
    std::uint32_t workers = 100;  // a node; one rollout at a time each
    std::uint32_t rings = 1;      // each beside a rank of the trainer, on a node of its own
    double link_gbit = 25;        // of each node, each way

    double tokens_per_s = 80;  // of a worker
    double length_median = 4096;
    double length_sigma = 1.2;  // of the logarithm
    std::uint32_t length_most = 131'072;
    double token_bytes = 9;
    std::uint32_t group_size = 8;

    double train_ns = 0;             // a token, all ranks together; 0: see train_load
    double train_load = 0.9;         // the workers' load at which the trainer just keeps up
    std::uint32_t batch_groups = 0;  // 0: a fourth of those that workers can have under way

    std::uint64_t lane_bytes = std::uint64_t{64} << 20;
    std::uint64_t spill_bytes = 0;                         // 0: the ring's default, by the next one
    std::uint64_t machine_bytes = std::uint64_t{1} << 40;  // /dev/shm of the trainer's machine
    std::uint64_t object_store_bytes = std::uint64_t{256} << 20;
    std::uint64_t parcel_bytes = std::uint64_t{4} << 20;  // Fabric's batch_bytes
    std::uint32_t open_groups = 0;                        // 0: the stash's default
    double deadline_s = 7200;

    double round_trip_us = 2200;  // of a call of an actor on another node
    double ask_us = 1400;         // of the receiver's process, for a place that is asked for
    double parcel_us = 2150;      // of the receiver's process, for a parcel
    double record_us = 11;        // of the receiver's process, for a record in it
    double forward_us = 1870;     // of the forwarder's process, for a parcel
    double copy_gb = 2.7;         // GB/s from the object store into the ring
    double linger_us = 500;       // Fabric's linger

    double loss_share = 0.01;  // of the nodes, at least one; 0: none
    double detect_s = 17;      // until the receiver sees that a node is gone
    bool redo = true;          // other workers then repeat the lost work

    double warm_s = 4000;          // before anything is counted
    double measure_s = 3000;       // before nodes are lost
    double after_s = 3000;         // and then
    std::uint64_t byte_scale = 0;  // divides the memory of the real ring; 0: chosen to fit
    std::uint64_t seed = 1;
    Plant plant = Plant::none;

    [[nodiscard]] std::uint32_t all_workers() const { return nodes * workers; }
    [[nodiscard]] std::uint64_t bytes_of(std::uint32_t tokens) const {
        return 512 + static_cast<std::uint64_t>(tokens * token_bytes);
    }
};

}  // namespace bench::scale
