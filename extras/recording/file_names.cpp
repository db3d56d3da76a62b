#include "file_names.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "fd.hpp"

namespace rollring::recording {
namespace {

Errc code_of(int system_errno) {
    switch (system_errno) {
        case ENOENT:
            return Errc::not_found;
        case ENOTDIR:
            return Errc::invalid_argument;
        case EACCES:
        case EPERM:
        case EROFS:
            return Errc::permission_denied;
        default:
            return Errc::system;
    }
}

}  // namespace

std::string file_name(std::uint64_t number, std::string_view ending) {
    return fmt::format("{:08}{}", number, ending);
}

std::optional<std::uint64_t> number_of(const std::filesystem::path& path, std::string_view ending) {
    const std::string name = path.filename().string();
    if (!name.ends_with(ending)) return std::nullopt;
    const char* const end = name.data() + name.size() - ending.size();
    std::uint64_t number = 0;
    const auto [stop, wrong] = std::from_chars(name.data(), end, number);
    if (wrong != std::errc() || stop != end || file_name(number, ending) != name)
        return std::nullopt;
    return number;
}

Result<std::vector<NumberedFile>> files_of(const std::filesystem::path& directory,
                                           std::string_view ending) {
    std::vector<NumberedFile> files;
    std::error_code wrong;
    std::filesystem::directory_iterator at(directory, wrong);
    while (!wrong && at != std::filesystem::directory_iterator()) {
        if (const auto number = number_of(at->path(), ending))
            files.push_back({*number, at->path()});
        at.increment(wrong);
    }
    if (wrong) return file_failed(wrong.value(), "cannot read the directory", directory);
    std::ranges::sort(files, {}, &NumberedFile::number);
    return files;
}

std::filesystem::path lock_of(const std::filesystem::path& directory) {
    return directory / "writer.lock";
}

Result<ProcessFd> lock_directory(const std::filesystem::path& directory, std::string_view what) {
    const auto path = lock_of(directory);
    Fd held(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!held) return file_failed(errno, "cannot make", path);
    struct flock asked{};
    asked.l_type = F_WRLCK;
    asked.l_whence = SEEK_SET;
    if (fcntl(held.get(), F_OFD_SETLK, &asked) == 0) return ProcessFd(std::move(held));
    if (errno != EAGAIN && errno != EACCES) return file_failed(errno, "cannot lock", path);
    return refused(Errc::busy, fmt::format("another process writes the {} {}: choose another "
                                           "directory, or end that process",
                                           what, directory.string()));
}

void unlock_directory(const ProcessFd& held) {
    struct flock asked{};
    asked.l_type = F_UNLCK;
    asked.l_whence = SEEK_SET;
    if (held) fcntl(held.get(), F_OFD_SETLK, &asked);
}

bool is_written(const std::filesystem::path& directory) {
    const Fd lock(open(lock_of(directory).c_str(), O_RDONLY | O_CLOEXEC));
    if (!lock) return false;
    struct flock asked{};
    asked.l_type = F_RDLCK;
    asked.l_whence = SEEK_SET;
    return fcntl(lock.get(), F_OFD_GETLK, &asked) == 0 && asked.l_type != F_UNLCK;
}

Result<void> sync_names(const std::filesystem::path& directory) {
    const auto whole = std::filesystem::absolute(directory).lexically_normal();
    for (const auto& path : {whole, whole.parent_path()}) {
        const Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!folder) return file_failed(errno, "cannot open", path);
        if (fsync(folder.get()) != 0) return file_failed(errno, "cannot sync", path);
    }
    return {};
}

std::unexpected<Error> file_failed(int system_errno, const std::string& what,
                                   const std::filesystem::path& path) {
    return failed(code_of(system_errno), system_errno, fmt::format("{} {}", what, path.string()));
}

}  // namespace rollring::recording
