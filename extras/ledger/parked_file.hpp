#pragma once
// The files of parked rollouts, in the folder `parked` of a ledger. Each is written under another
// name, and renamed once the disk has it: a file that is there is whole, or damaged.
//
// A process that has a file holds a lock on it, so that the death of the process gives it back. A
// file that is being written is locked, too, so that one whose writer died can be told apart.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chunk.hpp"
#include "file_scan.hpp"
#include "ledger_layout.hpp"
#include "liveness.hpp"
#include "rollring/error.hpp"
#include "rollring/extras/parked.hpp"
#include "rollring/schema.hpp"
#include "rollring/trajectory.hpp"

namespace rollring::ledger {

inline constexpr recording::FileType parked_type{
    {'R', 'R', 'P', 'A', 'R', 'K', 'D', '\n'}, 1, "parked rollouts"};
inline constexpr std::string_view parked_ending = ".parked";
inline constexpr std::string_view unfinished_ending = ".unfinished";

// The entries of a file, in this order; nothing follows them.
enum class ParkedKind : std::uint32_t {
    ring = 32,    // the name of the ring that it was parked for
    record = 33,  // as it lies in a ring
    state = 34,
};

[[nodiscard]] std::filesystem::path parked_folder(const std::filesystem::path& ledger_dir);
// By their times; none if there is no such folder.
[[nodiscard]] Result<std::vector<std::filesystem::path>> parked_files(
    const std::filesystem::path& ledger_dir, std::string_view ending = parked_ending);

struct ParkedText {
    std::string_view ring;
    const Schema* schema;
    std::uint64_t record_bytes;
    std::function<void(std::span<std::byte>)> write_record;  // 64-byte aligned
    std::span<const std::byte> state;
    std::int64_t parked_ns;
};

// Returns once the disk has it. `name`: of the file; empty: a new one.
[[nodiscard]] Result<void> write_parked(const std::filesystem::path& ledger_dir,
                                        const ParkedText& text, std::string name = {});

// A file's contents, checked.
struct ParkedContents {
    Schema schema;
    std::string ring;
    std::int64_t parked_ns = 0;
    std::uint64_t file_bytes = 0;
    BlockBuffer record_memory;
    BlockBuffer state_memory;
    TrajectoryView record;
    std::span<const std::byte> state;
};

// Whether a file of that ring is of interest.
using OfRing = std::function<bool(std::string_view ring)>;
// Nothing: the ring is not of interest. Errors: those of FileReader::open, checksum_mismatch,
// abi_mismatch, bad_record.
[[nodiscard]] Result<std::optional<ParkedContents>> read_parked(const std::filesystem::path& path,
                                                                const OfRing& of_ring = {});

// Nothing: another process has it, or it is gone.
[[nodiscard]] Result<std::optional<LifeLock>> take_file(const std::filesystem::path& path);
[[nodiscard]] bool is_taken(const std::filesystem::path& path);
// Whether the rollouts that no process has fill so many bytes, together with that many more.
[[nodiscard]] bool exceeds(const std::filesystem::path& ledger_dir, std::uint64_t most_bytes,
                           std::uint64_t more_bytes);
// Those whose writer has died.
void remove_unfinished(const std::filesystem::path& ledger_dir);

// Copies the rollouts of one ledger into another one, for the ring of that name. Returns the
// damage, for people.
[[nodiscard]] Result<std::vector<std::string>> copy_parked(const std::filesystem::path& from,
                                                           const std::filesystem::path& to,
                                                           std::string_view ring);

}  // namespace rollring::ledger
