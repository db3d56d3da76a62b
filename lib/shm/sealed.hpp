#pragma once
// Anonymous shared memory that is passed as a descriptor. Sealed against shrinking and growing, so
// that no process can make our reads fault (SIGBUS), and if needed against writing.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fd.hpp"
#include "mapping.hpp"
#include "rollring/error.hpp"

namespace rollring {

class Sealed {
  public:
    // Zeroed pages, reserved now: Errc::not_enough_shared_memory instead of a fault later.
    static Result<Sealed> make(std::string_view what, std::uint64_t bytes);
    // Takes over memory that another process made. bad_manifest unless it is sealed, and has at
    // least this many bytes.
    static Result<Sealed> accept(Fd fd, std::uint64_t bytes, bool contents_sealed);

    [[nodiscard]] Result<Mapping> map(std::uint64_t offset, std::uint64_t bytes,
                                      bool writable) const;
    // From now on no process can map it writable; existing mappings stay.
    [[nodiscard]] Result<void> seal_for_others() const;
    // From now on no process can change it. No writable mapping may exist.
    [[nodiscard]] Result<void> seal_contents() const;

    [[nodiscard]] int fd() const { return fd_.get(); }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Another open file of the same memory, for reading only.
    [[nodiscard]] Result<Fd> read_only() const;

  private:
    Fd fd_;
    std::uint64_t bytes_ = 0;
};

}  // namespace rollring
