#include "file_scan.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "file_names.hpp"
#include "xxh3.hpp"

namespace rollring::recording {
namespace {

constexpr std::uint32_t columns_bytes_max = 1 << 16;

std::unexpected<Error> not_of(const FileType& type, const std::filesystem::path& path) {
    return refused(Errc::not_a_ring, fmt::format("{} is not a file of {}, or its header is damaged",
                                                 path.string(), type.what));
}

}  // namespace

bool is_entry_of(std::uint64_t file_id, const EntryHeader& entry) {
    return entry.magic == entry_magic && entry.payload_bytes <= payload_bytes_max &&
           XXH3_64bits_withSeed(&entry, offsetof(EntryHeader, checksum), file_id) == entry.checksum;
}

bool is_payload_of(std::uint64_t file_id, const EntryHeader& entry, const std::byte* payload) {
    return XXH3_64bits_withSeed(payload, entry.payload_bytes, file_id) == entry.payload_checksum;
}

Result<FileReader> FileReader::open(const std::filesystem::path& path, const FileType& type) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return file_failed(errno, "cannot open", path);
    FileReader file(std::move(fd), path);
    if (auto read = file.read_header(type); !read) return std::unexpected(read.error());
    return file;
}

Result<void> FileReader::read_header(const FileType& type) {
    auto there = read_at(0, &header_, sizeof header_);
    if (!there) return std::unexpected(there.error());
    if (!*there || header_.magic != type.magic) return not_of(type, path_);
    if (header_.version != type.version) {
        return refused(Errc::abi_mismatch,
                       fmt::format("{} has version {} of the format, and this rollring reads {}",
                                   path_.string(), header_.version, type.version));
    }
    if (header_.columns_bytes > columns_bytes_max) return not_of(type, path_);
    columns_.resize(header_.columns_bytes);
    there = read_at(sizeof header_, columns_.data(), columns_.size());
    if (!there) return std::unexpected(there.error());
    const std::uint64_t checksum =
        XXH3_64bits_withSeed(&header_, offsetof(FileHeader, checksum), 0) ^
        XXH3_64bits_withSeed(columns_.data(), columns_.size(), header_.file_id);
    if (!*there || checksum != header_.checksum) return not_of(type, path_);
    return {};
}

std::uint64_t FileReader::first_entry() const {
    return padded(sizeof header_ + columns_.size());
}

Result<std::uint64_t> FileReader::bytes() const {
    struct stat found{};
    if (fstat(fd_.get(), &found) != 0) return file_failed(errno, "cannot look at", path_);
    return static_cast<std::uint64_t>(found.st_size);
}

std::uint64_t FileReader::written_end(std::uint64_t file_bytes) const {
    const auto size = static_cast<off_t>(file_bytes);
    off_t end = 0;
    while (end < size) {
        const off_t hole = lseek(fd_.get(), end, SEEK_HOLE);
        if (hole < 0) return file_bytes;
        const off_t data = lseek(fd_.get(), hole, SEEK_DATA);
        // It may have grown since.
        if (data < 0 && errno == ENXIO)
            return std::min(static_cast<std::uint64_t>(hole), file_bytes);
        if (data < 0) return file_bytes;
        end = data;
    }
    return file_bytes;
}

void FileReader::read_ahead(std::uint64_t bytes) const {
    static_cast<void>(posix_fadvise(fd_.get(), 0, static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

Result<bool> FileReader::read_at(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    std::uint64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd_.get(), static_cast<std::byte*>(to) + done, bytes - done,
                                  static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return file_failed(errno, "cannot read", path_);
        if (got == 0) return false;
        done += static_cast<std::uint64_t>(got);
    }
    return true;
}

std::optional<EntryHeader> FileReader::entry_in(const std::byte* header) const {
    EntryHeader entry{};
    std::memcpy(&entry, header, sizeof entry);
    return is_entry(entry) ? std::optional(entry) : std::nullopt;
}

Result<std::optional<EntryHeader>> FileReader::entry_at(std::uint64_t offset) const {
    std::array<std::byte, sizeof(EntryHeader)> bytes;
    const auto there = read_at(offset, bytes.data(), bytes.size());
    if (!there) return std::unexpected(there.error());
    return *there ? entry_in(bytes.data()) : std::nullopt;
}

Result<void> FileReader::read_payload(std::uint64_t offset, const EntryHeader& entry,
                                      std::byte* to) const {
    const auto there = read_at(offset + sizeof entry, to, entry.payload_bytes);
    if (!there) return std::unexpected(there.error());
    return *there ? check_payload(offset, entry, to) : damaged_at(offset);
}

Result<void> FileReader::check_payload(std::uint64_t offset, const EntryHeader& entry,
                                       const std::byte* payload) const {
    return is_payload_of(header_.file_id, entry, payload) ? Result<void>{} : damaged_at(offset);
}

std::unexpected<Error> FileReader::damaged_at(std::uint64_t offset) const {
    return refused(Errc::checksum_mismatch,
                   fmt::format("{}: the entry at byte {} is damaged", path_.string(), offset));
}

Result<std::optional<BatchHead>> FileReader::head_of(std::uint64_t offset,
                                                     const EntryHeader& entry) const {
    BatchHead head{};
    if (entry.payload_bytes < sizeof head) return std::nullopt;
    const auto there = read_at(offset + sizeof entry, &head, sizeof head);
    if (!there) return std::unexpected(there.error());
    const std::uint64_t told = sizeof head + std::uint64_t{head.groups} * sizeof(RecordedGroup) +
                               std::uint64_t{head.sequences} * sizeof(RecordedSequence);
    // Each group has a sequence, and each sequence a record of two lines before the batch.
    const bool agrees = *there && told == entry.payload_bytes && head.groups <= head.sequences &&
                        head.sequences <= offset / (2 * line);
    return agrees ? std::optional(head) : std::nullopt;
}

Result<std::uint64_t> FileReader::find_entry(std::uint64_t from, std::uint64_t end) const {
    std::vector<EntryHeader> lines(4);
    while (from + line <= end) {
        const std::uint64_t count = std::min<std::uint64_t>(lines.size(), (end - from) / line);
        const auto there = read_at(from, lines.data(), count * line);
        if (!there) return std::unexpected(there.error());
        if (!*there) break;  // it has become shorter
        for (std::uint64_t i = 0; i < count; i++) {
            if (is_entry(lines[i])) return from + i * line;
        }
        from += count * line;
        if (lines.size() < 16'384) lines.resize(2 * lines.size());
    }
    return end;
}

namespace {

constexpr std::size_t damaged_max = 16;

Result<void> take(const FileReader& file, std::uint64_t offset, const EntryHeader& entry,
                  Scan& found) {
    const std::uint64_t next = offset + line + padded(entry.payload_bytes);
    if (entry.kind == Kind::record) return {};
    found.end = next;
    if (entry.kind == Kind::acked) found.acked.push_back(entry);
    if (entry.kind != Kind::batch) return {};
    const auto head = file.head_of(offset, entry);
    if (!head) return std::unexpected(head.error());
    if (*head) {
        found.batches.push_back({.offset = offset, .entry = entry, .head = **head});
    } else {
        found.note(
            fmt::format("{}: the batch at byte {} is damaged", file.path().string(), offset));
    }
    return {};
}

}  // namespace

void Scan::note(std::string problem) {
    if (damaged.size() < damaged_max) damaged.push_back(std::move(problem));
}

Result<Scan> scan(const FileReader& file, std::uint64_t from) {
    const auto bytes = file.bytes();
    if (!bytes) return std::unexpected(bytes.error());
    Scan found;
    std::uint64_t offset = found.end = std::max(from, file.first_entry());
    std::size_t noted = 0;  // before found.end
    while (offset < *bytes) {
        const auto entry = file.entry_at(offset);
        if (!entry) return std::unexpected(entry.error());
        if (!*entry) {
            const auto next = file.find_entry(offset, *bytes);
            if (!next) return std::unexpected(next.error());
            if (*next >= *bytes) break;
            found.note(
                fmt::format("{}: bytes {} to {} are damaged", file.path().string(), offset, *next));
            offset = *next;
            continue;
        }
        const std::uint64_t next = offset + line + padded((*entry)->payload_bytes);
        if (next > *bytes) break;
        if (auto taken = take(file, offset, **entry, found); !taken) {
            return std::unexpected(taken.error());
        }
        offset = next;
        if (found.end == next) noted = found.damaged.size();
    }
    found.damaged.resize(noted);  // the rest is in `cut`
    found.cut = *bytes > found.end ? *bytes - found.end : 0;
    return found;
}

}  // namespace rollring::recording
