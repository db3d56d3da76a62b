#include "ledger_scan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "columns_text.hpp"
#include "file_names.hpp"
#include "file_scan.hpp"
#include "ledger_layout.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

using recording::FileReader;

constexpr std::size_t damaged_max = 64;
constexpr std::uint64_t ring_bytes_max = 1 << 16;
constexpr std::uint32_t columns_bytes_max = 1 << 16;

// One segment, entry by entry.
class SegmentScan {
  public:
    SegmentScan(const FileReader& file, std::uint64_t number, Contents& found)
        : file_(&file), number_(number), found_(&found) {}

    Result<void> run();

  private:
    Result<void> take(std::uint64_t offset, const EntryHeader& entry);
    Result<void> take_record(std::uint64_t offset, const EntryHeader& entry);
    void take_ring(std::span<const std::byte> payload);
    Result<std::uint64_t> skip_to_entry(std::uint64_t offset, std::uint64_t bytes);

    // The end of the last byte that is not zero; `offset`: there is none behind it.
    [[nodiscard]] Result<std::uint64_t> end_of_bytes(std::uint64_t offset,
                                                     std::uint64_t bytes) const;
    void note_cut(std::uint64_t offset, std::uint64_t end);

    const FileReader* file_;
    std::uint64_t number_;
    Contents* found_;
};

// The next entry behind other bytes. Zeros fill the end of each commit.
Result<std::uint64_t> SegmentScan::skip_to_entry(std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t next_block = (offset + block) / block * block;
    if (next_block < bytes) {
        const auto entry = file_->entry_at(next_block);
        if (!entry) return std::unexpected(entry.error());
        if (*entry) {
            std::vector<std::byte> between(next_block - offset);
            const auto there = file_->read_part(offset, between.data(), between.size());
            if (!there) return std::unexpected(there.error());
            const bool zeros =
                std::ranges::all_of(between, [](std::byte one) { return one == std::byte{}; });
            if (zeros) return next_block;
        }
    }
    auto next = file_->find_entry(offset, bytes);
    if (!next) return next;
    if (*next < bytes) {
        found_->note(
            fmt::format("{}: bytes {} to {} are damaged", file_->path().string(), offset, *next));
        return next;
    }
    auto end = end_of_bytes(offset, bytes);
    if (!end) return end;
    if (*end != offset) note_cut(offset, *end);
    return next;
}

// The last commit of a dead writer, which the disk did not take whole, or damage.
void SegmentScan::note_cut(std::uint64_t offset, std::uint64_t end) {
    found_->used = end;
    found_->note(fmt::format("{}: from byte {} on it is cut short or damaged",
                             file_->path().string(), offset));
}

Result<std::uint64_t> SegmentScan::end_of_bytes(std::uint64_t offset, std::uint64_t bytes) const {
    std::vector<std::byte> part;
    std::uint64_t end = offset;
    while (offset < bytes) {
        part.resize(std::min<std::uint64_t>(bytes - offset, std::uint64_t{1} << 20));
        const auto there = file_->read_part(offset, part.data(), part.size());
        if (!there) return std::unexpected(there.error());
        const auto last = std::find_if(part.rbegin(), part.rend(),
                                       [](std::byte one) { return one != std::byte{}; });
        if (last != part.rend()) end = offset + static_cast<std::uint64_t>(part.rend() - last);
        offset += part.size();
    }
    return end;
}

Result<void> SegmentScan::run() {
    const auto bytes = file_->bytes();
    if (!bytes) return std::unexpected(bytes.error());
    std::uint64_t offset = found_->used = found_->end = file_->first_entry();
    while (offset < *bytes) {
        const auto entry = file_->entry_at(offset);
        if (!entry) return std::unexpected(entry.error());
        if (!*entry) {
            const auto next = skip_to_entry(offset, *bytes);
            if (!next) return std::unexpected(next.error());
            offset = *next;
            continue;
        }
        const std::uint64_t next = offset + line + padded((*entry)->payload_bytes);
        if (next > *bytes) {
            note_cut(offset, *bytes);
            break;
        }
        if (auto taken = take(offset, **entry); !taken) return taken;
        found_->used = found_->end = offset = next;
    }
    return {};
}

// The number behind that name, in lines `name number`.
std::optional<std::uint64_t> number_in(std::string_view text, std::string_view name) {
    while (!text.empty()) {
        const std::string_view row = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(row.size() + 1, text.size()));
        if (!row.starts_with(name) || row.substr(name.size(), 1) != " ") continue;
        std::uint64_t number = 0;
        const auto [end, wrong] =
            std::from_chars(row.data() + name.size() + 1, row.data() + row.size(), number);
        if (wrong == std::errc() && end == row.data() + row.size()) return number;
    }
    return std::nullopt;
}

void SegmentScan::take_ring(std::span<const std::byte> payload) {
    RingHead head{};
    if (payload.size() < sizeof head) return;
    std::memcpy(&head, payload.data(), sizeof head);
    const std::string text(reinterpret_cast<const char*>(payload.data() + sizeof head),
                           payload.size() - sizeof head);
    if (head.name_bytes > text.size()) return;
    found_->ring = {.id = head.ring_id,
                    .name = text.substr(0, head.name_bytes),
                    .sizes = text.substr(head.name_bytes)};
    Book& book = found_->book;
    const auto settled = number_in(found_->ring.sizes, "settled_step");
    // A ring that was not restored from the one before it has steps of its own.
    const std::int64_t before = book.ring_id() == head.ring_id ? book.settled_step() : -1;
    const auto next_number = number_in(found_->ring.sizes, "next_number");
    // Files are removed once their records are gone, the oldest first.
    if (found_->segments.size() == 1) found_->gone_below = next_number.value_or(0);
    book.go_on(next_number.value_or(1), number_in(found_->ring.sizes, "next_batch").value_or(1),
               settled ? std::max(before, static_cast<std::int64_t>(*settled)) : before);
    book.enter_ring(head.ring_id);
}

Result<void> SegmentScan::take_record(std::uint64_t offset, const EntryHeader& entry) {
    RecordOrigin origin{};
    if (entry.payload_bytes <= sizeof origin) return {};
    const auto there = file_->read_part(offset + line, &origin, sizeof origin);
    if (!there) return std::unexpected(there.error());
    if (found_->book.record(entry.number) != nullptr) {
        // Another copy counts only if it is whole: the file of the first may still be there.
        std::vector<std::byte> payload(entry.payload_bytes);
        const auto read = file_->read_payload(offset, entry, payload.data());
        if (!read) {
            found_->note(read.error().message);
            return {};
        }
    }
    found_->book.keep(entry.number,
                      {.origin = {origin.ring_id, origin.lane, origin.epoch, origin.sequence},
                       .key = {origin.key_low, origin.key_high},
                       .tokens = origin.tokens,
                       .segment = number_,
                       .offset = offset,
                       .bytes = line + padded(entry.payload_bytes)});
    return {};
}

Result<void> SegmentScan::take(std::uint64_t offset, const EntryHeader& entry) {
    const Kind kind = kind_of(entry);
    if (kind == Kind::record) return take_record(offset, entry);
    std::vector<std::byte> payload(entry.payload_bytes);
    const auto read = file_->read_payload(offset, entry, payload.data());
    if (!read) {
        found_->note(read.error().message);
        return {};
    }
    if (kind == Kind::ring) {
        if (payload.size() <= ring_bytes_max) take_ring(payload);
        return {};
    }
    std::vector<std::uint64_t> numbers(payload.size() / sizeof(std::uint64_t));
    if (!numbers.empty()) {
        std::memcpy(numbers.data(), payload.data(), numbers.size() * sizeof(std::uint64_t));
    }
    if (kind == Kind::acked) found_->book.ack(entry.number, entry.step, numbers);
    if (kind == Kind::gone) {
        static_cast<void>(found_->book.forget(numbers));
        found_->book.settle_step(entry.step);
        found_->gone.insert(numbers.begin(), numbers.end());
    }
    if (kind == Kind::again) found_->book.give_again(numbers);
    return {};
}

// A record whose bytes are not whole was not durable, or is damaged.
Result<void> check_records(const std::filesystem::path& directory, Contents& found) {
    std::map<std::uint64_t, std::vector<std::pair<std::uint64_t, std::uint64_t>>> by_segment;
    for (const auto& [number, one] : found.book.records()) {
        by_segment[one.segment].emplace_back(one.offset, number);
    }
    std::vector<std::byte> payload;
    for (auto& [segment, places] : by_segment) {
        std::ranges::sort(places);
        const auto file = FileReader::open(segment_path(directory, segment), segment_type);
        if (!file && file.error().code == Errc::not_found) {
            for (const auto& [offset, number] : places) found.book.forget({&number, 1});
            continue;
        }
        if (!file) return std::unexpected(file.error());
        file->read_ahead();
        for (const auto& [offset, number] : places) {
            const auto entry = file->entry_at(offset);
            Result<void> read = refused(
                Errc::checksum_mismatch,
                fmt::format("{}: the entry at byte {} is damaged", file->path().string(), offset));
            if (!entry) {
                read = std::unexpected(entry.error());
            } else if (*entry) {
                payload.resize((*entry)->payload_bytes);
                read = file->read_payload(offset, **entry, payload.data());
            }
            if (read) continue;
            found.note(read.error().message);
            found.lost += found.book.forget({&number, 1});
        }
    }
    return {};
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

Result<void> look_at(const recording::NumberedFile& one, Contents& found) {
    const auto file = FileReader::open(one.path, segment_type);
    if (!file && file.error().code == Errc::not_a_ring) {
        if (!is_clear(one.path)) found.note(file.error().message);
        return {};
    }
    // A living writer removes segments that are empty.
    if (!file && file.error().code == Errc::not_found) return {};
    if (!file && (file.error().code == Errc::system || has_damaged_version(one.path))) {
        found.note(file.error().message);
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
    // Headers of entries lie far apart, and their records are checked soon (check_records).
    file->read_ahead();
    // Sectors that the disk cannot read are damage like any other.
    if (auto scanned = SegmentScan(*file, one.number, found).run(); !scanned) {
        found.note(fmt::format("{}: from byte {} on it cannot be read: {}", one.path.string(),
                               found.end, scanned.error().message));
    }
    return {};
}

}  // namespace

void Contents::note(std::string problem) {
    if (damaged.size() < damaged_max) damaged.push_back(std::move(problem));
}

std::filesystem::path segment_path(const std::filesystem::path& directory, std::uint64_t number) {
    return directory / recording::file_name(number, segment_ending);
}

Result<Contents> scan(const std::filesystem::path& directory) {
    const auto files = recording::files_of(directory, segment_ending);
    if (!files) return std::unexpected(files.error());
    Contents found;
    for (const recording::NumberedFile& one : *files) {
        std::error_code gone;
        const std::uint64_t bytes = std::filesystem::file_size(one.path, gone);
        // Files are removed from the oldest on, also while they are listed.
        if (gone == std::errc::no_such_file_or_directory) continue;
        if (!found.segments.empty() && one.number != found.next_segment) {
            found.note(fmt::format("{}: {} files before it are missing", one.path.string(),
                                   one.number - found.next_segment));
        }
        found.next_segment = one.number + 1;
        found.segments.push_back({.number = one.number, .bytes = gone ? 0 : bytes});
        if (auto looked = look_at(one, found); !looked) return std::unexpected(looked.error());
    }
    if (auto checked = check_records(directory, found); !checked) {
        return std::unexpected(checked.error());
    }
    return found;
}

}  // namespace rollring::ledger
