#pragma once
// One simulated run: it warms up, is measured, loses nodes, and is looked at until it has
// recovered.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "node.hpp"
#include "trainer.hpp"

namespace bench::scale {

struct Loss {
    std::uint32_t nodes = 0;
    std::uint64_t groups = 0;  // of which members were lost
    std::uint64_t rollouts = 0;
    std::uint64_t redone_groups = 0;  // of them, trained by the end
    double redone_s = 0;              // since the loss, until the last of those was trained
    double recovered_s = 0;           // until the rate stays above its minimum before the loss
    double rate_kept = 0;  // tokens trained a second, as a share of the rate that is left to
                           // expect
};

struct Outcome {
    double tokens_per_s = 0;  // trained
    double records_per_s = 0;
    double generated_share = 0;  // of the time of all workers
    double place_share = 0;      // waited for a place
    double room_share = 0;       // waited in a push
    double idle_share = 0;       // of the trainer's time
    double link_share = 0;       // of the busiest node with workers
    double trainer_link_share = 0;
    double receiver_share = 0;  // of its process
    double copy_share = 0;
    double forwarder_share = 0;
    double node_bytes = 0;        // the most that a node's ring held
    double node_reserved = 0;     // of its lanes
    double trainer_held = 0;      // the most in a trainer's ring
    double trainer_reserved = 0;  // lanes and spill of one
    double trainer_waiting = 0;   // the most that had come and was in no ring
    double spilled_bytes = 0;
    double open_groups = 0;  // of one ring, mean over its batches
    std::uint64_t places = 0;
    std::uint64_t calls = 0;  // for a place
    std::uint64_t steps = 0;
    std::uint64_t dropped = 0;  // records, by the stash
    std::uint64_t refused_room = 0;
    std::uint64_t refused_places = 0;
    std::string limit;
    Loss loss;
    std::vector<std::string> broken;  // invariants that did not hold
};

Outcome simulate(const Settings& settings);

}  // namespace bench::scale
