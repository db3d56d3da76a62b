#pragma once
// The differences between an incoming version and the tensors of an engine, as a list that can be
// exchanged with them, and exchanged back.

#include <cstddef>
#include <cstdint>
#include <span>

#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring::device {

// A part in the list.
enum class Fit : std::uint8_t {
    fits,
    full,       // the list may not have as much memory as it needs
    no_memory,  // the device, or the machine, does not have it
};

// Compiled once, from the copies of all parts of a version; every one is a view (CopyJob::view).
// One thread at a time.
class Difference {
  public:
    struct Size {
        std::uint64_t elements = 0;  // that were compared
        std::uint64_t changed = 0;   // of these
        std::uint64_t bytes = 0;     // of memory that the list uses for them
    };

    virtual ~Difference() = default;
    // Empties the list, which may use memory of `bytes_max` from now on. Memory beyond `bytes_kept`
    // is freed. Requires that the device does nothing any more for this object.
    virtual void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) = 0;
    // Compares parts from `first` on, one in each of the slots, with the tensors, which are only
    // read, and appends the values of the slots that differ. Waits for the device. Parts that do
    // not all fit leave the list as it was. timed_out: the device still compares; a call with the
    // same arguments goes on. After another error it may still compare, too.
    virtual Result<Fit> compare(std::size_t first, std::span<const std::byte* const> slots,
                                Stream stream, Deadline deadline) = 0;
    // Exchanges the listed values of the first `parts` parts with those of the tensors. Waits for
    // the device. After an error some may be exchanged, and the device may still exchange others.
    virtual Result<void> swap(std::size_t parts, Stream stream) = 0;
    // Waits until an exchange that ended with an error is over on the device, too.
    virtual Result<void> end_exchange(Deadline deadline) = 0;
    [[nodiscard]] virtual Size size() const = 0;
};

}  // namespace rollring::device
