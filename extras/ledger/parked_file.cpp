#include "parked_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "columns_text.hpp"
#include "disk.hpp"
#include "fd.hpp"
#include "file_names.hpp"
#include "rollring/time.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

using recording::FileReader;

constexpr std::uint64_t ring_name_max = 4096;

recording::Kind stored(ParkedKind kind) {
    return static_cast<recording::Kind>(kind);
}

LifeByte claim() {
    return LifeByte::beside(0);
}

// Puts an entry at the end of the image.
void put(BlockBuffer& image, EntryHeader header, std::uint64_t seed,
         const std::function<void(std::span<std::byte>)>& fill) {
    const std::uint64_t whole = line + padded(header.payload_bytes);
    std::byte* const entry = image.grow(whole);
    std::memset(entry, 0, whole);
    fill({entry + line, header.payload_bytes});
    header.payload_checksum = XXH3_64bits_withSeed(entry + line, header.payload_bytes, seed);
    std::memcpy(entry, &header, sizeof header);
    header.checksum = XXH3_64bits_withSeed(entry, offsetof(EntryHeader, checksum), seed);
    std::memcpy(entry, &header, sizeof header);
}

// The whole file, in memory.
BlockBuffer image_of(const ParkedText& text) {
    const std::string columns = recording::columns_text(*text.schema);
    FileHeader header{.magic = parked_type.magic,
                      .version = parked_type.version,
                      .columns_bytes = static_cast<std::uint32_t>(columns.size()),
                      .file_number = 0,
                      .file_id = random_id(),
                      .schema_id = text.schema->id(),
                      .first_batch = 0,
                      .created_ns = text.parked_ns,
                      .checksum = 0};
    const std::uint64_t seed = header.file_id;
    header.checksum = XXH3_64bits_withSeed(&header, offsetof(FileHeader, checksum), 0) ^
                      XXH3_64bits_withSeed(columns.data(), columns.size(), seed);
    const std::uint64_t head = padded(sizeof header + columns.size());
    BlockBuffer image;
    image.grow(head + 3 * line + padded(text.ring.size()) + padded(text.record_bytes) +
               padded(text.state.size()));
    image.clear();  // keeps the memory
    std::byte* const at = image.grow(head);
    std::memset(at, 0, head);
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, columns.data(), columns.size());
    const auto copy = [](const void* from) {
        return [from](std::span<std::byte> to) {
            if (!to.empty()) std::memcpy(to.data(), from, to.size());
        };
    };
    const auto entry = [&](ParkedKind kind, std::uint64_t bytes) {
        return EntryHeader{.kind = stored(kind), .payload_bytes = bytes, .time_ns = text.parked_ns};
    };
    put(image, entry(ParkedKind::ring, text.ring.size()), seed, copy(text.ring.data()));
    put(image, entry(ParkedKind::record, text.record_bytes), seed, text.write_record);
    put(image, entry(ParkedKind::state, text.state.size()), seed, copy(text.state.data()));
    return image;
}

std::unexpected<Error> not_parked(int error, std::string_view did,
                                  const std::filesystem::path& path) {
    return recording::file_failed(error, fmt::format("the rollout was not parked: cannot {}", did),
                                  path);
}

// A new file, locked. Nothing: another process took it for one whose writer has died.
Result<std::optional<LifeLock>> make_locked(const std::filesystem::path& path, std::uint64_t bytes,
                                            Fd& fd) {
    if (const int error = disk().make(path, bytes, false, fd)) {
        return not_parked(error, "make", path);
    }
    auto lock = LifeLock::take(fd.get(), claim());
    if (!lock || !*lock) return lock;
    struct stat found{};
    if (fstat(fd.get(), &found) == 0 && found.st_nlink == 0) return std::optional<LifeLock>{};
    return lock;
}

Result<void> save(const std::filesystem::path& folder, const std::string& name,
                  BlockBuffer& image) {
    const auto path = folder / name;
    while (true) {
        // Of its own: an earlier one may be there still.
        const auto unfinished =
            folder / fmt::format("{}.{:016x}{}", name, random_id(), unfinished_ending);
        Fd fd;
        auto lock = make_locked(unfinished, image.used(), fd);
        if (!lock) return std::unexpected(lock.error());
        if (!*lock) continue;
        std::string_view did = "write";
        int error = disk().write(fd.get(), image.bytes(), 0);
        if (error == 0) {
            did = "sync";
            error = disk().sync(fd.get());
        }
        if (error == 0) {
            did = "rename";
            error = disk().rename(unfinished, path);
        }
        if (error != 0) {
            static_cast<void>(disk().remove(unfinished));
            return not_parked(error, did, unfinished);
        }
        error = disk().sync_names(folder);
        if (error == 0) return {};
        // The caller keeps the rollout, so that no other may have it.
        static_cast<void>(disk().remove(path));
        return not_parked(error, "sync the folder of", path);
    }
}

std::unexpected<Error> damaged(const std::filesystem::path& path, std::string_view what) {
    return refused(Errc::checksum_mismatch, fmt::format("{}: {}", path.string(), what));
}

// The entries of an open file.
class ParkedReader {
  public:
    ParkedReader(const FileReader& file, std::uint64_t bytes)
        : file_(&file), bytes_(bytes), offset_(file.first_entry()) {}

    // The payload of the next entry, in that memory.
    Result<std::span<const std::byte>> next(ParkedKind kind, BlockBuffer& memory) {
        const auto entry = file_->entry_at(offset_);
        if (!entry) return std::unexpected(entry.error());
        const bool fits = *entry && (*entry)->kind == stored(kind) &&
                          padded((*entry)->payload_bytes) + line <= bytes_ - offset_;
        if (!fits) {
            return damaged(file_->path(),
                           fmt::format("from byte {} on it is cut short or damaged", offset_));
        }
        const std::uint64_t length = (*entry)->payload_bytes;
        if (kind == ParkedKind::ring && length > ring_name_max) {
            return damaged(file_->path(), "the ring's name is damaged");
        }
        std::byte* const to = memory.grow(length);
        if (auto read = file_->read_payload(offset_, **entry, to); !read) {
            return std::unexpected(read.error());
        }
        offset_ += line + padded(length);
        return std::span<const std::byte>(to, length);
    }
    [[nodiscard]] bool at_end() const { return offset_ == bytes_; }

  private:
    const FileReader* file_;
    std::uint64_t bytes_;
    std::uint64_t offset_;
};

Result<Schema> schema_in(const FileReader& file) {
    auto schema = recording::schema_of(file.columns());
    if (!schema) {
        return refused(schema.error().code,
                       fmt::format("{}: {}", file.path().string(), schema.error().message));
    }
    if (schema->id() == file.header().schema_id) return schema;
    return refused(Errc::abi_mismatch,
                   fmt::format("{} was written by a rollring with other standard columns",
                               file.path().string()));
}

}  // namespace

std::filesystem::path parked_folder(const std::filesystem::path& ledger_dir) {
    return ledger_dir / "parked";
}

Result<std::vector<std::filesystem::path>> parked_files(const std::filesystem::path& ledger_dir,
                                                        std::string_view ending) {
    std::vector<std::filesystem::path> files;
    const auto folder = parked_folder(ledger_dir);
    std::error_code wrong;
    std::filesystem::directory_iterator at(folder, wrong);
    if (wrong == std::errc::no_such_file_or_directory) return files;
    while (!wrong && at != std::filesystem::directory_iterator()) {
        if (at->path().filename().string().ends_with(ending)) files.push_back(at->path());
        at.increment(wrong);
    }
    if (wrong) {
        return recording::file_failed(wrong.value(), "cannot read the directory", folder);
    }
    std::ranges::sort(files);
    return files;
}

Result<void> write_parked(const std::filesystem::path& ledger_dir, const ParkedText& text,
                          std::string name) {
    const auto folder = parked_folder(ledger_dir);
    std::error_code wrong;
    std::filesystem::create_directories(folder, wrong);
    if (wrong) return not_parked(wrong.value(), "make", folder);
    if (name.empty()) {
        name = fmt::format("{:020}-{:016x}{}", text.parked_ns, random_id(), parked_ending);
    }
    BlockBuffer image = image_of(text);
    return save(folder, name, image);
}

Result<std::optional<ParkedContents>> read_parked(const std::filesystem::path& path,
                                                  const OfRing& of_ring) {
    const auto file = FileReader::open(path, parked_type);
    if (!file) return std::unexpected(file.error());
    const auto bytes = file->bytes();
    if (!bytes) return std::unexpected(bytes.error());
    if (*bytes < file->first_entry()) return damaged(path, "it is cut short");
    ParkedReader reader(*file, *bytes);
    BlockBuffer memory;
    const auto ring = reader.next(ParkedKind::ring, memory);
    if (!ring) return std::unexpected(ring.error());
    ParkedContents found{.schema = Schema::standard(),
                         .ring = {reinterpret_cast<const char*>(ring->data()), ring->size()},
                         .parked_ns = file->header().created_ns,
                         .file_bytes = *bytes,
                         .record_memory = {},
                         .state_memory = {},
                         .record = {},
                         .state = {}};
    if (of_ring && !of_ring(found.ring)) return std::optional<ParkedContents>{};
    auto schema = schema_in(*file);
    if (!schema) return std::unexpected(schema.error());
    found.schema = std::move(*schema);
    const auto record = reader.next(ParkedKind::record, found.record_memory);
    if (!record) return std::unexpected(record.error());
    const auto state = reader.next(ParkedKind::state, found.state_memory);
    if (!state) return std::unexpected(state.error());
    if (!reader.at_end()) return damaged(path, "other bytes follow the rollout");
    found.state = *state;
    const std::string_view problem = found.record.parse(*record, found.schema);
    if (!problem.empty()) return damaged(path, problem);
    return found;
}

Result<std::optional<LifeLock>> take_file(const std::filesystem::path& path) {
    const Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!file && errno == ENOENT) return std::optional<LifeLock>{};
    if (!file) return recording::file_failed(errno, "cannot open", path);
    auto lock = LifeLock::take(file.get(), claim());
    if (!lock || !*lock) return lock;
    struct stat found{};
    if (fstat(file.get(), &found) != 0) return recording::file_failed(errno, "cannot open", path);
    if (found.st_nlink == 0) return std::optional<LifeLock>{};
    return lock;
}

bool is_taken(const std::filesystem::path& path) {
    const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return file && alive(file.get(), claim());
}

bool exceeds(const std::filesystem::path& ledger_dir, std::uint64_t most_bytes,
             std::uint64_t more_bytes) {
    const auto files = parked_files(ledger_dir);
    if (!files) return false;  // writing tells why
    const auto size_of = [](const std::filesystem::path& path) {
        std::error_code gone;
        const std::uintmax_t bytes = std::filesystem::file_size(path, gone);
        return gone ? 0 : bytes;
    };
    std::uint64_t bytes = more_bytes;
    for (const auto& path : *files) bytes += size_of(path);
    if (bytes <= most_bytes) return false;
    // Only now, because it opens each file. One that is gone meanwhile does not count.
    bytes = more_bytes;
    for (const auto& path : *files) {
        if (!is_taken(path)) bytes += size_of(path);
    }
    return bytes > most_bytes;
}

void remove_unfinished(const std::filesystem::path& ledger_dir) {
    const auto files = parked_files(ledger_dir, unfinished_ending);
    if (!files) return;
    for (const auto& path : *files) {
        const auto lock = take_file(path);
        if (lock && *lock) static_cast<void>(disk().remove(path));
    }
}

namespace {

// Whether an earlier restore has left it there, for that ring.
bool has_copy(const std::filesystem::path& path, std::string_view ring) {
    if (is_taken(path)) return true;
    const auto there = read_parked(path);
    return there && (*there)->ring == ring;
}

}  // namespace

Result<std::vector<std::string>> copy_parked(const std::filesystem::path& from,
                                             const std::filesystem::path& to,
                                             std::string_view ring) {
    std::vector<std::string> problems;
    const auto files = parked_files(from);
    if (!files) return std::vector{files.error().message};
    for (const auto& path : *files) {
        if (has_copy(parked_folder(to) / path.filename(), ring)) continue;
        const auto found = read_parked(path);
        if (!found && found.error().code == Errc::not_found) continue;
        if (!found) {
            problems.push_back(found.error().message);
            continue;
        }
        const std::span<const std::byte> record = (*found)->record_memory.bytes();
        auto copied = write_parked(to,
                                   {.ring = ring,
                                    .schema = &(*found)->schema,
                                    .record_bytes = record.size(),
                                    .write_record =
                                        [&](std::span<std::byte> at) {
                                            std::memcpy(at.data(), record.data(), record.size());
                                        },
                                    .state = (*found)->state,
                                    .parked_ns = (*found)->parked_ns},
                                   path.filename().string());
        if (!copied) return std::unexpected(copied.error());
    }
    return problems;
}

}  // namespace rollring::ledger
