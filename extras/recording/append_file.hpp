#pragma once
// The file that a recording is written to: entries are collected, and go out in large writes. The
// bytes behind a given size can be taken back.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "fd.hpp"
#include "recording_layout.hpp"
#include "rollring/error.hpp"

namespace rollring::recording {

class AppendFile {
  public:
    // Makes a new file with its header, which reaches it with the first flush.
    static Result<AppendFile> make(const std::filesystem::path& path, const FileHeader& header,
                                   std::string_view columns);

    [[nodiscard]] std::uint64_t id() const { return id_; }
    [[nodiscard]] std::uint64_t bytes() const { return written_ + used_; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    // Begins an entry: memory for its payload, 64-byte aligned, until the next call. The caller
    // writes all of it before end_entry().
    [[nodiscard]] std::span<std::byte> begin_entry(std::uint64_t payload_bytes);
    // Fills the header in, but for the checksums, which this makes. Returns the entry's offset.
    std::uint64_t end_entry(EntryHeader header);

    // Writes the collected entries, if they are many bytes, or by force.
    [[nodiscard]] Result<void> flush(bool force);
    // For a file that is only synced from now on; all is flushed.
    void drop_buffer() { buffer_ = {}; }
    // Cuts the file back to an earlier bytes(), after a failure. False if the system refuses.
    bool cut_back(std::uint64_t bytes);
    [[nodiscard]] Result<void> sync();

  private:
    struct alignas(line) Line {
        std::byte bytes[line];
    };
    AppendFile(Fd fd, std::filesystem::path path, std::uint64_t id)
        : fd_(std::move(fd)), path_(std::move(path)), id_(id) {}
    [[nodiscard]] std::byte* at(std::uint64_t offset);
    std::byte* grow(std::uint64_t bytes);

    Fd fd_;
    std::filesystem::path path_;
    std::uint64_t id_;
    std::uint64_t written_ = 0;
    std::vector<Line> buffer_;
    std::uint64_t used_ = 0;   // bytes of buffer_
    std::uint64_t entry_ = 0;  // of the entry that was begun: its start in buffer_
};

}  // namespace rollring::recording
