#pragma once
// A file that is read from its start to its end, some megabytes at a time: entries and payloads are
// looked at in memory, without a system call for each.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "file_scan.hpp"

namespace rollring::ledger {

class FileWindow {
  public:
    FileWindow(const recording::FileReader& file, std::uint64_t file_bytes)
        : file_(&file), file_bytes_(file_bytes) {}

    // These bytes of the file, which it must have; valid until the next call. A block that cannot
    // be read has zeros.
    [[nodiscard]] std::span<const std::byte> at(std::uint64_t offset, std::uint64_t bytes);
    // The first block that could not be read, and why, for people; empty: all could.
    [[nodiscard]] const std::string& problem() const { return problem_; }

  private:
    // The window begins at `offset` then. Bytes that it has already are not read again.
    void fill(std::uint64_t offset, std::uint64_t bytes);
    void fill_by_blocks(std::span<std::byte> to, std::uint64_t offset);

    const recording::FileReader* file_;
    std::uint64_t file_bytes_;
    std::uint64_t begin_ = 0;
    std::uint64_t end_ = 0;
    std::vector<std::byte> memory_;
    std::string problem_;
};

}  // namespace rollring::ledger
