#include "kept_records.hpp"

#include <fmt/core.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "parked_file.hpp"

namespace rollring::ledger {

Result<Contents> scan_ledger(const std::filesystem::path& directory, const ScanOptions& options) {
    auto found = scan(directory, options);
    if (!found || !found->empty) return found;
    const auto parked = parked_files(directory);
    const bool has_parked = parked && !parked->empty();
    return refused(Errc::not_found,
                   fmt::format("{} has no ledger{}", directory.string(),
                               has_parked ? ", but parked rollouts: workers of a new ring of the "
                                            "same name, with its ledger there, take them up"
                                          : ""));
}

std::string failure_of(const std::filesystem::path& directory) {
    std::ifstream file(directory / failed_name);
    if (!file) return {};
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    while (text.ends_with('\n')) text.pop_back();
    return text.empty() ? fmt::format("the ledger {} has failed", directory.string()) : text;
}

std::uint64_t groups_of(const Book& book) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> keys;
    for (const auto& [number, one] : book.records()) keys.emplace(one.key.low, one.key.high);
    return keys.size();
}

namespace {

std::unexpected<Error> damaged(const std::filesystem::path& path, const Kept& record,
                               std::string_view what) {
    return refused(Errc::checksum_mismatch,
                   fmt::format("{}: the record at byte {} {}", path.string(), record.offset, what));
}

}  // namespace

Result<TrajectoryView> view_in(std::span<const std::byte> payload,
                               const std::filesystem::path& path, const Kept& record,
                               const Schema& schema) {
    if (payload.size() <= sizeof(RecordOrigin)) return damaged(path, record, "is damaged");
    TrajectoryView view;
    const std::string_view wrong = view.parse(payload.subspan(sizeof(RecordOrigin)), schema);
    if (!wrong.empty()) return damaged(path, record, wrong);
    return view;
}

Result<TrajectoryView> load(const recording::FileReader& file, const Kept& record,
                            const Schema& schema, RecordMemory& memory) {
    const auto entry = file.entry_at(record.offset);
    if (!entry) return std::unexpected(entry.error());
    if (!*entry) return damaged(file.path(), record, "is damaged");
    const std::uint64_t bytes = (*entry)->payload_bytes;
    memory.resize(padded(bytes) / line);
    auto* const at = reinterpret_cast<std::byte*>(memory.data());
    if (auto read = file.read_payload(record.offset, **entry, at); !read) {
        return std::unexpected(read.error());
    }
    return view_in({at, bytes}, file.path(), record, schema);
}

}  // namespace rollring::ledger
