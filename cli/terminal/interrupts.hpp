#pragma once
// The interrupts of a program: running work checks from time to time whether it should stop.

#include <cstdint>

namespace rollring::cli {

// From the first SIGINT, SIGTERM or SIGHUP on interrupted() is true; a second one kills.
void catch_interrupts();
// The default again: the first signal kills. Earlier signals stay noted.
void release_interrupts();
bool interrupted();
int interrupt_exit();  // 130, 143 or 129
// Sleeps, but not beyond an interrupt.
void pause_ms(std::int64_t ms);

}  // namespace rollring::cli
