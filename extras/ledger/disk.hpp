#pragma once
// The system calls by which a ledger is written, in one place, so that a test may be the disk.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "fd.hpp"

namespace rollring::ledger {

// Each call returns 0 or an errno. Any thread may call it.
class Disk {
  public:
    Disk() = default;
    Disk(const Disk&) = delete;
    Disk& operator=(const Disk&) = delete;
    virtual ~Disk() = default;

    // A new file of that many bytes. `direct`: past the page cache, where the file system can.
    virtual int make(const std::filesystem::path& path, std::uint64_t bytes, bool direct, Fd& fd);
    // Direct: memory, offset and length are multiples of 4096.
    virtual int write(int fd, std::span<const std::byte> bytes, std::uint64_t offset);
    virtual int sync(int fd);  // fdatasync
    // The names in the directory, and its own.
    virtual int sync_names(const std::filesystem::path& directory);
    virtual int remove(const std::filesystem::path& path);
    virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to);
    // Makes the bytes lasting that an earlier process wrote to that file.
    virtual int sync_file(const std::filesystem::path& path);
    // A file with that text, which is there after the machine's death, too.
    virtual int note(const std::filesystem::path& path, std::string_view text);

    // A file with these bytes, which is not synced: the machine's death may leave any of them.
    virtual int keep(const std::filesystem::path& path, std::span<const std::byte> bytes);

  protected:
    virtual int open_new(const std::filesystem::path& path, int how);  // as open()
};

[[nodiscard]] Disk& disk();
// For tests; null: the system's again.
void use_disk(Disk* other);

}  // namespace rollring::ledger
