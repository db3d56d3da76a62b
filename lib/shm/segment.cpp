#include "segment.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "bounds.hpp"
#include "liveness.hpp"
#include "rollring/schema.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

namespace rollring {
namespace detail {

constexpr const char* shm_directory = "/dev/shm";

std::string object_prefix() {
    return fmt::format("rollring.{}.", getuid());
}

std::vector<std::string> files_of_user() {
    std::vector<std::string> files;
    const std::string prefix = object_prefix();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(shm_directory, error)) {
        std::string file = entry.path().filename().string();
        if (file.starts_with(prefix)) files.push_back(std::move(file));
    }
    std::ranges::sort(files);
    return files;
}

std::string_view ring_of(std::string_view object) {
    // The name behind "/rollring.<uid>.", with the uid of the process that opened it: a process may
    // change its own.
    return object.substr(object.find('.', object.find('.') + 1) + 1);
}

std::unexpected<Error> unreadable(const std::string& object) {
    return failed(Errc::system, errno, "cannot read " + object);
}

Geometry geometry_of(const SegmentHeader& header) {
    return {header.lane_count,  header.journal_records, header.lane_bytes,    header.soft_bytes,
            header.spill_bytes, header.group_rows,      header.overflow_bytes};
}

std::uint64_t owner_mark_of(std::uint64_t ring_id) {
    constexpr std::uint64_t seed = 0x72656e776f;
    return XXH3_64bits_withSeed(&ring_id, sizeof ring_id, seed) | 1;
}

std::uint64_t purpose_mark_of(std::uint64_t ring_id, Purpose purpose) {
    constexpr std::uint64_t seed = 0x65736f70727570;
    if (purpose == Purpose::records) return 0;
    return XXH3_64bits_withSeed(&ring_id, sizeof ring_id, seed + static_cast<int>(purpose)) | 1;
}

Result<void> check_header(const SegmentHeader& header, const std::string& object,
                          std::uint64_t object_bytes) {
    const auto damaged = [&](std::string_view what) {
        return refused(
            Errc::not_a_ring,
            fmt::format("{} is not a usable ring: {}; remove it with 'rollring rm'", object, what));
    };
    if (header.magic != segment_magic) return damaged("wrong magic");
    if (header.abi != abi_version || header.header_bytes != sizeof(SegmentHeader)) {
        return refused(
            Errc::abi_mismatch,
            fmt::format("{} has ABI {} (header {} B), this program ABI {} (header {} B): run "
                        "one version of rollring on both sides",
                        object, header.abi, header.header_bytes, abi_version,
                        sizeof(SegmentHeader)));
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
    if (header.requests > requests_max || header.request_bytes % page_bytes != 0 ||
        header.request_bytes > lane_bytes_max ||
        (header.requests == 0) != (header.request_bytes == 0)) {
        return damaged("requests");
    }
    if (header.segment_bytes != geometry_of(header).segment_bytes() ||
        header.segment_bytes != object_bytes) {
        return damaged(
            fmt::format("it has {} bytes, its header says {}", object_bytes, header.segment_bytes));
    }
    return {};
}

Result<SharedObject> open_object(const std::string& object, Access access) {
    auto opened = SharedObject::open(object, access);
    if (opened) return std::move(*opened);
    const int error = opened.error();
    if (error == ENOENT) {
        const std::string_view name = ring_of(object);
        return refused(Errc::not_found, fmt::format("ring {} not found; create it with 'rollring "
                                                    "create {}', or list rings with 'rollring ls'",
                                                    name, name));
    }
    return failed(error == EACCES || error == ELOOP ? Errc::permission_denied : Errc::system, error,
                  fmt::format("cannot open {}", object));
}

void pause_before_retry() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace detail

Segment::Segment(NamedObject named, std::unique_ptr<Object> object)
    : NamedObject(std::move(named)), object_(std::move(object)) {}
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

std::string_view Segment::ring() const {
    return detail::ring_of(name());
}
const Geometry& Segment::geometry() const {
    return object_->geometry;
}
const SegmentHeader& Segment::header() const {
    return object_->header.get();
}
Purpose Segment::purpose() const {
    const SegmentHeader& seen = header();
    return seen.purpose_mark == detail::purpose_mark_of(seen.ring_id, Purpose::values)
               ? Purpose::values
               : Purpose::records;
}

const std::string& Segment::overflow_path() const {
    return object_->overflow_path;
}

const LedgerPlan& Segment::ledger() const {
    return object_->ledger;
}

Result<std::string> Segment::object_name(std::string_view name) {
    const bool plain = std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-' || c == '.';
    });
    if (name.empty() || name.size() > 128 || !plain) {
        return refused(
            Errc::invalid_argument,
            fmt::format("invalid ring name '{}': use 1 to 128 of A-Z a-z 0-9 _ - .", name));
    }
    return fmt::format("/{}{}", detail::object_prefix(), name);
}

std::vector<std::string> Segment::list() {
    std::vector<std::string> names;
    for (const std::string& file : detail::files_of_user()) {
        std::string name = file.substr(detail::object_prefix().size());
        if (object_name(name)) names.push_back(std::move(name));
    }
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
            const int fd = shm->fd();
            if (auto ours = detail::check_owner(fd, *object); !ours) {
                return std::unexpected(ours.error());
            }
            auto made = std::make_unique<Object>();
            const auto size = detail::finished_size(
                fd, *object, made->header, [](const auto& image) { return image.ready(); });
            if (!size) return std::unexpected(size.error());
            if (*size) {
                const SegmentHeader& header = made->header.get();
                auto checked = detail::check_header(header, *object, **size);
                if (!checked) return std::unexpected(checked.error());
                made->geometry = detail::geometry_of(header);
                if (header.overflow_bytes != 0) {
                    auto path = detail::overflow_path(fd, header.ring_id);
                    if (!path && errno != 0) return detail::unreadable(*object);
                    if (!path) {
                        return refused(
                            Errc::not_a_ring,
                            fmt::format("{} is not a usable ring: the name of its overflow "
                                        "file is damaged; remove it with 'rollring rm'",
                                        *object));
                    }
                    made->overflow_path = std::move(*path);
                }
                auto ledger = read_ledger_place(fd, header.ring_id, *object);
                if (!ledger) return std::unexpected(ledger.error());
                made->ledger = std::move(*ledger);
                SchemaPage schema;
                const bool read =
                    detail::read_at(fd, made->geometry.schema_offset(), &schema, sizeof schema);
                if (!read && errno != 0) return detail::unreadable(*object);
                if (!read || XXH3_64bits(&schema, sizeof schema) != header.schema_id) {
                    return refused(
                        Errc::not_a_ring,
                        fmt::format("{} is not a usable ring: its schema page is damaged; remove "
                                    "it with 'rollring rm'",
                                    *object));
                }
                return Segment(NamedObject(std::move(*object), std::move(*shm)), std::move(made));
            }
            if (made->header.get().magic != 0 && made->header.get().magic != segment_magic) {
                return std::unexpected(
                    detail::check_header(made->header.get(), *object, 0).error());
            }
            if (deadline.passed()) {
                const bool creating = alive(fd, LifeByte::creation());
                return refused(
                    Errc::not_ready,
                    fmt::format(
                        "ring {} is not finished: its creator {}", detail::ring_of(*object),
                        creating
                            ? "is still at work"
                            : "died; 'rollring create' or 'rollring doctor --fix' removes it"));
            }
        }
        if (!shm && deadline.passed()) {
            return std::unexpected(detail::explain(shm.error(), *object));
        }
        detail::pause_before_retry();
    }
}

void Segment::tell_removed() const {
    detail::mark_removed(fd(), name());
}

// A remover holds the creation byte while it looks for life and unlinks: it sees our byte, or we
// see its byte.
Result<bool> Segment::stays(Deadline deadline) const {
    while (alive(fd(), LifeByte::creation())) {
        if (deadline.passed()) {
            return refused(
                Errc::not_ready,
                fmt::format("ring {} is being made or removed by another process", ring()));
        }
        detail::pause_before_retry();
    }
    struct stat status{};
    if (fstat(fd(), &status) == 0) return status.st_nlink > 0;
    return failed(Errc::system, errno, "cannot fstat " + name());
}

}  // namespace rollring
