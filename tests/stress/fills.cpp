// The media that can be full: the ring, while the trainer is stopped, and /dev/shm, if it is our
// own.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "driver.hpp"

namespace rollring::test {
namespace {

constexpr std::int64_t until_told = std::int64_t{1} << 62;  // stopped until we say so

std::string filler_path() {
    return fmt::format("/dev/shm/test-{}-filler", getpid());
}

// A file that takes all there is; gone with this object.
class Filler {
  public:
    Filler() : fd_(open(filler_path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
        require(fd_ >= 0, "cannot fill /dev/shm: {}", errno);
        const std::vector<std::byte> block(1 << 20);
        for (std::size_t bytes = block.size(); bytes >= 4096; bytes /= 16) {  // to the last page
            while (write(fd_, block.data(), bytes) > 0) {
            }
        }
        full_ = errno == ENOSPC;
    }
    Filler(const Filler&) = delete;
    Filler& operator=(const Filler&) = delete;
    ~Filler() {
        unlink(filler_path().c_str());
        close(fd_);
    }
    [[nodiscard]] bool full() const { return full_; }

  private:
    int fd_;
    bool full_ = false;
};

bool put_line(const char* path, const std::string& line) {
    std::ofstream file(path);
    file << line;
    return static_cast<bool>(file.flush());
}

}  // namespace

std::size_t shm_leftovers() {
    const std::string mark = fmt::format("test-{}-", getpid());
    std::size_t count = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator("/dev/shm", error)) {
        const bool empty =
            entry.is_directory(error) && std::filesystem::is_empty(entry.path(), error);
        const bool ours = entry.path().filename().string().contains(mark);
        const bool channels = entry.path().filename().string().starts_with("rollring-weights.");
        count += ours || (empty && channels) ? 1 : 0;
    }
    return count;
}

bool make_private_shm(std::uint64_t mib) {
    const uid_t user = geteuid();
    const gid_t group = getegid();
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
        put_line("/proc/self/setgroups", "deny");
        if (!put_line("/proc/self/uid_map", fmt::format("{0} {0} 1", user)) ||
            !put_line("/proc/self/gid_map", fmt::format("{0} {0} 1", group))) {
            return false;
        }
    }
    return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV,
                 fmt::format("mode=1777,size={}m", mib).c_str()) == 0;
}

// Every producer finds its lane full, and goes on when the trainer does.
void Driver::fill_ring() {
    Process& trainer = find(Role::trainer);
    if (!trainer.runs() || trainer.resume_ns != 0) return;
    stop(trainer, until_told);
    const std::vector<Process> before = processes_;
    wait_for("all producers to find the ring full", [&] {
        for (std::size_t i = 0; i < processes_.size(); i++) {
            const Process& process = processes_[i];
            if (process.role != Role::producer || process.refusals > 0) continue;
            if (!process.runs() || process.words == 0) return false;
            if (process.waits <= (process.life == before[i].life ? before[i].waits : 0)) {
                return false;
            }
        }
        return true;
    });
    resume(trainer);
    const std::uint64_t checked = oracle_.counts().groups_checked;
    wait_for("the trainer to go on", [&] { return oracle_.counts().groups_checked > checked; });
    counts_.ring_fills++;
}

// A process that starts meanwhile comes up with the reserved memory, or is told; none gets a
// signal.
void Driver::fill_shm() {
    std::uint64_t refusals = 0;
    {
        const Filler filler;
        require(filler.full(), "the private /dev/shm cannot be filled");
        for (Process& process : processes_) {
            if (process.role != Role::subscriber && process.runs() && dice_.below(2) == 0) {
                strike(process);
            }
        }
        wait_for("everyone to speak while /dev/shm is full", [&] {
            for (const Process& process : processes_) {
                if (!process.runs()) return false;
                if (process.words == 0 && process.resume_ns == 0) return false;
            }
            return true;
        });
        for (const Process& process : processes_) refusals += process.refusals;
    }
    progress_.producer_died();  // the spill had to do with its memory
    counts_.shm_refusals += refusals;
    counts_.shm_fills++;
    const std::uint64_t checked = oracle_.counts().groups_checked;
    wait_for("groups to go through again",
             [&] { return oracle_.counts().groups_checked > checked; });
}

}  // namespace rollring::test
