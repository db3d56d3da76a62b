#include "segment_index.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "file_names.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

constexpr std::uint64_t step_of(std::uint64_t part_bytes) {
    return sizeof(IndexedEntry) + (part_bytes + 7) / 8 * 8;
}

std::uint64_t checksum_of(const IndexHead& head, std::span<const std::byte> entries) {
    return XXH3_64bits_withSeed(entries.data(), entries.size(),
                                XXH3_64bits(&head, offsetof(IndexHead, checksum)));
}

bool read_head(std::ifstream& file, std::uint64_t file_id, IndexHead& head) {
    file.read(reinterpret_cast<char*>(&head), sizeof head);
    return file && head.magic == index_magic && head.version == index_version &&
           head.file_id == file_id;
}

}  // namespace

std::filesystem::path segment_path(const std::filesystem::path& directory, std::uint64_t number) {
    return directory / recording::file_name(number, segment_ending);
}

std::filesystem::path index_path(const std::filesystem::path& directory, std::uint64_t number) {
    return directory / recording::file_name(number, index_ending);
}

void IndexMaker::add(std::uint64_t offset, const EntryHeader& entry,
                     std::span<const std::span<const std::byte>> payload) {
    std::uint64_t part_bytes = entry.payload_bytes;
    if (kind_of(entry) == Kind::record) {
        part_bytes = std::min<std::uint64_t>(part_bytes, sizeof(RecordOrigin));
    }
    const IndexedEntry indexed{.offset = offset,
                               .number = entry.number,
                               .step = entry.step,
                               .payload_bytes = entry.payload_bytes,
                               .kind = std::bit_cast<std::uint32_t>(entry.kind),
                               .part_bytes = static_cast<std::uint32_t>(part_bytes)};
    if (bytes_.empty()) bytes_.resize(sizeof(IndexHead));
    const std::uint64_t at = bytes_.size();
    bytes_.resize(at + step_of(part_bytes));
    std::byte* to = bytes_.data() + at;
    std::memcpy(to, &indexed, sizeof indexed);
    to += sizeof indexed;
    for (const auto& piece : payload) {
        const std::uint64_t some = std::min<std::uint64_t>(piece.size(), part_bytes);
        if (some != 0) std::memcpy(to, piece.data(), some);
        to += some;
        part_bytes -= some;
    }
    entries_++;
    end_ = offset + line + padded(entry.payload_bytes);
}

std::vector<std::byte> IndexMaker::take(std::uint64_t file_id) {
    std::vector<std::byte> file = std::exchange(bytes_, {});
    const std::uint64_t entries = std::exchange(entries_, 0);
    if (entries == 0) return {};
    const std::span<const std::byte> behind = std::span(file).subspan(sizeof(IndexHead));
    IndexHead head{.magic = index_magic,
                   .version = index_version,
                   .reserved = 0,
                   .file_id = file_id,
                   .end = end_,
                   .entries = entries,
                   .bytes = behind.size(),
                   .reserved2 = 0,
                   .checksum = 0};
    head.checksum = checksum_of(head, behind);
    std::memcpy(file.data(), &head, sizeof head);
    return file;
}

bool SegmentIndex::is_there(const std::filesystem::path& path, std::uint64_t file_id) {
    std::ifstream file(path, std::ios::binary);
    IndexHead head{};
    return read_head(file, file_id, head);
}

std::optional<SegmentIndex> SegmentIndex::read(const std::filesystem::path& path,
                                               const recording::FileReader& segment,
                                               std::uint64_t segment_bytes) {
    std::error_code wrong;
    const std::uint64_t file_bytes = std::filesystem::file_size(path, wrong);
    std::ifstream file(path, std::ios::binary);
    SegmentIndex index;
    const IndexHead& head = index.head_;
    if (wrong || !read_head(file, segment.header().file_id, index.head_)) return std::nullopt;
    if (file_bytes - sizeof head != head.bytes) return std::nullopt;
    index.bytes_.resize(head.bytes);
    file.read(reinterpret_cast<char*>(index.bytes_.data()),
              static_cast<std::streamsize>(head.bytes));
    if (!file || checksum_of(head, index.bytes_) != head.checksum) return std::nullopt;
    if (!index.fills(segment.first_entry(), segment_bytes)) return std::nullopt;
    return index;
}

std::optional<SegmentIndex::Entry> SegmentIndex::next() {
    IndexedEntry indexed{};
    if (left_ == 0 || bytes_.size() - at_ < sizeof indexed) return std::nullopt;
    std::memcpy(&indexed, bytes_.data() + at_, sizeof indexed);
    if (bytes_.size() - at_ < step_of(indexed.part_bytes)) return std::nullopt;
    Entry entry{.offset = indexed.offset, .header = {}, .part = {}};
    entry.header.kind = std::bit_cast<recording::Kind>(indexed.kind);
    entry.header.payload_bytes = indexed.payload_bytes;
    entry.header.number = indexed.number;
    entry.header.step = indexed.step;
    entry.part = {bytes_.data() + at_ + sizeof indexed, indexed.part_bytes};
    at_ += step_of(indexed.part_bytes);
    left_--;
    return entry;
}

// Whether it is the entry behind the one that ends at `at`: there, or at the next commit.
bool SegmentIndex::is_next(const Entry& entry, std::uint64_t at) const {
    if (entry.offset != at && entry.offset != in_blocks(at)) return false;
    const std::uint64_t payload = entry.header.payload_bytes;
    if (entry.offset > head_.end || payload > head_.end - entry.offset) return false;
    if (kind_of(entry.header) != Kind::record) return entry.part.size() == payload;
    return entry.part.size() == sizeof(RecordOrigin) && payload > sizeof(RecordOrigin);
}

bool SegmentIndex::fills(std::uint64_t first_entry, std::uint64_t segment_bytes) {
    if (head_.end > segment_bytes) return false;
    left_ = head_.entries;
    std::uint64_t end = first_entry;
    while (const auto entry = next()) {
        if (!is_next(*entry, end)) return false;
        end = entry->offset + line + padded(entry->header.payload_bytes);
    }
    if (left_ != 0 || at_ != bytes_.size() || end != head_.end) return false;
    left_ = head_.entries;
    at_ = 0;
    return true;
}

}  // namespace rollring::ledger
