#pragma once
// The file in which a ring's spill continues when its memory is used up:
// `DIR/rollring.<uid>.<name>.<ring id>.overflow`, mode 0600, sparse. The spill's bytes lie in it at
// their own offsets, so it is as long as the whole spill, and empty for the part that lies in
// memory, except for its first page: memory always comes first, and that page names the file's
// ring, as the ring's header does. It is made and removed with the ring.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fd.hpp"
#include "layout.hpp"
#include "mapping.hpp"
#include "rollring/error.hpp"

namespace rollring {

class OverflowFile {
  public:
    // Its path; an error if the directory is unsuitable.
    static Result<std::string> path_in(const std::string& directory, const std::string& object,
                                       std::uint64_t ring_id);
    // The path in the form of the header page.
    static OverflowPath to_page(const std::string& path, std::uint64_t ring_id);

    static Result<void> make(const std::string& path, std::uint64_t bytes, std::uint64_t ring_id);
    // Refuses a file that is missing, or of another user, length or ring.
    static Result<OverflowFile> open(const std::string& path, std::uint64_t bytes,
                                     std::uint64_t ring_id, Access access = Access::read_write);

    // Bytes of the spill that the file has on the disk now; 0 without a file.
    static std::uint64_t resident_bytes(const std::string& path);

    [[nodiscard]] const std::string& path() const { return path_; }
    // Reads without mapping. False if the system refuses.
    [[nodiscard]] bool read(std::uint64_t offset, void* to, std::uint64_t bytes) const;
    // Reserves disk space, so that later writes cannot fail for lack of it.
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
