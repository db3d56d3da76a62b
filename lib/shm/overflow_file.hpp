#pragma once
// The file in which a ring's spill goes on when there is no more memory for it:
// `DIR/rollring.<uid>.<name>.<ring id>.overflow`, mode 0600, sparse. The spill's bytes lie in it at
// their own offset, so it is as long as all of the spill, and empty where that lies in memory, but
// for its first page: memory always comes first, and that page says whose file it is, as the ring's
// header does. It is made and removed with the ring.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fd.hpp"
#include "layout.hpp"
#include "rollring/error.hpp"

namespace rollring {

class OverflowFile {
  public:
    // Its path, or the fault of the directory.
    static Result<std::string> path_in(const std::string& directory, const std::string& object,
                                       std::uint64_t ring_id);
    // As the header page names it.
    static OverflowPath to_page(const std::string& path, std::uint64_t ring_id);

    static Result<void> make(const std::string& path, std::uint64_t bytes, std::uint64_t ring_id);
    // Refuses a file that is missing, of another user, or of another length or ring.
    static Result<OverflowFile> open(const std::string& path, std::uint64_t bytes,
                                     std::uint64_t ring_id);

    // Bytes of the spill that it has on the disk now; 0 if it is not there.
    static std::uint64_t resident_bytes(const std::string& path);

    [[nodiscard]] const std::string& path() const { return path_; }
    // Disk for them, so that writing there cannot fail for want of it.
    [[nodiscard]] Result<void> reserve(std::uint64_t offset, std::uint64_t bytes) const;
    // Maps its bytes from `offset` on over the mapping at `at`.
    [[nodiscard]] Result<void> lay_over(std::byte* at, std::uint64_t offset, std::uint64_t bytes,
                                        bool writable) const;

  private:
    OverflowFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

    Fd fd_;
    std::string path_;
};

}  // namespace rollring
