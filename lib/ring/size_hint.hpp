#pragma once
// The call of `rollring size` to which an error points, with the numbers of the record or group
// that did not fit.

#include <cstdint>
#include <string>

namespace rollring::detail {

// Unknown numbers are 0.
struct Unfit {
    std::uint64_t producers = 0;
    std::uint64_t members = 0;  // of its group
    std::uint64_t tokens = 0;   // of its longest record
    std::uint64_t record_bytes = 0;
};

// The call in quotes, for a sentence. It describes a ring that has room.
std::string size_hint(const Unfit& unfit);

// Rounded up, in the form of an option.
std::string option_bytes(std::uint64_t bytes);

}  // namespace rollring::detail
