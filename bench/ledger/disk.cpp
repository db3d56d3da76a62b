#include "ledger/disk.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <fstream>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>

#include "rounding.hpp"

namespace bench {
namespace {

constexpr std::uint64_t disk_block = 4096;
constexpr std::uint64_t large_page = std::uint64_t{2} << 20;
// As a restore reads.
constexpr std::uint64_t read_bytes = std::uint64_t{16} << 20;

struct FreeBlocks {
    void operator()(std::byte* memory) const {
        ::operator delete(memory, std::align_val_t{large_page});
    }
};
using Blocks = std::unique_ptr<std::byte[], FreeBlocks>;

// Not zeros: some disks have a shorter way for them. In large pages, as a ledger's.
Blocks random_blocks(std::uint64_t bytes) {
    const std::uint64_t whole = round_up(bytes, large_page);
    Blocks memory(static_cast<std::byte*>(::operator new(whole, std::align_val_t{large_page})));
    static_cast<void>(madvise(memory.get(), whole, MADV_HUGEPAGE));
    std::minstd_rand random(1);
    for (std::uint64_t i = 0; i < bytes; i++) memory[i] = static_cast<std::byte>(random() >> 8);
    return memory;
}

class File {
  public:
    // Past the page cache, where the file system can.
    File(const std::filesystem::path& path, int how)
        : fd_(open(path.c_str(), how | O_DIRECT, 0600)) {
        if (fd_ < 0 && errno == EINVAL) fd_ = open(path.c_str(), how, 0600);
        if (fd_ < 0) give_up("cannot open " + path.string());
    }
    File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    File& operator=(File&&) = delete;
    ~File() {
        if (fd_ >= 0) close(fd_);
    }
    [[nodiscard]] int fd() const { return fd_; }
    [[noreturn]] static void give_up(const std::string& what) {
        fail(fmt::format("{}: {}", what, std::generic_category().message(errno)));
    }

  private:
    int fd_;
};

void write_all(int fd, const std::byte* from, std::uint64_t bytes, std::uint64_t offset) {
    while (bytes != 0) {
        const ssize_t wrote = pwrite(fd, from, bytes, static_cast<off_t>(offset));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) File::give_up("cannot write");
        from += wrote;
        offset += static_cast<std::uint64_t>(wrote);
        bytes -= static_cast<std::uint64_t>(wrote);
    }
}

std::filesystem::path file_of(const std::filesystem::path& directory, std::uint64_t number) {
    return directory / fmt::format("disk.{}", number);
}

void remove_file(const std::filesystem::path& directory, std::uint64_t number) {
    std::filesystem::remove(file_of(directory, number));
    fsync(File(directory, O_RDONLY | O_DIRECTORY).fd());
}

void write_files(Board& board, const std::filesystem::path& directory, const DiskWork& work) {
    const std::uint64_t chunk = std::max(disk_block, round_up(work.chunk_bytes, disk_block));
    const std::uint64_t of_file = std::max(work.file_bytes / chunk, std::uint64_t{1}) * chunk;
    const std::uint64_t chunks = std::max(work.bytes / chunk, std::uint64_t{1});
    const Blocks memory = random_blocks(chunk);
    std::deque<File> files;
    for (std::uint64_t at = 0; at < chunks * chunk; at += of_file) {
        files.emplace_back(file_of(directory, files.size()), O_WRONLY | O_CREAT | O_TRUNC);
        if (fallocate(files.back().fd(), 0, 0, static_cast<off_t>(of_file)) != 0 &&
            errno != EOPNOTSUPP) {
            File::give_up("cannot reserve a file");
        }
        fsync(files.back().fd());
    }
    std::uint64_t gone = 0;
    const std::int64_t began_ns = now_ns();
    for (std::uint64_t i = 0; i < chunks; i++) {
        const int fd = files[i * chunk / of_file - gone / of_file].fd();
        write_all(fd, memory.get(), chunk, i * chunk % of_file);
        if (fdatasync(fd) != 0) File::give_up("fdatasync");
        const std::uint64_t written = (i + 1) * chunk;
        if (work.kept_bytes == 0 || written < gone + work.kept_bytes) continue;
        for (; gone + of_file <= written; gone += of_file) {
            files.pop_front();
            remove_file(directory, gone / of_file);
        }
    }
    board.figures[0] = now_ns() - began_ns;
    board.figures[1] = static_cast<std::int64_t>(chunks * chunk);
}

void read_files(Board& board, const std::vector<std::filesystem::path>& files) {
    const Blocks memory = random_blocks(read_bytes);
    std::int64_t bytes = 0;
    const std::int64_t began_ns = now_ns();
    for (const auto& path : files) {
        const File file(path, O_RDONLY);
        // The disk has nothing to do for the reserved rest of a file.
        const off_t end = lseek(file.fd(), 0, SEEK_HOLE);
        for (off_t offset = 0; offset < end;) {
            const ssize_t got = pread(file.fd(), memory.get(), read_bytes, offset);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) File::give_up("cannot read " + path.string());
            if (got == 0) break;
            offset += got;
            bytes += got;
        }
    }
    board.figures[0] = now_ns() - began_ns;
    board.figures[1] = bytes;
}

// In a process of its own, as the ledger's.
double rate_of(const Side& side, bool realtime) {
    const SharedBytes memory(sizeof(Board));
    Board& board = *memory.at<Board>();
    const std::string problem = run_all({{any_cpu, side}}, realtime, board);
    if (problem == "interrupted") return 0;
    if (!problem.empty()) fail("the disk alone: " + problem);
    return static_cast<double>(board.figures[1]) / (static_cast<double>(board.figures[0]) / 1e9);
}

}  // namespace

ScratchFolder::ScratchFolder(const std::filesystem::path& below, std::string_view what)
    : path_(below / fmt::format("rollring-bench.{}.{}", getpid(), what)) {
    std::error_code wrong;
    std::filesystem::remove_all(path_, wrong);
    std::filesystem::create_directories(path_, wrong);
    if (wrong) fail(fmt::format("cannot make {}: {}", path_.string(), wrong.message()));
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string file_system_of(const std::filesystem::path& directory) {
    struct statfs found{};
    if (statfs(directory.c_str(), &found) != 0) {
        fail(fmt::format("--directory {}: {}", directory.string(),
                         std::generic_category().message(errno)));
    }
    if (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC) {
        fail(fmt::format("--directory {} lies in memory (tmpfs): name a directory on a disk",
                         directory.string()));
    }
    // The longest mount point above it is its own.
    std::ifstream mounts("/proc/self/mounts");
    const std::string place = std::filesystem::canonical(directory).string() + "/";
    std::string kind = "unknown";
    std::size_t longest = 0;
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream words(line);
        std::string device;
        std::string point;
        std::string type;
        words >> device >> point >> type;
        if (!point.ends_with('/')) point += '/';
        if (!place.starts_with(point) || point.size() < longest) continue;
        longest = point.size();
        kind = type;
    }
    return kind;
}

double write_rate(const std::filesystem::path& directory, const DiskWork& work) {
    const ScratchFolder folder(directory);
    return rate_of([&](Board& board) { write_files(board, folder.path(), work); }, work.realtime);
}

double read_rate(const std::vector<std::filesystem::path>& files, bool realtime) {
    leave_page_cache(files);
    return rate_of([&](Board& board) { read_files(board, files); }, realtime);
}

void leave_page_cache(const std::vector<std::filesystem::path>& files) {
    for (const auto& path : files) {
        const File file(path, O_RDONLY);
        fsync(file.fd());
        posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
    }
}

}  // namespace bench
