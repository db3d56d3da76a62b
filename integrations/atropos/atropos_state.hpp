#pragma once
// What a server needs to go on as another process: a file of a few hundred bytes beside the ring,
// which holds the groups themselves.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "integrations/atropos/atropos_book.hpp"
#include "rollring/error.hpp"

namespace rollring::cli {

struct AtroposState {
    std::uint64_t ring_id = 0;
    std::optional<AtroposTrainer> trainer = {};
    bool started = false;
    std::int64_t step = 0;
    std::vector<AtroposEnv> envs = {};
    // Of the batch that the trainer has, and has not acknowledged by asking for the next one.
    std::vector<std::string> receipts = {};
};

// Nothing if there is no such file, it is of another ring, or is none of ours.
std::optional<AtroposState> read_state(const std::string& path, std::uint64_t ring_id);
// All or nothing, whenever this process is killed.
Result<void> write_state(const std::string& path, const AtroposState& state);
void remove_state(const std::string& path);
// Why no file can be written there, before anything relies on it.
Result<void> check_state_path(const std::string& path);
// In $XDG_STATE_HOME/rollring or ~/.local/state/rollring.
std::string default_state_path(const std::string& ring);

}  // namespace rollring::cli
