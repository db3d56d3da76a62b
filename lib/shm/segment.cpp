#include "segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "liveness.hpp"
#include "segment_object.hpp"

namespace bip = boost::interprocess;

namespace rollring {
namespace detail {

constexpr const char* shm_directory = "/dev/shm";

std::string object_prefix() {
    return fmt::format("rollring.{}.", getuid());
}

Error system_error(Errc code, int error, std::string message) {
    return Error{code, error, std::move(message)};
}

// On many kernels posix_fallocate on a tmpfs is undone by any signal, and a large lane may never
// get done between two ticks of a profiler. So after the first signal it goes on in pieces, and
// those that are done stay. In one go where it can be: what does not fit is then undone as a whole.
int allocate(int fd, std::uint64_t offset, std::uint64_t bytes) {
    constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
    std::uint64_t done = 0;
    std::uint64_t next = bytes;
    for (;;) {
        const int error =
            posix_fallocate(fd, static_cast<off_t>(offset + done), static_cast<off_t>(next));
        if (error != 0 && error != EINTR) return error;
        if (error == 0) done += next;
        if (done == bytes) return 0;
        next = std::min(piece_bytes, bytes - done);
    }
}

bool read_at(int fd, std::uint64_t offset, void* to, std::uint64_t bytes) {
    ssize_t got = 0;
    do {
        got = pread(fd, to, bytes, static_cast<off_t>(offset));
    } while (got < 0 && errno == EINTR);
    if (got >= 0) errno = 0;
    return got == static_cast<ssize_t>(bytes);
}

Error unreadable(const std::string& object) {
    return system_error(Errc::system, errno, "cannot read " + object);
}

Geometry geometry_of(const SegmentHeader& header) {
    return {header.lane_count,  header.journal_records, header.lane_bytes,    header.soft_bytes,
            header.spill_bytes, header.group_rows,      header.overflow_bytes};
}

Result<void> check_header(const SegmentHeader& header, const std::string& object,
                          std::uint64_t object_bytes) {
    const auto damaged = [&](std::string_view what) {
        return std::unexpected(
            Error{Errc::not_a_ring, 0,
                  fmt::format("{} is not a usable ring: {}; remove it with 'rollring rm'", object,
                              what)});
    };
    if (header.magic != segment_magic) return damaged("wrong magic");
    if (header.abi != abi_version || header.header_bytes != sizeof(SegmentHeader)) {
        return std::unexpected(
            Error{Errc::abi_mismatch, 0,
                  fmt::format("{} has ABI {} (header {} B), this program ABI {} (header {} B): run "
                              "one version of rollring on both sides",
                              object, header.abi, header.header_bytes, abi_version,
                              sizeof(SegmentHeader))});
    }
    if (header.check != XXH3_64bits(&header, check_bytes)) return damaged("header check fails");
    if (header.lane_count == 0 || header.lane_count > lanes_max) return damaged("lane count");
    if (header.lane_bytes < page_bytes || header.lane_bytes > lane_bytes_max ||
        header.lane_bytes % page_bytes != 0) {
        return damaged("lane bytes");
    }
    if (header.journal_records == 0 || header.journal_records > (1U << 24)) {
        return damaged("journal records");
    }
    if (header.spill_bytes > lane_bytes_max || header.spill_bytes % page_bytes != 0) {
        return damaged("spill bytes");
    }
    if (header.overflow_bytes % page_bytes != 0 ||
        header.overflow_bytes > lane_bytes_max - header.spill_bytes ||
        (header.overflow_bytes != 0 && header.spill_bytes == 0)) {
        return damaged("overflow bytes");
    }
    if (header.group_rows == 0 || header.group_rows > group_rows_max) return damaged("group rows");
    if (header.segment_bytes != geometry_of(header).segment_bytes() ||
        header.segment_bytes != object_bytes) {
        return damaged(
            fmt::format("it has {} bytes, its header says {}", object_bytes, header.segment_bytes));
    }
    return {};
}

Result<bip::shared_memory_object> open_object(const std::string& object, Access access) {
    try {
        return bip::shared_memory_object(
            bip::open_only, object.c_str() + 1,
            access == Access::read_only ? bip::read_only : bip::read_write);
    } catch (const bip::interprocess_exception& refusal) {
        const int error = refusal.get_native_error();
        if (error == ENOENT) {
            const std::string name = object.substr(1 + object_prefix().size());
            return std::unexpected(
                Error{Errc::not_found, 0,
                      fmt::format("no ring {}: 'rollring ls' lists those of this user", name)});
        }
        return std::unexpected(
            system_error(error == EACCES || error == ELOOP ? Errc::permission_denied : Errc::system,
                         error, fmt::format("cannot open {}", object)));
    }
}

void pause_before_retry() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace detail

struct Mapping::Region {
    bip::mapped_region region;
};
Mapping::Mapping() = default;
Mapping::Mapping(Mapping&&) noexcept = default;
Mapping& Mapping::operator=(Mapping&&) noexcept = default;
Mapping::~Mapping() = default;

void Mapping::populate(std::uint64_t offset, std::uint64_t bytes, bool to_write) const {
    // Linux 5.14; Boost knows no such advice.
    constexpr int populate_read = 22;
    constexpr int populate_write = 23;
    madvise(data_ + offset, bytes, to_write ? populate_write : populate_read);
}

Segment::Segment(std::unique_ptr<Object> object) : object_(std::move(object)) {}
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

const std::string& Segment::name() const {
    return object_->name;
}
const Geometry& Segment::geometry() const {
    return object_->geometry;
}
const SegmentHeader& Segment::header() const {
    return object_->header.get();
}
int Segment::fd() const {
    return object_->fd();
}
const std::string& Segment::overflow_path() const {
    return object_->overflow_path;
}

Result<std::string> Segment::object_name(std::string_view name) {
    const bool plain = std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-' || c == '.';
    });
    if (name.empty() || name.size() > 128 || !plain) {
        return std::unexpected(
            Error{Errc::invalid_argument, 0,
                  fmt::format("'{}' is no ring name: use 1 to 128 of A-Z a-z 0-9 _ - .", name)});
    }
    return fmt::format("/{}{}", detail::object_prefix(), name);
}

Segment::Space Segment::shared_memory() {
    struct statvfs status{};
    if (statvfs(detail::shm_directory, &status) != 0) return {0, 0};
    return {std::uint64_t{status.f_bavail} * status.f_frsize,
            std::uint64_t{status.f_blocks} * status.f_frsize};
}

std::vector<std::string> Segment::list() {
    std::vector<std::string> names;
    const std::string prefix = detail::object_prefix();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(detail::shm_directory, error)) {
        const std::string file = entry.path().filename().string();
        if (file.starts_with(prefix)) names.push_back(file.substr(prefix.size()));
    }
    std::ranges::sort(names);
    return names;
}

Result<Segment> Segment::attach(std::string_view name, Deadline deadline, Access access) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    for (;;) {
        auto shm = detail::open_object(*object, access);
        if (!shm && shm.error().code != Errc::not_found) {
            return std::unexpected(detail::explain(shm.error(), *object));
        }
        if (shm) {
            const int fd = shm->get_mapping_handle().handle;
            auto status = detail::check_owner(fd, *object);
            if (!status) return std::unexpected(status.error());
            auto made = std::make_unique<Object>();
            const bool whole =
                detail::read_at(fd, 0, made->header.bytes, sizeof made->header.bytes);
            if (!whole && errno != 0) return std::unexpected(detail::unreadable(*object));
            if (whole && made->header.ready()) {
                const SegmentHeader& header = made->header.get();
                auto checked = detail::check_header(header, *object,
                                                    static_cast<std::uint64_t>(status->st_size));
                if (!checked) return std::unexpected(checked.error());
                made->name = *object;
                made->geometry = detail::geometry_of(header);
                if (header.overflow_bytes != 0) {
                    auto path = detail::overflow_path(fd, header.ring_id);
                    if (!path && errno != 0) return std::unexpected(detail::unreadable(*object));
                    if (!path) {
                        return std::unexpected(
                            Error{Errc::not_a_ring, 0,
                                  fmt::format("{} is not a usable ring: the name of its overflow "
                                              "file is damaged; remove it with 'rollring rm'",
                                              *object)});
                    }
                    made->overflow_path = std::move(*path);
                }
                SchemaPage schema;
                const bool read =
                    detail::read_at(fd, made->geometry.schema_offset(), &schema, sizeof schema);
                if (!read && errno != 0) return std::unexpected(detail::unreadable(*object));
                if (!read || XXH3_64bits(&schema, sizeof schema) != header.schema_id) {
                    return std::unexpected(Error{
                        Errc::not_a_ring, 0,
                        fmt::format("{} is not a usable ring: its schema page is damaged; remove "
                                    "it with 'rollring rm'",
                                    *object)});
                }
                made->shm = std::move(*shm);
                return Segment(std::move(made));
            }
            if (whole && made->header.get().magic != 0 &&
                made->header.get().magic != segment_magic) {
                return std::unexpected(
                    detail::check_header(made->header.get(), *object, 0).error());
            }
            if (deadline.passed()) {
                const bool creating = alive(fd, LifeByte::creation());
                return std::unexpected(Error{
                    Errc::not_ready, 0,
                    fmt::format("ring {} is not finished: its creator {}", *object,
                                creating ? "is still at work"
                                         : "died; 'rollring create' or 'rollring doctor --fix' "
                                           "clears the leftover")});
            }
        }
        if (!shm && deadline.passed()) {
            return std::unexpected(detail::explain(shm.error(), *object));
        }
        detail::pause_before_retry();
    }
}

bool Segment::linked() const {
    struct stat status{};
    return fstat(fd(), &status) != 0 || status.st_nlink > 0;
}

// A remover holds the creation byte while it looks for life and unlinks: it sees our byte, or we
// see its.
Result<bool> Segment::stays(Deadline deadline) const {
    while (alive(fd(), LifeByte::creation())) {
        if (deadline.passed()) {
            return std::unexpected(
                Error{Errc::not_ready, 0,
                      fmt::format("ring {} is being made or removed by another process", name())});
        }
        detail::pause_before_retry();
    }
    struct stat status{};
    if (fstat(fd(), &status) == 0) return status.st_nlink > 0;
    return std::unexpected(detail::system_error(Errc::system, errno, "cannot fstat " + name()));
}

std::uint64_t Segment::resident_bytes() const {
    struct stat status{};
    return fstat(fd(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

Result<Mapping> Segment::map(std::uint64_t offset, std::uint64_t bytes, bool writable) const {
    try {
        Mapping mapping;
        mapping.region_ = std::make_unique<Mapping::Region>(Mapping::Region{
            bip::mapped_region(object_->shm, writable ? bip::read_write : bip::read_only,
                               static_cast<bip::offset_t>(offset), bytes)});
        mapping.data_ = static_cast<std::byte*>(mapping.region_->region.get_address());
        mapping.bytes_ = bytes;
        return mapping;
    } catch (const bip::interprocess_exception& refusal) {
        return std::unexpected(detail::system_error(
            Errc::system, refusal.get_native_error(),
            fmt::format("cannot map {} at {} of {}: is RLIMIT_AS (ulimit -v) too low?",
                        human_bytes(bytes), offset, name())));
    }
}

Result<void> Segment::reserve(std::uint64_t offset, std::uint64_t bytes, std::string_view what,
                              std::string_view remedy) const {
    const int error = detail::allocate(fd(), offset, bytes);
    if (error == 0) return {};
    if (error == ENOSPC || error == ENOMEM) {
        return std::unexpected(
            detail::no_space(error, bytes, fmt::format("{} of {}", what, name()), remedy));
    }
    return std::unexpected(
        detail::system_error(Errc::system, error, "cannot reserve pages of " + name()));
}

void Segment::give_back(std::uint64_t offset, std::uint64_t bytes) const {
    fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

// Pages that are reserved and not written count as a hole.
void Segment::give_back_unused(std::uint64_t offset, std::uint64_t bytes) const {
    const off_t data = lseek(fd(), static_cast<off_t>(offset), SEEK_DATA);
    const bool unused = data < 0 ? errno == ENXIO : data >= static_cast<off_t>(offset + bytes);
    if (unused) give_back(offset, bytes);
}

bool Segment::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    return detail::read_at(fd(), offset, to, bytes);
}

}  // namespace rollring
