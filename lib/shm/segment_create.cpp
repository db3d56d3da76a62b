#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "bounds.hpp"
#include "fault_point.hpp"
#include "liveness.hpp"
#include "overflow_file.hpp"
#include "rollring/schema.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

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

// Clears a leftover whose creator died. Holding its creation byte makes us the only one who may
// unlink the name. True when the name is free again, or when the caller should look once more.
Result<bool> clear_leftover(const std::string& object) {
    auto old = open_object(object);
    if (!old) {
        if (old.error().code == Errc::not_found) return true;  // gone meanwhile
        return std::unexpected(old.error());
    }
    const int fd = old->fd();
    if (auto owner = check_owner(fd, object); !owner) return std::unexpected(owner.error());
    // What cannot be read is not proven to be a leftover.
    const auto finished = [&]() -> Result<bool> {
        HeaderImage image;
        if (read_at(fd, 0, image.bytes, sizeof image.bytes)) return image.ready();
        if (errno != 0) return unreadable(object);
        return false;
    };
    const auto first_look = finished();
    if (!first_look) return first_look;
    if (*first_look) return false;
    auto lock = LifeLock::take(fd, LifeByte::creation());
    if (!lock) return std::unexpected(lock.error());
    if (!lock->has_value()) return true;  // its creator lives: wait for it
    const auto second_look = finished();
    if (!second_look) return second_look;
    if (*second_look) return false;
    FAULT_POINT("create.before_clear");
    if (auto gone = unlink_overflow(fd, object); !gone) return std::unexpected(gone.error());
    if (auto gone = unlink_object(fd, object); !gone) return std::unexpected(gone.error());
    return true;
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

// Takes the creation byte of our fresh object; empty if someone took it for a leftover meanwhile.
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

HeaderImage make_header(const Geometry& geometry, const SchemaPage& schema, Purpose purpose,
                        bool owned) {
    HeaderImage image;
    auto& header = *reinterpret_cast<SegmentHeader*>(image.bytes);
    header.magic = segment_magic;
    header.abi = abi_version;
    header.header_bytes = sizeof(SegmentHeader);
    header.segment_bytes = geometry.segment_bytes();
    header.lane_bytes = geometry.lane_bytes;
    header.lane_count = geometry.lane_count;
    header.journal_records = geometry.journal_records;
    header.soft_bytes = geometry.soft_bytes;
    header.spill_bytes = geometry.spill_bytes;
    header.group_rows = geometry.group_rows;
    header.overflow_bytes = geometry.overflow_bytes;
    header.requests = geometry.requests;
    header.request_bytes = geometry.request_bytes;
    if (getrandom(&header.ring_id, sizeof header.ring_id, 0) < 0) {
        header.ring_id = static_cast<std::uint64_t>(realtime_ns());
    }
    header.created_ns = realtime_ns();
    header.schema_id = XXH3_64bits(&schema, sizeof schema);
    header.check = XXH3_64bits(&header, check_bytes);
    if (owned) header.owner_mark = owner_mark_of(header.ring_id);
    header.purpose_mark = purpose_mark_of(header.ring_id, purpose);
    return image;
}

// Fills a fresh object; `phase` is stored last. `overflow`: empty, or the path of a file that is
// made once the object names it.
Result<void> build(int fd, const HeaderImage& image, const Geometry& geometry,
                   const SchemaPage& schema, const std::string& overflow) {
    if (ftruncate(fd, static_cast<off_t>(geometry.segment_bytes())) != 0) {
        return failed(Errc::system, errno, "cannot set the object's length");
    }
    if (const auto bound = bound_of_pages(geometry.fixed_bytes())) {
        return refused(Errc::not_enough_shared_memory,
                       shortage(*bound, "the control memory of a ring", geometry.fixed_bytes(),
                                "lower --lanes or --journal-records"));
    }
    if (const int error = allocate(fd, 0, geometry.fixed_bytes()); error != 0) {
        return no_space(error, geometry.fixed_bytes(), "the control memory of a ring");
    }
    if (least_memory_bound().free < geometry.stride(0)) {
        return no_space(0, geometry.stride(0), "a single lane");
    }
    FAULT_POINT("create.after_allocate");
    const auto control_pages = Mapping::of(fd, 0, geometry.fixed_bytes(), true);
    if (!control_pages) {
        return failed(Errc::system, control_pages.error(), "cannot map the new ring");
    }
    std::byte* base = control_pages->data();
    std::memcpy(base + geometry.schema_offset(), &schema, sizeof schema);
    reinterpret_cast<PolicyPage*>(base + geometry.policy_offset())->version = -1;
    auto* control = reinterpret_cast<ReaderControl*>(base + geometry.reader_offset());
    poke(control->last_acked_step, std::int64_t{-1});
    // Before a consumer comes, too: what is let in then would have to be completed. A plain
    // consumer, who forms no groups, lifts the bounds.
    poke(control->max_open_groups, geometry.open_groups_most());
    poke(control->room_bytes, geometry.spill_bytes / 4 * 3);
    poke(control->room_most, geometry.lane_count * geometry.lane_bytes + geometry.spill_bytes);
    const OverflowPath named = OverflowFile::to_page(overflow, image.get().ring_id);
    std::memcpy(base + overflow_path_offset, &named, sizeof named);
    std::memcpy(base, image.bytes, offsetof(SegmentHeader, phase));
    if (!overflow.empty()) {
        auto made = OverflowFile::make(overflow, geometry.capacity(geometry.spill_lane()),
                                       image.get().ring_id);
        if (!made) return made;
    }
    FAULT_POINT("create.before_ready");
    store_release(reinterpret_cast<SegmentHeader*>(base)->phase,
                  static_cast<std::uint32_t>(Phase::ready));
    return {};
}

}  // namespace

Result<Segment> Segment::create(std::string_view name, const Geometry& geometry,
                                const SchemaPage& schema, Purpose purpose, Deadline deadline,
                                const std::string& overflow_dir, std::optional<LifeLock>* owner) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    // The system would end the process with SIGXFSZ, and the object would stay unfinished.
    if (const auto bound = bound_of_length(geometry.segment_bytes())) {
        return failed(Errc::not_enough_shared_memory, EFBIG,
                      shortage(*bound, fmt::format("ring {}", name), geometry.segment_bytes(),
                               "lower --lanes, --lane-bytes or --spill-bytes"));
    }
    const HeaderImage image = make_header(geometry, schema, purpose, owner != nullptr);
    std::string overflow;
    if (geometry.overflow_bytes != 0) {
        auto path = OverflowFile::path_in(overflow_dir, *object, image.get().ring_id);
        if (!path) return std::unexpected(path.error());
        overflow = std::move(*path);
    }
    for (;; pause_before_retry()) {
        auto shm = make_object(*object);
        if (!shm) return std::unexpected(shm.error());
        if (!shm->has_value()) {
            auto cleared = clear_leftover(*object);
            if (!cleared) return std::unexpected(cleared.error());
            if (*cleared && !deadline.passed()) continue;
            return refused(
                Errc::already_exists,
                fmt::format(
                    "ring {} already exists{}: attach to it, or remove it with 'rollring rm {}'",
                    name, *cleared ? " and its creator is still at work" : "", name));
        }
        FAULT_POINT("create.after_open");
        auto lock = claim((*shm)->fd());
        if (!lock) return std::unexpected(lock.error());
        if (!lock->has_value()) {
            if (!deadline.passed()) continue;
            return refused(Errc::busy, "other processes kept removing the new object " + *object);
        }
        FAULT_POINT("create.after_claim");
        if (owner != nullptr) {
            auto owned = LifeLock::take((*shm)->fd(), LifeByte::owner());
            if (!owned) return std::unexpected(owned.error());
            *owner = std::move(*owned);
        }
        if (auto built = build((*shm)->fd(), image, geometry, schema, overflow); !built) {
            static_cast<void>(unlink_overflow((*shm)->fd(), *object));
            static_cast<void>(unlink_object((*shm)->fd(), *object));
            return std::unexpected(built.error());
        }
        auto made = std::make_unique<Object>();
        made->name = *object;
        made->shm = std::move(**shm);
        made->header = image;
        made->geometry = geometry;
        made->overflow_path = std::move(overflow);
        return Segment(std::move(made));
    }
}

// For producers that live: they look at this word with every record, and see it at once.
void detail::mark_removed(int fd, const std::string& object) {
    HeaderImage image;
    struct stat status{};
    if (fstat(fd, &status) != 0 || status.st_nlink != 0) return;
    if (!read_at(fd, 0, image.bytes, sizeof image.bytes) || !image.ready()) return;
    if (!check_header(image.get(), object, static_cast<std::uint64_t>(status.st_size))) return;
    const std::uint32_t removed = 1;
    const std::uint64_t at =
        geometry_of(image.get()).policy_offset() + offsetof(PolicyPage, removed);
    // Who cannot be told finds out by the name, a little later.
    [[maybe_unused]] const auto told = pwrite(fd, &removed, sizeof removed, static_cast<off_t>(at));
}

namespace {

bool attached(int fd) {
    bool found = alive(fd, LifeByte::consumer()) || alive(fd, LifeByte::request_board()) ||
                 alive(fd, LifeByte::owner()) || alive(fd, LifeByte::server());
    for (std::uint32_t lane = 0; lane < lanes_max && !found; lane++) {
        found = alive(fd, LifeByte::lane(lane));
    }
    for (std::uint32_t seat = 0; seat < request_seats && !found; seat++) {
        found = alive(fd, LifeByte::request_seat(seat));
    }
    for (std::uint32_t seat = 0; seat < share_seats && !found; seat++) {
        found = alive(fd, LifeByte::share_seat(seat));
    }
    return found;
}

}  // namespace

Result<bool> Segment::in_use(std::string_view name) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    auto shm = open_object(*object);
    if (!shm) return std::unexpected(shm.error());
    const int fd = shm->fd();
    return alive(fd, LifeByte::creation()) || attached(fd);
}

namespace {

// The creation byte of a ring that may be removed. With it in hand we are the only one that may
// unlink this name, as long as it still means this object: another remover may have been faster,
// and a new ring may have the name now. A process that attaches looks for the name after it has
// taken a life byte (Segment::stays), so none slips in between our look and the unlinking.
Result<std::optional<LifeLock>> lock_for_removal(int fd, const std::string& object, bool force) {
    auto lock = LifeLock::take(fd, LifeByte::creation());
    if (!lock) return std::unexpected(lock.error());
    if (!lock->has_value() && !force) {
        return refused(Errc::busy,
                       fmt::format("ring {} is being made or removed", ring_of(object)));
    }
    if (!force && attached(fd)) {
        return refused(
            Errc::busy,
            fmt::format("ring {} is in use by a live process: stop it, or force the removal "
                        "(--force; in Python, force=True)",
                        ring_of(object)));
    }
    return std::move(*lock);
}

}  // namespace

Result<void> Segment::remove(std::string_view name, bool force) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    auto shm = open_object(*object);
    if (!shm) return std::unexpected(explain(shm.error(), *object));
    const int fd = shm->fd();
    if (auto owner = check_owner(fd, *object); !owner) return std::unexpected(owner.error());
    auto lock = lock_for_removal(fd, *object, force);
    if (!lock) return std::unexpected(lock.error());
    FAULT_POINT("remove.before_unlink");
    if (auto file = unlink_overflow(fd, *object); !file && !force) return file;
    auto gone = unlink_object(fd, *object);
    if (gone) detail::mark_removed(fd, *object);
    return gone;
}

bool Segment::orphaned() const {
    const SegmentHeader& header = object_->header.get();
    return header.owner_mark == owner_mark_of(header.ring_id) && !alive(fd(), LifeByte::owner());
}

Result<bool> Segment::remove_orphan(std::string_view name) {
    auto segment = attach(name, Deadline::now());
    if (!segment) return std::unexpected(segment.error());
    if (!segment->orphaned()) return false;
    const std::string& object = segment->name();
    auto lock = lock_for_removal(segment->fd(), object, false);
    if (!lock) return std::unexpected(lock.error());
    if (auto file = unlink_overflow(segment->fd(), object); !file) {
        return std::unexpected(file.error());
    }
    if (auto gone = unlink_object(segment->fd(), object); !gone) {
        return std::unexpected(gone.error());
    }
    return true;
}

}  // namespace rollring
