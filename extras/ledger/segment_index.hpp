#pragma once
// The index of a closed segment, by which a restore knows it before it reads the records.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "file_scan.hpp"
#include "ledger_layout.hpp"

namespace rollring::ledger {

// The path of a segment, and of its index.
[[nodiscard]] std::filesystem::path segment_path(const std::filesystem::path& directory,
                                                 std::uint64_t number);
[[nodiscard]] std::filesystem::path index_path(const std::filesystem::path& directory,
                                               std::uint64_t number);

// That grows with the entries of its segment.
class IndexMaker {
  public:
    // In the order of the segment. `entry`: with its lengths.
    void add(std::uint64_t offset, const EntryHeader& entry,
             std::span<const std::span<const std::byte>> payload);
    // The bytes of the file; nothing if the segment has no entry. Others may follow, of another.
    [[nodiscard]] std::vector<std::byte> take(std::uint64_t file_id);

  private:
    std::vector<std::byte> bytes_;
    std::uint64_t entries_ = 0;
    std::uint64_t end_ = 0;
};

// That is read from its file.
class SegmentIndex {
  public:
    // Nothing if the file is missing, damaged, of another version or of another segment, or if its
    // entries do not fill the segment up to its end.
    static std::optional<SegmentIndex> read(const std::filesystem::path& path,
                                            const recording::FileReader& segment,
                                            std::uint64_t segment_bytes);
    // Whether a file of this version for that segment is there, by its head alone.
    static bool is_there(const std::filesystem::path& path, std::uint64_t file_id);

    struct Entry {
        std::uint64_t offset;
        EntryHeader header;               // without checksums and time
        std::span<const std::byte> part;  // of its payload
    };
    // In the order of the segment; nothing behind the last.
    [[nodiscard]] std::optional<Entry> next();
    [[nodiscard]] std::uint64_t end() const { return head_.end; }
    [[nodiscard]] std::uint64_t entries() const { return head_.entries; }

  private:
    [[nodiscard]] bool fills(std::uint64_t first_entry, std::uint64_t segment_bytes);
    [[nodiscard]] bool is_next(const Entry& entry, std::uint64_t at) const;
    IndexHead head_{};
    std::vector<std::byte> bytes_;
    std::uint64_t at_ = 0;
    std::uint64_t left_ = 0;  // entries
};

}  // namespace rollring::ledger
