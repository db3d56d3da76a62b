#pragma once
// The files of a recording's directory.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "rollring/error.hpp"

namespace rollring::recording {

struct NumberedFile {
    std::uint64_t number;
    std::filesystem::path path;
};

// "00000012.rollouts"
[[nodiscard]] std::string file_name(std::uint64_t number);
// The number in the name of a file, if it is one of a recording.
[[nodiscard]] std::optional<std::uint64_t> number_of(const std::filesystem::path& path);
// By number. Errc::not_found: there is no such directory.
[[nodiscard]] Result<std::vector<NumberedFile>> files_of(const std::filesystem::path& directory);

// The lock that a writer holds while it lives.
[[nodiscard]] std::filesystem::path lock_of(const std::filesystem::path& directory);
// Whether a living process writes the recording; takes no lock.
[[nodiscard]] bool is_written(const std::filesystem::path& directory);

// Makes the names of the files in it, and its own, as lasting as their bytes.
[[nodiscard]] Result<void> sync_names(const std::filesystem::path& directory);

// The error of a failed system call on a file.
[[nodiscard]] std::unexpected<Error> file_failed(int system_errno, const std::string& what,
                                                 const std::filesystem::path& path);

}  // namespace rollring::recording
