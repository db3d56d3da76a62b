#include "append_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "file_names.hpp"
#include "xxh3.hpp"

namespace rollring::recording {
namespace {

constexpr std::uint64_t much = std::uint64_t{4} << 20;

}  // namespace

Result<AppendFile> AppendFile::make(const std::filesystem::path& path, const FileHeader& header,
                                    std::string_view columns) {
    Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) return file_failed(errno, "cannot make", path);
    AppendFile file(std::move(fd), path, header.file_id);
    std::byte* const begin = file.grow(sizeof header + columns.size());
    std::memcpy(begin + sizeof header, columns.data(), columns.size());
    FileHeader sealed = header;
    sealed.columns_bytes = static_cast<std::uint32_t>(columns.size());
    std::memcpy(begin, &sealed, sizeof sealed);
    sealed.checksum = XXH3_64bits_withSeed(begin, offsetof(FileHeader, checksum), 0) ^
                      XXH3_64bits_withSeed(columns.data(), columns.size(), header.file_id);
    std::memcpy(begin, &sealed, sizeof sealed);
    return file;
}

std::byte* AppendFile::at(std::uint64_t offset) {
    return reinterpret_cast<std::byte*>(buffer_.data()) + offset;
}

std::byte* AppendFile::grow(std::uint64_t bytes) {
    const std::uint64_t from = used_;
    used_ += padded(bytes);
    if (buffer_.size() * line < used_) buffer_.resize(used_ / line);
    // The last line alone may keep bytes that the caller does not write.
    std::memset(at(used_ - line), 0, line);
    return at(from);
}

std::span<std::byte> AppendFile::begin_entry(std::uint64_t payload_bytes) {
    entry_ = used_;
    return {grow(sizeof(EntryHeader) + payload_bytes) + sizeof(EntryHeader), payload_bytes};
}

std::uint64_t AppendFile::end_entry(EntryHeader header) {
    header.payload_checksum =
        XXH3_64bits_withSeed(at(entry_) + sizeof header, header.payload_bytes, id_);
    std::memcpy(at(entry_), &header, sizeof header);
    header.checksum = XXH3_64bits_withSeed(at(entry_), offsetof(EntryHeader, checksum), id_);
    std::memcpy(at(entry_), &header, sizeof header);
    return written_ + entry_;
}

Result<void> AppendFile::flush(bool force) {
    if (!force && used_ < much) return {};
    std::uint64_t done = 0;
    while (done < used_) {
        const ssize_t wrote = write(fd_.get(), at(done), used_ - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return file_failed(wrote < 0 ? errno : ENOSPC, "cannot write", path_);
        done += static_cast<std::uint64_t>(wrote);
    }
    written_ += used_;
    used_ = 0;
    return {};
}

bool AppendFile::cut_back(std::uint64_t bytes) {
    buffer_.clear();
    used_ = 0;
    written_ = bytes;
    return ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0 &&
           lseek(fd_.get(), static_cast<off_t>(bytes), SEEK_SET) >= 0;
}

Result<void> AppendFile::sync() {
    if (auto flushed = flush(true); !flushed) return flushed;
    if (fdatasync(fd_.get()) != 0) return file_failed(errno, "cannot sync", path_);
    return {};
}

}  // namespace rollring::recording
