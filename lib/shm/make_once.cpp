#include "make_once.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "bounds.hpp"
#include "fault_point.hpp"
#include "liveness.hpp"
#include "segment_object.hpp"

namespace rollring {
using namespace detail;

Result<void> detail::unlink_object(int fd, const std::string& object) {
    struct stat status{};
    if (fstat(fd, &status) != 0) {
        return failed(Errc::system, errno, "cannot fstat " + object);
    }
    if (status.st_nlink == 0 || shm_unlink(object.c_str()) == 0 || errno == ENOENT) return {};
    return failed(Errc::system, errno, "cannot remove " + object);
}

namespace {

enum class Found { finished, forming, leftover };

// Classifies the object of this name, and removes it if its creator died: the holder of its
// creation byte is the only process that may unlink the name.
Result<Found> clear_leftover(const std::string& object, const Maker& maker) {
    auto old = open_object(object);
    if (!old) {
        if (old.error().code == Errc::not_found) return Found::forming;  // gone meanwhile
        return std::unexpected(old.error());
    }
    const int fd = old->fd();
    if (auto owner = check_owner(fd, object); !owner) return std::unexpected(owner.error());
    const auto first_look = maker.finished(fd);
    if (!first_look) return std::unexpected(first_look.error());
    if (*first_look) return Found::finished;
    auto lock = LifeLock::take(fd, LifeByte::creation());
    if (!lock) return std::unexpected(lock.error());
    if (!lock->has_value()) return Found::forming;  // its creator lives: wait for it
    const auto second_look = maker.finished(fd);
    if (!second_look) return std::unexpected(second_look.error());
    if (*second_look) return Found::finished;
    FAULT_POINT("create.before_clear");
    if (auto gone = maker.clear(fd); !gone) return std::unexpected(gone.error());
    if (auto gone = unlink_object(fd, object); !gone) return std::unexpected(gone.error());
    return Found::leftover;
}

// A new object of that name; empty if the name is taken.
Result<std::optional<SharedObject>> make_object(const std::string& object) {
    auto made = SharedObject::make(object);
    if (made) return std::optional(std::move(*made));
    if (made.error() == EEXIST) return std::optional<SharedObject>{};
    if (made.error() != ENOSPC) {
        return failed(Errc::system, made.error(), fmt::format("cannot create {}", object));
    }
    const std::vector<MemoryBound> bounds = memory_bounds();
    const auto files = std::ranges::find(bounds, MemoryBound::Kind::files, &MemoryBound::kind);
    return files != bounds.end() && files->free == 0
               ? failed(Errc::not_enough_shared_memory, ENOSPC, shortage(*files, object, 0, {}))
               : no_space(ENOSPC, page_bytes, object);
}

// Takes the creation byte of the new object; empty if another process has taken the object for a
// leftover.
Result<std::optional<LifeLock>> claim(int fd) {
    auto lock = LifeLock::take(fd, LifeByte::creation());
    if (!lock || !lock->has_value()) return lock;
    struct stat status{};
    if (fstat(fd, &status) != 0) {
        return failed(Errc::system, errno, "cannot fstat the new object");
    }
    if (status.st_nlink == 0) return std::optional<LifeLock>{};
    return lock;
}

}  // namespace

Result<Made> detail::make_once(const std::string& object, Maker& maker, Deadline deadline) {
    for (;; pause_before_retry()) {
        auto shm = make_object(object);
        if (!shm) return std::unexpected(shm.error());
        if (!shm->has_value()) {
            auto found = clear_leftover(object, maker);
            if (!found) return std::unexpected(found.error());
            if (*found == Found::leftover) continue;
            if (*found == Found::forming && !deadline.passed()) continue;
            return Made{std::nullopt, *found == Found::forming};
        }
        FAULT_POINT("create.after_open");
        const int fd = (*shm)->fd();
        auto lock = claim(fd);
        if (!lock) return std::unexpected(lock.error());
        if (!lock->has_value()) {
            if (!deadline.passed()) continue;
            return refused(Errc::busy, "other processes kept removing the new object " + object);
        }
        FAULT_POINT("create.after_claim");
        if (auto built = maker.build(fd); !built) {
            static_cast<void>(maker.clear(fd));
            static_cast<void>(unlink_object(fd, object));
            return std::unexpected(built.error());
        }
        return Made{std::move(*shm)};
    }
}

Result<void> detail::lay_out(int fd, std::uint64_t object_bytes, std::uint64_t fixed_bytes,
                             std::string_view what, std::string_view remedy) {
    if (ftruncate(fd, static_cast<off_t>(object_bytes)) != 0) {
        return failed(Errc::system, errno, "cannot set the object's length");
    }
    if (const auto bound = bound_of_pages(fixed_bytes)) {
        return refused(Errc::not_enough_shared_memory, shortage(*bound, what, fixed_bytes, remedy));
    }
    const int error = allocate(fd, 0, fixed_bytes);
    if (error != 0) return no_space(error, fixed_bytes, what, remedy);
    FAULT_POINT("create.after_allocate");
    return {};
}

}  // namespace rollring
