#pragma once
// The disk below a ledger, as it is without one: sequential writes and reads past the page cache.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench.hpp"

namespace bench {

// A directory below the question's that is removed at the end.
class ScratchFolder {
  public:
    // `what` tells apart those that live at the same time.
    explicit ScratchFolder(const std::filesystem::path& below, std::string_view what = "run");
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    ~ScratchFolder();
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

// Its name, "ext4". Ends the program if the directory lies in memory: there is no disk to measure.
std::string file_system_of(const std::filesystem::path& directory);

struct DiskWork {
    std::uint64_t bytes = 0;
    std::uint64_t chunk_bytes = 0;  // of one write, with an fdatasync behind it
    std::uint64_t file_bytes = 0;   // reserved before the clock starts
    std::uint64_t kept_bytes = 0;   // files are removed once they have them; 0: never
    bool realtime = false;          // under SCHED_RR
};
// Bytes a second. 0: interrupted.
double write_rate(const std::filesystem::path& directory, const DiskWork& work);
// Of these files from their first byte to their last, 16 MiB a read. The page cache has none of
// them beforehand, as far as the kernel lets go of it.
double read_rate(const std::vector<std::filesystem::path>& files, bool realtime);
void leave_page_cache(const std::vector<std::filesystem::path>& files);

}  // namespace bench
