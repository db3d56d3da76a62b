#pragma once
// The files of a recording's directory.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "liveness.hpp"
#include "rollring/error.hpp"

namespace rollring::recording {

struct NumberedFile {
    std::uint64_t number;
    std::filesystem::path path;
};

inline constexpr std::string_view recording_ending = ".rollouts";

// "00000012.rollouts"
[[nodiscard]] std::string file_name(std::uint64_t number,
                                    std::string_view ending = recording_ending);
// The number in the name of a file, if it is one of these.
[[nodiscard]] std::optional<std::uint64_t> number_of(const std::filesystem::path& path,
                                                     std::string_view ending = recording_ending);
// By number. Errc::not_found: there is no such directory.
[[nodiscard]] Result<std::vector<NumberedFile>> files_of(
    const std::filesystem::path& directory, std::string_view ending = recording_ending);

// The lock that a writer holds while it lives.
[[nodiscard]] std::filesystem::path lock_of(const std::filesystem::path& directory);
// Takes the directory for this process; forked children close the descriptor. Errc::busy: another
// process has it. `what`: it writes, for people.
[[nodiscard]] Result<ProcessFd> lock_directory(const std::filesystem::path& directory,
                                               std::string_view what);
// A child that was forked just now may not have closed its copy of the descriptor yet.
void unlock_directory(const ProcessFd& held);
// Whether a living process writes the recording; takes no lock.
[[nodiscard]] bool is_written(const std::filesystem::path& directory);

// Makes the names of the files in it, and its own, as lasting as their bytes.
[[nodiscard]] Result<void> sync_names(const std::filesystem::path& directory);

// The error of a failed system call on a file.
[[nodiscard]] std::unexpected<Error> file_failed(int system_errno, const std::string& what,
                                                 const std::filesystem::path& path);

}  // namespace rollring::recording
