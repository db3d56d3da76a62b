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
#include "file_window.hpp"
#include "ledger_layout.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

using recording::FileReader;

constexpr std::size_t damaged_max = 64;
constexpr std::uint64_t ring_bytes_max = 1 << 16;
constexpr std::uint32_t columns_bytes_max = 1 << 16;

// Records of which no whole copy has come yet, with the damage of the last one.
using Broken = std::map<std::uint64_t, std::string>;

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
    SegmentScan(const FileReader& file, std::uint64_t bytes, Contents& found, Broken& broken)
        : file_(&file),
          bytes_(bytes),
          written_(file.written_end(bytes)),
          window_(file, bytes),
          found_(&found),
          broken_(&broken) {}

    void run();

  private:
    [[nodiscard]] std::optional<EntryHeader> entry_at(std::uint64_t offset);
    void take(std::uint64_t offset, const EntryHeader& entry);
    void take_record(std::uint64_t offset, const EntryHeader& entry,
                     std::span<const std::byte> payload);
    void take_numbers(const EntryHeader& entry, std::span<const std::byte> payload);
    void take_ring(std::span<const std::byte> payload);
    // The offset of the next entry behind other bytes; the file's end if there is none.
    std::uint64_t skip_to_entry(std::uint64_t offset);
    void check_written_end();
    void note_cut(std::uint64_t offset, std::uint64_t end);

    const FileReader* file_;
    std::uint64_t bytes_;
    std::uint64_t written_;  // zeros lie behind it
    FileWindow window_;
    Contents* found_;
    Broken* broken_;
};

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
    } else if (end != offset || next != (offset + block - 1) / block * block) {
        found_->note(
            fmt::format("{}: bytes {} to {} are damaged", file_->path().string(), offset, next));
    }
    return next;
}

// The last commit of a dead writer, which the disk did not take whole, or damage.
void SegmentScan::note_cut(std::uint64_t offset, std::uint64_t end) {
    found_->used = end;
    found_->note(fmt::format("{}: from byte {} on it is cut short or damaged",
                             file_->path().string(), offset));
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
    found_->note(window_.problem());
    if (found_->unread.empty()) found_->unread = window_.problem();
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

// `payload`: whole.
void SegmentScan::take_record(std::uint64_t offset, const EntryHeader& entry,
                              std::span<const std::byte> payload) {
    RecordOrigin origin{};
    if (payload.size() <= sizeof origin) return;
    std::memcpy(&origin, payload.data(), sizeof origin);
    broken_->erase(entry.number);
    found_->book.keep(entry.number,
                      {.origin = {origin.ring_id, origin.lane, origin.epoch, origin.sequence},
                       .key = {origin.key_low, origin.key_high},
                       .tokens = origin.tokens,
                       .segment = found_->newest,
                       .offset = offset,
                       .bytes = line + padded(entry.payload_bytes)});
}

void SegmentScan::take(std::uint64_t offset, const EntryHeader& entry) {
    const Kind kind = kind_of(entry);
    const auto payload = window_.at(offset + line, entry.payload_bytes);
    auto whole = file_->check_payload(offset, entry, payload.data());
    // A record whose bytes are not whole was not durable, or is damaged. Another copy counts only
    // if it is whole: the file of the first may still be there.
    if (!whole && kind == Kind::record && found_->book.record(entry.number) == nullptr) {
        found_->book.use(entry.number);
        broken_->insert_or_assign(entry.number, std::move(whole.error().message));
    } else if (!whole) {
        found_->note(std::move(whole.error().message));
    } else if (kind == Kind::record) {
        take_record(offset, entry, payload);
    } else if (kind == Kind::ring) {
        if (payload.size() <= ring_bytes_max) take_ring(payload);
    } else {
        take_numbers(entry, payload);
    }
}

void SegmentScan::take_numbers(const EntryHeader& entry, std::span<const std::byte> payload) {
    const Kind kind = kind_of(entry);
    std::vector<std::uint64_t> numbers(payload.size() / sizeof(std::uint64_t));
    if (!numbers.empty()) {
        std::memcpy(numbers.data(), payload.data(), numbers.size() * sizeof(std::uint64_t));
    }
    if (kind == Kind::acked) found_->book.ack(entry.number, entry.step, numbers);
    if (kind == Kind::gone) {
        static_cast<void>(found_->book.forget(numbers));
        found_->book.settle_step(entry.step);
        found_->gone.insert(numbers.begin(), numbers.end());
        for (const std::uint64_t number : numbers) broken_->erase(number);
    }
    if (kind == Kind::again) found_->book.give_again(numbers);
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

Result<void> look_at(const recording::NumberedFile& one, Contents& found, Broken& broken) {
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
    const auto bytes = file->bytes();
    if (!bytes) return std::unexpected(bytes.error());
    // Sectors that the disk cannot read are damage like any other.
    SegmentScan(*file, *bytes, found, broken).run();
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
    Broken broken;
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
        if (auto looked = look_at(one, found, broken); !looked)
            return std::unexpected(looked.error());
    }
    for (auto& [number, problem] : broken) {
        found.note(std::move(problem));
        found.broken.insert(number);
    }
    found.lost = broken.size();
    return found;
}

}  // namespace rollring::ledger
