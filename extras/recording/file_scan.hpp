#pragma once
// Finds the entries of a recording's file, by their headers; payloads are read when they are asked
// for. Everything that the file says is checked against its size before it is used.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fd.hpp"
#include "recording_layout.hpp"
#include "rollring/error.hpp"

namespace rollring::recording {

// Whether these are the header of an entry, and its payload, of the file with that id.
[[nodiscard]] bool is_entry_of(std::uint64_t file_id, const EntryHeader& entry);
[[nodiscard]] bool is_payload_of(std::uint64_t file_id, const EntryHeader& entry,
                                 const std::byte* payload);

// An open file, and its checked header.
class FileReader {
  public:
    // Errors: not_found, not_a_ring, abi_mismatch, permission_denied, system.
    static Result<FileReader> open(const std::filesystem::path& path,
                                   const FileType& type = recording_type);

    [[nodiscard]] const FileHeader& header() const { return header_; }
    [[nodiscard]] const std::string& columns() const { return columns_; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::uint64_t first_entry() const;
    [[nodiscard]] Result<std::uint64_t> bytes() const;
    // The end of the bytes that were written. The space behind it is only reserved, as far as the
    // file system knows, and has zeros.
    [[nodiscard]] std::uint64_t written_end(std::uint64_t file_bytes) const;
    // These first bytes will be read: the disk begins with all of them at once.
    void read_ahead(std::uint64_t bytes) const;

    // The header of the entry there; empty if these bytes are none.
    [[nodiscard]] Result<std::optional<EntryHeader>> entry_at(std::uint64_t offset) const;
    // Reads the entry's payload into memory of that many bytes, and checks it.
    // Errc::checksum_mismatch names the file and the offset.
    [[nodiscard]] Result<void> read_payload(std::uint64_t offset, const EntryHeader& entry,
                                            std::byte* to) const;
    // Bytes of the file, as they are: not checked. False at the end of the file.
    [[nodiscard]] Result<bool> read_part(std::uint64_t offset, void* to,
                                         std::uint64_t bytes) const {
        return read_at(offset, to, bytes);
    }
    // The same as entry_at() and read_payload(), of bytes in memory.
    [[nodiscard]] std::optional<EntryHeader> entry_in(const std::byte* header) const;
    [[nodiscard]] Result<void> check_payload(std::uint64_t offset, const EntryHeader& entry,
                                             const std::byte* payload) const;
    // The head of a batch, if the entry is one whose counts agree with its length and its place.
    [[nodiscard]] Result<std::optional<BatchHead>> head_of(std::uint64_t offset,
                                                           const EntryHeader& entry) const;
    // The first offset from `from` on at which there is an entry; `end` if there is none.
    [[nodiscard]] Result<std::uint64_t> find_entry(std::uint64_t from, std::uint64_t end) const;

  private:
    FileReader(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
    // False at the end of the file.
    [[nodiscard]] Result<bool> read_at(std::uint64_t offset, void* to, std::uint64_t bytes) const;
    [[nodiscard]] bool is_entry(const EntryHeader& entry) const {
        return is_entry_of(header_.file_id, entry);
    }
    [[nodiscard]] std::unexpected<Error> damaged_at(std::uint64_t offset) const;
    [[nodiscard]] Result<void> read_header(const FileType& type);

    Fd fd_;
    std::filesystem::path path_;
    FileHeader header_{};
    std::string columns_;
};

struct FoundBatch {
    std::uint64_t offset;
    EntryHeader entry;
    BatchHead head;
};

// The part of a file that was looked through.
struct Scan {
    // Of the last batch or acknowledgement. Records behind it may still be taken back.
    std::uint64_t end = 0;
    std::vector<FoundBatch> batches;
    std::vector<EntryHeader> acked;
    std::uint64_t cut = 0;             // bytes behind `end`: part of a batch
    std::vector<std::string> damaged;  // texts for people, the first of them

    void note(std::string problem);
};

// Looks through the file from `from` (an entry's offset, or 0) on.
[[nodiscard]] Result<Scan> scan(const FileReader& file, std::uint64_t from);

}  // namespace rollring::recording
