#include "holdings.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace bench {

Holdings holdings(std::uint64_t device_free_bytes) {
    namespace fs = std::filesystem;
    Holdings now{};
    now.device_free_bytes = static_cast<std::int64_t>(device_free_bytes);
    std::error_code error;
    for (const auto& fd : fs::directory_iterator("/proc/self/fd", error)) {
        static_cast<void>(fd);
        now.fds++;
    }
    now.fds--;  // the listing's own
    std::ifstream statm("/proc/self/statm");
    std::int64_t mapped_pages = 0;
    std::int64_t resident_pages = 0;
    statm >> mapped_pages >> resident_pages;
    now.rss_bytes = resident_pages * sysconf(_SC_PAGESIZE);
    constexpr auto quietly = fs::directory_options::skip_permission_denied;
    fs::recursive_directory_iterator object("/dev/shm", quietly, error);
    while (!error && object != fs::recursive_directory_iterator()) {
        struct stat facts{};
        if (::stat(object->path().c_str(), &facts) == 0) {
            constexpr std::int64_t block_bytes = 512;
            now.shm_objects++;
            now.shm_bytes += facts.st_blocks * block_bytes;
        }
        object.increment(error);
    }
    return now;
}

}  // namespace bench
