#include "restored_records.hpp"

#include <fmt/core.h>

#include <cstring>
#include <ranges>
#include <string_view>

#include "segment_index.hpp"

namespace rollring::ledger {
namespace {

bool is_whole(const RecordStream::Read& read, const EntryHeader& entry) {
    const std::uint64_t id = read.file->file_id();
    return recording::is_entry_of(id, entry) &&
           entry.payload_bytes <= read.bytes.size() - sizeof entry &&
           recording::is_payload_of(id, entry, read.bytes.data() + sizeof entry);
}

bool is_wanted(const RecordStream::Read& read, const EntryHeader& entry, std::uint64_t number,
               const Kept& kept) {
    if (kind_of(entry) != Kind::record || entry.number != number ||
        line + padded(entry.payload_bytes) != kept.bytes ||
        entry.payload_bytes <= sizeof(RecordOrigin)) {
        return false;
    }
    RecordOrigin origin{};
    std::memcpy(&origin, read.bytes.data() + sizeof entry, sizeof origin);
    return Identity{origin.ring_id, origin.lane, origin.epoch, origin.sequence} == kept.origin &&
           GroupKey{origin.key_low, origin.key_high} == kept.key;
}

}  // namespace

Result<TrajectoryView> view_of(const RecordStream::Read& read, std::uint64_t number,
                               const Kept& kept, const Schema& schema) {
    const std::filesystem::path& path = read.file->path();
    EntryHeader entry{};
    std::memcpy(&entry, read.bytes.data(), sizeof entry);
    if (!is_whole(read, entry)) {
        if (!read.problem.empty()) return refused(Errc::system, read.problem);
        return refused(Errc::checksum_mismatch, fmt::format("{}: the entry at byte {} is damaged",
                                                            path.string(), kept.offset));
    }
    if (!is_wanted(read, entry, number, kept)) {
        return refused(
            Errc::not_a_ring,
            fmt::format("the index of {} does not agree with it: remove both the file "
                        "{} and the ring, and restore again",
                        path.string(), index_path(path.parent_path(), kept.segment).string()));
    }
    return view_in(read.bytes.subspan(sizeof entry, entry.payload_bytes), path, kept, schema);
}

Result<OlderCopies> OlderCopies::open(const std::filesystem::path& directory,
                                      const Contents& found) {
    OlderCopies older;
    for (const auto& [number, copies] : found.older) {
        if (found.book.record(number) == nullptr) continue;
        older.copies_[number] = copies;
        for (const Kept& one : copies) {
            if (older.files_.contains(one.segment)) continue;
            auto file =
                recording::FileReader::open(segment_path(directory, one.segment), segment_type);
            if (!file) return std::unexpected(file.error());
            older.files_.emplace(one.segment, std::move(*file));
        }
    }
    return older;
}

std::optional<TrajectoryView> OlderCopies::load(std::uint64_t number, const Schema& schema) {
    const auto found = copies_.find(number);
    if (found == copies_.end()) return std::nullopt;
    for (const Kept& one : std::views::reverse(found->second)) {
        auto view = ledger::load(files_.at(one.segment), one, schema, memory_);
        if (view) return std::move(*view);
    }
    return std::nullopt;
}

GroupMembers::GroupMembers(const Book& book) {
    for (const auto& [number, one] : book.records()) members_[{one.key.low, one.key.high}]++;
}

void GroupMembers::lose(const GroupKey& key) {
    const auto at = members_.find({key.low, key.high});
    if (at != members_.end() && --at->second == 0) members_.erase(at);
}

Result<DataFiles> open_segments(const std::filesystem::path& directory, const Contents& found) {
    DataFiles files;
    for (const auto& [number, one] : found.book.records()) {
        if (files.contains(one.segment)) continue;
        auto file =
            DataFile::open(segment_path(directory, one.segment), found.file_ids.at(one.segment),
                           !found.indexed.contains(one.segment));
        if (!file) return std::unexpected(file.error());
        files.emplace(one.segment, std::move(*file));
    }
    return files;
}

}  // namespace rollring::ledger
