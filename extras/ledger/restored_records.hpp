#pragma once
// The records of a restore, as they are read: their checks, and older copies of damaged ones.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kept_records.hpp"
#include "record_stream.hpp"

namespace rollring::ledger {

// The record that was read, checked. Errors: checksum_mismatch (damaged, names the file and the
// offset), system (the disk cannot read it), not_a_ring (the index named another entry).
[[nodiscard]] Result<TrajectoryView> view_of(const RecordStream::Read& read, std::uint64_t number,
                                             const Kept& kept, const Schema& schema);

// Copies of records that were moved to a later file. An index does not tell whether the last copy
// is whole.
class OlderCopies {
  public:
    static Result<OlderCopies> open(const std::filesystem::path& directory, const Contents& found);
    // The newest whole one, valid until the next call; nothing if there is none.
    [[nodiscard]] std::optional<TrajectoryView> load(std::uint64_t number, const Schema& schema);

  private:
    std::unordered_map<std::uint64_t, std::vector<Kept>> copies_;
    std::map<std::uint64_t, recording::FileReader> files_;
    RecordMemory memory_;
};

// The number of records of each group.
class GroupMembers {
  public:
    explicit GroupMembers(const Book& book);
    [[nodiscard]] std::uint64_t groups() const { return members_.size(); }
    void lose(const GroupKey& key);

  private:
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> members_;
};

// The segments of the records, opened.
[[nodiscard]] Result<DataFiles> open_segments(const std::filesystem::path& directory,
                                              const Contents& found);

}  // namespace rollring::ledger
