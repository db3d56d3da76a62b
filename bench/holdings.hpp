#pragma once

#include <cstdint>

#include "weights_session.hpp"

namespace bench {

// What this process has open and mapped now, and what lies in /dev/shm.
Holdings holdings(std::uint64_t device_free_bytes);

}  // namespace bench
