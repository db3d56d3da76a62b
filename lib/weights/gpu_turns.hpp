#pragma once
// Trainer and engine on one GPU, which turns from the one process to the other. A turn costs as
// much as copies of many megabytes, whatever is done in it.

#include <chrono>

namespace rollring::weights {

// A wait for the other's turn sleeps after this time: turns are shorter, and a sleeper wakes late.
inline constexpr std::chrono::nanoseconds turn_spin = std::chrono::milliseconds(2);
// The engine's turn begins when the trainer has filled all slots, or no other one within this time.
inline constexpr std::chrono::nanoseconds turn_patience = std::chrono::microseconds(300);

}  // namespace rollring::weights
