#include "ledger_scan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "columns_text.hpp"
#include "entry_taker.hpp"
#include "file_names.hpp"
#include "file_scan.hpp"
#include "file_window.hpp"
#include "ledger_layout.hpp"
#include "segment_index.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

using recording::FileReader;

constexpr std::uint32_t columns_bytes_max = 1 << 16;

// The number of bytes up to the last one that is not zero.
std::uint64_t without_zeros(std::span<const std::byte> part) {
    static constexpr std::array<std::byte, line> zeros{};
    if (part.size() <= line && std::memcmp(part.data(), zeros.data(), part.size()) == 0) return 0;
    const auto last =
        std::find_if(part.rbegin(), part.rend(), [](std::byte one) { return one != std::byte{}; });
    return static_cast<std::uint64_t>(part.rend() - last);
}

// One segment, entry by entry.
class SegmentScan {
  public:
    // `index`: gets the entries; may be null.
    SegmentScan(const FileReader& file, std::uint64_t bytes, Contents& found, Broken& broken,
                IndexMaker* index)
        : file_(&file),
          bytes_(bytes),
          written_(file.written_end(bytes)),
          window_(file, bytes),
          found_(&found),
          taker_(found, broken),
          index_(index) {}

    void run();
    [[nodiscard]] bool found_damage() const { return found_damage_; }

  private:
    void note(std::string problem);
    [[nodiscard]] std::optional<EntryHeader> entry_at(std::uint64_t offset);
    void take(std::uint64_t offset, const EntryHeader& entry);
    // The offset of the next entry behind other bytes; the file's end if there is none.
    std::uint64_t skip_to_entry(std::uint64_t offset);
    void check_written_end();
    void note_cut(std::uint64_t offset, std::uint64_t end);

    const FileReader* file_;
    std::uint64_t bytes_;
    std::uint64_t written_;  // zeros lie behind it
    FileWindow window_;
    Contents* found_;
    EntryTaker taker_;
    IndexMaker* index_;
    bool found_damage_ = false;
};

void SegmentScan::note(std::string problem) {
    found_damage_ = true;
    found_->note(std::move(problem));
}

std::optional<EntryHeader> SegmentScan::entry_at(std::uint64_t offset) {
    if (offset + line > bytes_) return std::nullopt;
    return file_->entry_in(window_.at(offset, line).data());
}

// Zeros fill the end of each commit.
std::uint64_t SegmentScan::skip_to_entry(std::uint64_t offset) {
    std::uint64_t next = offset;
    std::uint64_t end = offset;  // of the last byte that is not zero
    while (next < written_ && (next == offset || !entry_at(next))) {
        const auto part = window_.at(next, std::min(line, bytes_ - next));
        if (const std::uint64_t bytes = without_zeros(part)) end = next + bytes;
        next += part.size();
    }
    if (next >= written_) next = bytes_;
    if (next == bytes_) {
        if (end != offset) note_cut(offset, end);
    } else if (end != offset || next != in_blocks(offset)) {
        note(fmt::format("{}: bytes {} to {} are damaged", file_->path().string(), offset, next));
    }
    return next;
}

// The last commit of a dead writer, which the disk did not take whole, or damage.
void SegmentScan::note_cut(std::uint64_t offset, std::uint64_t end) {
    found_->used = end;
    note(fmt::format("{}: from byte {} on it is cut short or damaged", file_->path().string(),
                     offset));
}

// Some file systems have taken data for a hole while it was on its way to the disk.
void SegmentScan::check_written_end() {
    constexpr std::uint64_t looked_at = std::uint64_t{1} << 20;
    const std::uint64_t some = std::min(looked_at, bytes_ - written_);
    if (without_zeros(window_.at(written_, some)) != 0) written_ = bytes_;
}

void SegmentScan::run() {
    file_->read_ahead(written_);
    if (written_ < bytes_) check_written_end();
    std::uint64_t offset = found_->used = found_->end = file_->first_entry();
    while (offset < bytes_) {
        const auto entry = entry_at(offset);
        if (!entry) {
            offset = skip_to_entry(offset);
            continue;
        }
        const std::uint64_t next = offset + line + padded(entry->payload_bytes);
        if (next > bytes_) {
            note_cut(offset, bytes_);
            break;
        }
        take(offset, *entry);
        found_->used = found_->end = offset = next;
    }
    if (window_.problem().empty()) return;
    note(window_.problem());
    if (found_->unread.empty()) found_->unread = window_.problem();
}

void SegmentScan::take(std::uint64_t offset, const EntryHeader& entry) {
    const auto payload = window_.at(offset + line, entry.payload_bytes);
    auto whole = file_->check_payload(offset, entry, payload.data());
    if (whole) {
        taker_.take(offset, entry, payload);
        if (index_ != nullptr) index_->add(offset, entry, {{payload}});
    } else {
        found_damage_ = true;
        taker_.take_damaged(entry, std::move(whole.error().message));
    }
}

// Whether the file has nothing at all: its maker died before the first commit.
bool is_clear(const std::filesystem::path& path) {
    std::vector<char> part(std::size_t{1} << 20);
    std::ifstream file(path, std::ios::binary);
    while (file) {
        file.read(part.data(), static_cast<std::streamsize>(part.size()));
        const std::span<const char> there(part.data(), static_cast<std::size_t>(file.gcount()));
        if (std::ranges::any_of(there, [](char one) { return one != 0; })) return false;
    }
    return true;
}

// Whether the header is one of this version, but for that number.
bool has_damaged_version(const std::filesystem::path& path) {
    FileHeader header{};
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    if (!file || header.columns_bytes > columns_bytes_max) return false;
    header.version = segment_type.version;
    std::string columns(header.columns_bytes, '\0');
    file.read(columns.data(), static_cast<std::streamsize>(columns.size()));
    return file && header.checksum ==
                       (XXH3_64bits(&header, offsetof(FileHeader, checksum)) ^
                        XXH3_64bits_withSeed(columns.data(), columns.size(), header.file_id));
}

bool take_index(const FileReader& file, std::uint64_t bytes, Contents& found, Broken& broken) {
    auto index =
        SegmentIndex::read(index_path(file.path().parent_path(), found.newest), file, bytes);
    if (!index) return false;
    found.book.expect(index->entries());
    EntryTaker taker(found, broken);
    while (const auto entry = index->next()) taker.take(entry->offset, entry->header, entry->part);
    found.used = found.end = index->end();
    found.indexed.insert(found.newest);
    return true;
}

Result<void> look_through(const FileReader& file, Contents& found, Broken& broken,
                          const ScanOptions& options) {
    const auto bytes = file.bytes();
    if (!bytes) return std::unexpected(bytes.error());
    if (options.by_index && take_index(file, *bytes, found, broken)) return {};
    const auto path = index_path(file.path().parent_path(), found.newest);
    const std::uint64_t id = file.header().file_id;
    IndexMaker index;
    const bool wanted = options.indexed && !SegmentIndex::is_there(path, id);
    // Sectors that the disk cannot read are damage like any other.
    SegmentScan scan(file, *bytes, found, broken, wanted ? &index : nullptr);
    scan.run();
    if (!wanted || scan.found_damage()) return {};
    if (const auto made = index.take(id); !made.empty()) options.indexed(found.newest, made);
    return {};
}

Result<void> look_at(const recording::NumberedFile& one, Contents& found, Broken& broken,
                     const ScanOptions& options) {
    const auto file = FileReader::open(one.path, segment_type);
    if (!file && file.error().code == Errc::not_a_ring) {
        if (!is_clear(one.path)) found.note(file.error().message);
        return {};
    }
    // A living writer removes segments that are empty.
    if (!file && file.error().code == Errc::not_found) return {};
    if (!file && (file.error().code == Errc::system || has_damaged_version(one.path))) {
        found.note(file.error().message);
        if (file.error().code == Errc::system) found.unread = file.error().message;
        return {};
    }
    if (!file) return std::unexpected(file.error());
    auto schema = recording::schema_of(file->columns());
    if (!schema) {
        return refused(schema.error().code,
                       fmt::format("{}: {}", one.path.string(), schema.error().message));
    }
    if (schema->id() != file->header().schema_id) {
        return refused(Errc::abi_mismatch,
                       fmt::format("{} was written by a rollring with other standard columns",
                                   one.path.string()));
    }
    if (!found.empty && schema->id() != found.schema.id()) {
        return refused(Errc::not_a_ring, fmt::format("{} has other columns than the file before it",
                                                     one.path.string()));
    }
    found.schema = std::move(*schema);
    found.empty = false;
    found.newest = one.number;
    found.file_ids[one.number] = file->header().file_id;
    return look_through(*file, found, broken, options);
}

}  // namespace

void Contents::note(std::string problem) {
    if (damaged.size() < damaged_max) damaged.push_back(std::move(problem));
}

Result<Contents> scan(const std::filesystem::path& directory, const ScanOptions& options) {
    const auto files = recording::files_of(directory, segment_ending);
    if (!files) return std::unexpected(files.error());
    Contents found;
    Broken broken;
    for (const recording::NumberedFile& one : *files) {
        std::error_code gone;
        std::error_code none;
        const std::uint64_t bytes = std::filesystem::file_size(one.path, gone);
        // Files are removed from the oldest on, also while they are listed.
        if (gone == std::errc::no_such_file_or_directory) continue;
        if (!found.segments.empty() && one.number != found.next_segment) {
            found.note(fmt::format("{}: {} files before it are missing", one.path.string(),
                                   one.number - found.next_segment));
        }
        found.next_segment = one.number + 1;
        const std::uint64_t index_bytes =
            std::filesystem::file_size(index_path(directory, one.number), none);
        found.segments.push_back({.number = one.number,
                                  .bytes = gone ? 0 : bytes,
                                  .index_bytes = none ? 0 : index_bytes});
        if (auto looked = look_at(one, found, broken, options); !looked) {
            return std::unexpected(looked.error());
        }
    }
    for (auto& [number, problem] : broken) {
        found.note(std::move(problem));
        found.broken.insert(number);
    }
    found.lost = broken.size();
    return found;
}

}  // namespace rollring::ledger
