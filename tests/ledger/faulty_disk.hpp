#pragma once
// Disks for a ledger: one that fails at a chosen call, one that kills, and one that knows what a
// power cut would leave.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "disk.hpp"
#include "ledgers.hpp"
#include "support/process.hpp"

namespace rollring::test {

// Used for a ledger while it lives.
template <class Kind>
class InUse {
  public:
    template <class... Values>
    explicit InUse(Values&&... values) : disk_(std::forward<Values>(values)...) {
        ledger::use_disk(&disk_);
    }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;
    ~InUse() { ledger::use_disk(nullptr); }
    Kind* operator->() { return &disk_; }

  private:
    Kind disk_;
};

enum class Call { make, write, sync, names, sync_file, remove, rename, keep };

// From the call of that number on, of that kind, answers with the error, `times` times.
class FailingDisk : public ledger::Disk {
  public:
    FailingDisk(Call call, int error, int first, int times = 1 << 30)
        : call_(call), error_(error), first_(first), times_(times) {}
    int make(const std::filesystem::path& path, std::uint64_t bytes, bool direct, Fd& fd) override {
        return fails(Call::make) ? error_ : Disk::make(path, bytes, direct, fd);
    }
    int write(int fd, std::span<const std::byte> bytes, std::uint64_t offset) override {
        if (!fails(Call::write)) return Disk::write(fd, bytes, offset);
        static_cast<void>(Disk::write(fd, bytes.first(bytes.size() / 2 / 4096 * 4096), offset));
        return error_;
    }
    int sync(int fd) override { return fails(Call::sync) ? error_ : Disk::sync(fd); }
    int sync_names(const std::filesystem::path& directory) override {
        return fails(Call::names) ? error_ : Disk::sync_names(directory);
    }
    int sync_file(const std::filesystem::path& path) override {
        return fails(Call::sync_file) ? error_ : Disk::sync_file(path);
    }
    int remove(const std::filesystem::path& path) override {
        return fails(Call::remove) ? error_ : Disk::remove(path);
    }
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
        return fails(Call::rename) ? error_ : Disk::rename(from, to);
    }
    int keep(const std::filesystem::path& path, std::span<const std::byte> bytes) override {
        return fails(Call::keep) ? error_ : Disk::keep(path, bytes);
    }
    [[nodiscard]] int calls() const { return count_; }  // of its kind
    [[nodiscard]] bool has_failed() const { return failed_ > 0; }
    void heal() { healed_ = true; }

  private:
    bool fails(Call call) {
        if (call != call_ || healed_) return false;
        const int number = count_++;
        if (number < first_ || number >= first_ + times_) return false;
        failed_++;
        return true;
    }
    Call call_;
    int error_;
    int first_;
    int times_;
    std::atomic<int> count_ = 0;
    std::atomic<int> failed_ = 0;
    std::atomic<bool> healed_ = false;
};

// A file system without direct writes: Linux makes the file before it refuses them.
class BufferedDisk : public ledger::Disk {
  protected:
    int open_new(const std::filesystem::path& path, int how) override {
        const int fd = Disk::open_new(path, how & ~O_DIRECT);
        if ((how & O_DIRECT) == 0 || fd < 0) return fd;
        close(fd);
        errno = EINVAL;
        return -1;
    }
};

// Kills this process at a moment of the disk: moments are before and behind each call, and in the
// middle of each that writes.
class KillingDisk : public ledger::Disk {
  public:
    // `late`: the ledger's thread first lets the main thread go on as far as it does without it.
    explicit KillingDisk(int moment, bool late = false) : left_(moment), late_(late) {}
    int make(const std::filesystem::path& path, std::uint64_t bytes, bool direct, Fd& fd) override {
        return around([&] { return Disk::make(path, bytes, direct, fd); });
    }
    int write(int fd, std::span<const std::byte> bytes, std::uint64_t offset) override {
        strike();
        const auto half = bytes.first(bytes.size() / 2 / 4096 * 4096);
        static_cast<void>(Disk::write(fd, half, offset));
        return around([&] { return Disk::write(fd, bytes, offset); });
    }
    int sync(int fd) override {
        return around([&] { return Disk::sync(fd); });
    }
    int sync_names(const std::filesystem::path& directory) override {
        return around([&] { return Disk::sync_names(directory); });
    }
    int sync_file(const std::filesystem::path& path) override {
        return around([&] { return Disk::sync_file(path); });
    }
    int remove(const std::filesystem::path& path) override {
        return around([&] { return Disk::remove(path); });
    }
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
        return around([&] { return Disk::rename(from, to); });
    }
    int note(const std::filesystem::path& path, std::string_view text) override {
        strike();
        const std::string_view half = text.substr(0, text.size() / 2);
        static_cast<void>(Disk::keep(path, std::as_bytes(std::span(half))));
        return around([&] { return Disk::note(path, text); });
    }
    int keep(const std::filesystem::path& path, std::span<const std::byte> bytes) override {
        strike();
        static_cast<void>(Disk::keep(path, bytes.first(bytes.size() / 2)));
        return around([&] { return Disk::keep(path, bytes); });
    }
    // A moment of the caller's.
    void strike() {
        if (left_-- != 0) return;
        while (late_ && gettid() != getpid() && state_of(getpid()) != 'S')
            std::this_thread::yield();
        kill(getpid(), SIGKILL);
    }

  private:
    template <class DiskCall>
    int around(DiskCall call) {
        strike();
        const int error = call();
        strike();
        return error;
    }
    std::atomic<int> left_;
    bool late_;
};

// Remembers which bytes the disk has promised. A cut leaves those, and of the others any blocks.
class MortalDisk : public ledger::Disk {
  public:
    // `watch` is called before and behind each write and each sync, by the ledger's thread.
    explicit MortalDisk(std::function<void(MortalDisk&)> watch) : watch_(std::move(watch)) {}

    int make(const std::filesystem::path& path, std::uint64_t bytes, bool direct, Fd& fd) override {
        const int error = Disk::make(path, bytes, direct, fd);
        if (error != 0) return error;
        const std::scoped_lock held(guard_);
        File& file = files_[path];
        file.image.assign(bytes, std::byte{});
        by_fd_[fd.get()] = &file;
        return 0;
    }
    int write(int fd, std::span<const std::byte> bytes, std::uint64_t offset) override {
        watch_(*this);
        {
            const std::scoped_lock held(guard_);
            by_fd_[fd]->pending.push_back({offset, {bytes.begin(), bytes.end()}});
        }
        watch_(*this);
        return Disk::write(fd, bytes, offset);
    }
    int sync(int fd) override {
        {
            const std::scoped_lock held(guard_);
            File& file = *by_fd_[fd];
            for (const Write& one : file.pending) apply(one, file.image);
            file.pending.clear();
        }
        watch_(*this);
        return Disk::sync(fd);
    }
    int sync_names(const std::filesystem::path& directory) override {
        const std::scoped_lock held(guard_);
        for (auto& [path, file] : files_) file.named = true;
        return Disk::sync_names(directory);
    }
    int remove(const std::filesystem::path& path) override {
        watch_(*this);
        {
            const std::scoped_lock held(guard_);
            files_.erase(path);
        }
        return Disk::remove(path);
    }
    int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
        watch_(*this);
        {
            const std::scoped_lock held(guard_);
            auto moved = files_.extract(from);
            moved.key() = to;
            File& file = files_.insert(std::move(moved)).position->second;
            file.former = from;
            file.named = false;
        }
        watch_(*this);
        return Disk::rename(from, to);
    }

    int keep(const std::filesystem::path& path, std::span<const std::byte> bytes) override {
        {
            const std::scoped_lock held(guard_);
            File& file = files_[path];
            file.image.clear();
            file.pending = {{0, {bytes.begin(), bytes.end()}}};
        }
        watch_(*this);
        return Disk::keep(path, bytes);
    }

    // Writes the files as the power cut leaves them.
    void cut(const std::filesystem::path& to, std::uint64_t seed) {
        const std::scoped_lock held(guard_);
        std::mt19937_64 dice(seed);
        for (const auto& [path, file] : files_) {
            if (!file.named && file.former.empty() && dice() % 2 == 0) continue;
            const bool renamed = file.named || file.former.empty() || dice() % 2 == 0;
            std::vector<std::byte> image = file.image;
            for (const Write& one : file.pending) tear(one, image, dice);
            std::ofstream out(to / (renamed ? path : file.former).filename(), std::ios::binary);
            out.write(reinterpret_cast<const char*>(image.data()),
                      static_cast<std::streamsize>(image.size()));
        }
    }

  private:
    struct Write {
        std::uint64_t offset;
        std::vector<std::byte> bytes;
    };
    struct File {
        std::vector<std::byte> image;
        std::vector<Write> pending;
        bool named = false;            // by its present name, for certain
        std::filesystem::path former;  // its other name
    };
    static void apply(const Write& one, std::vector<std::byte>& image) {
        image.resize(std::max(image.size(), one.offset + one.bytes.size()));
        std::ranges::copy(one.bytes, image.begin() + static_cast<std::ptrdiff_t>(one.offset));
    }
    // Each sector on its own: none, all, or any of them may be there.
    static void tear(const Write& one, std::vector<std::byte>& image, std::mt19937_64& dice) {
        constexpr std::uint64_t sector = 512;
        const std::uint64_t share = dice() % 5;  // quarters
        for (std::uint64_t at = 0; at < one.bytes.size(); at += sector) {
            if (dice() % 4 >= share) continue;
            const std::uint64_t end = std::min(at + sector, std::uint64_t{one.bytes.size()});
            const auto* const from = one.bytes.data();
            apply({one.offset + at, {from + at, from + end}}, image);
        }
    }

    std::function<void(MortalDisk&)> watch_;
    std::mutex guard_;
    std::map<std::filesystem::path, File> files_;
    std::map<int, File*> by_fd_;
};

}  // namespace rollring::test
