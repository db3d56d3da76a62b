#pragma once
// The state that a restarted server needs, in a small file. The groups themselves are in the ring.

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
    // For the batch that the trainer has, and has not acknowledged by asking for the next one.
    std::vector<std::string> receipts = {};
};

// Empty if there is no such file, or it is foreign, or of another ring.
std::optional<AtroposState> read_state(const std::string& path, std::uint64_t ring_id);
// Atomic, also if the process is killed.
Result<void> write_state(const std::string& path, const AtroposState& state);
void remove_state(const std::string& path);
// Checks early that a file can be written there.
Result<void> check_state_path(const std::string& path);
// In $XDG_STATE_HOME/rollring, ~/.local/state/rollring or, without HOME, /tmp/rollring.
std::string default_state_path(const std::string& ring);

}  // namespace rollring::cli
