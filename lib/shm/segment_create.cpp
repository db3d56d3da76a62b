#include <fcntl.h>
#include <fmt/core.h>
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
#include "companion.hpp"
#include "fault_point.hpp"
#include "liveness.hpp"
#include "make_once.hpp"
#include "overflow_file.hpp"
#include "rollring/schema.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

namespace rollring {
using namespace detail;

namespace {

// The id of an intact ring; empty for a damaged one.
std::optional<std::uint64_t> id_of(int fd) {
    HeaderImage image;
    const bool whole = read_at(fd, 0, image.bytes, sizeof image.bytes) && image.ready() &&
                       image.get().check == XXH3_64bits(image.bytes, check_bytes);
    return whole ? std::optional(image.get().ring_id) : std::nullopt;
}

HeaderImage make_header(const SegmentPlan& plan, bool owned) {
    const Geometry& geometry = plan.geometry;
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
    header.requests = plan.requests;
    header.request_bytes = plan.request_bytes;
    if (getrandom(&header.ring_id, sizeof header.ring_id, 0) < 0) {
        header.ring_id = static_cast<std::uint64_t>(realtime_ns());
    }
    header.created_ns = realtime_ns();
    header.schema_id = XXH3_64bits(&plan.schema, sizeof plan.schema);
    header.check = XXH3_64bits(&header, check_bytes);
    if (owned) header.owner_mark = owner_mark_of(header.ring_id);
    header.purpose_mark = purpose_mark_of(header.ring_id, plan.purpose);
    return image;
}

class RingMaker : public Maker {
  public:
    // `overflow`: empty, or the path of a file that is made once the object names it.
    RingMaker(const std::string& object, const SegmentPlan& plan, const HeaderImage& image,
              const std::string& overflow, std::optional<LifeLock>* owner)
        : object_(object), plan_(plan), image_(image), overflow_(overflow), owner_(owner) {}

    [[nodiscard]] Result<bool> finished(int fd) const override {
        HeaderImage image;
        if (read_at(fd, 0, image.bytes, sizeof image.bytes)) return image.ready();
        if (errno != 0) return unreadable(object_);  // proves nothing
        return false;
    }
    [[nodiscard]] Result<void> clear(int fd) const override { return unlink_overflow(fd, object_); }
    [[nodiscard]] Result<void> build(int fd) override;

  private:
    void fill(std::byte* base) const;
    const std::string& object_;
    const SegmentPlan& plan_;
    const HeaderImage& image_;
    const std::string& overflow_;
    std::optional<LifeLock>* owner_;
};

void RingMaker::fill(std::byte* base) const {
    const Geometry& geometry = plan_.geometry;
    std::memcpy(base + geometry.schema_offset(), &plan_.schema, sizeof plan_.schema);
    reinterpret_cast<PolicyPage*>(base + geometry.policy_offset())->version = -1;
    auto* control = reinterpret_cast<ReaderControl*>(base + geometry.reader_offset());
    poke(control->last_acked_step, std::int64_t{-1});
    // Before a consumer comes, too: groups that are let in then have to be completed later. A plain
    // consumer, which forms no groups, lifts the bounds.
    poke(control->max_open_groups, geometry.open_groups_most());
    poke(control->room_bytes, geometry.spill_bytes / 4 * 3);
    poke(control->room_most, geometry.lane_count * geometry.lane_bytes + geometry.spill_bytes);
    const OverflowPath named = OverflowFile::to_page(overflow_, image_.get().ring_id);
    std::memcpy(base + overflow_path_offset, &named, sizeof named);
    const LedgerPlace ledger = to_page(plan_.ledger, image_.get().ring_id);
    std::memcpy(base + ledger_place_offset, &ledger, sizeof ledger);
    std::memcpy(base, image_.bytes, offsetof(SegmentHeader, phase));
}

Result<void> RingMaker::build(int fd) {
    const Geometry& geometry = plan_.geometry;
    if (owner_ != nullptr) {
        auto owned = LifeLock::take(fd, LifeByte::owner());
        if (!owned) return std::unexpected(owned.error());
        *owner_ = std::move(*owned);
    }
    auto laid = lay_out(fd, geometry.segment_bytes(), geometry.fixed_bytes(),
                        "the control memory of a ring", "lower --lanes or --journal-records");
    if (!laid) return laid;
    if (const MemoryBound least = least_memory_bound(); least.free < geometry.stride(0)) {
        return refused(Errc::not_enough_shared_memory,
                       shortage(least, fmt::format("each of {} lanes", geometry.lane_count),
                                geometry.stride(0), "lower --lane-bytes", geometry.taken_bytes()));
    }
    const auto control_pages = Mapping::of(fd, 0, geometry.fixed_bytes(), true);
    if (!control_pages) {
        return failed(Errc::system, control_pages.error(), "cannot map the new ring");
    }
    std::byte* base = control_pages->data();
    fill(base);
    if (!overflow_.empty()) {
        auto made = OverflowFile::make(overflow_, geometry.capacity(geometry.spill_lane()),
                                       image_.get().ring_id);
        if (!made) return made;
    }
    FAULT_POINT("create.before_ready");
    store_release(reinterpret_cast<SegmentHeader*>(base)->phase,
                  static_cast<std::uint32_t>(Phase::ready));
    return {};
}

}  // namespace

Result<Segment> Segment::create(std::string_view name, const SegmentPlan& plan, Deadline deadline,
                                std::optional<LifeLock>* owner) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    const Geometry& geometry = plan.geometry;
    // Otherwise the system would end the process with SIGXFSZ, and leave the object unfinished.
    if (const auto bound = bound_of_length(geometry.segment_bytes())) {
        return failed(Errc::not_enough_shared_memory, EFBIG,
                      shortage(*bound, fmt::format("ring {}", name), geometry.segment_bytes(),
                               "lower --lanes, --lane-bytes or --spill-bytes"));
    }
    const HeaderImage image = make_header(plan, owner != nullptr);
    std::string overflow;
    if (geometry.overflow_bytes != 0) {
        auto path = OverflowFile::path_in(plan.overflow_dir, *object, image.get().ring_id);
        if (!path) return std::unexpected(path.error());
        overflow = std::move(*path);
    }
    RingMaker maker(*object, plan, image, overflow, owner);
    auto made = make_once(*object, maker, deadline);
    if (!made) return std::unexpected(made.error());
    if (!made->shm) {
        return refused(
            Errc::already_exists,
            fmt::format(
                "ring {} already exists{}: attach to it, or remove it with 'rollring rm {}'", name,
                made->forming ? " and its creator is still at work" : "", name));
    }
    Segment segment(
        NamedObject(*object, std::move(*made->shm)),
        std::make_unique<Object>(Object{image, geometry, std::move(overflow), plan.ledger}));
    remove_stale_companions(segment);
    return segment;
}

// Tells producers, which read this word with every record, and so see it at once.
void detail::mark_removed(int fd, const std::string& object) {
    HeaderImage image;
    struct stat status{};
    if (fstat(fd, &status) != 0 || status.st_nlink != 0) return;
    if (!read_at(fd, 0, image.bytes, sizeof image.bytes) || !image.ready()) return;
    if (!check_header(image.get(), object, static_cast<std::uint64_t>(status.st_size))) return;
    const std::uint32_t removed = 1;
    const std::uint64_t at =
        geometry_of(image.get()).policy_offset() + offsetof(PolicyPage, removed);
    // A process that cannot be told learns it from the name, a little later.
    [[maybe_unused]] const auto told = pwrite(fd, &removed, sizeof removed, static_cast<off_t>(at));
}

namespace {

bool attached(int fd, const std::string& object) {
    bool found = alive(fd, LifeByte::consumer()) || alive(fd, LifeByte::owner()) ||
                 alive(fd, LifeByte::server());
    for (std::uint32_t lane = 0; lane < lanes_max && !found; lane++) {
        found = alive(fd, LifeByte::lane(lane));
    }
    for (std::uint32_t seat = 0; seat < share_seats && !found; seat++) {
        found = alive(fd, LifeByte::share_seat(seat));
    }
    return found || has_live_companion(object, id_of(fd));
}

}  // namespace

Result<bool> Segment::in_use(std::string_view name) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    auto shm = open_object(*object);
    if (!shm) return std::unexpected(shm.error());
    const int fd = shm->fd();
    return alive(fd, LifeByte::creation()) || attached(fd, *object);
}

namespace {

// The creation byte of a ring that may be removed. Only its holder may unlink this name, as long as
// the name still means this object: another remover may have been faster, and a new ring may have
// the name now. A process that attaches checks the name after it has taken a life byte
// (Segment::stays), so none slips in between our check and the unlinking.
Result<std::optional<LifeLock>> lock_for_removal(int fd, const std::string& object, bool force) {
    auto lock = LifeLock::take(fd, LifeByte::creation());
    if (!lock) return std::unexpected(lock.error());
    if (!lock->has_value() && !force) {
        return refused(Errc::busy,
                       fmt::format("ring {} is being made or removed", ring_of(object)));
    }
    if (!force && attached(fd, object)) {
        return refused(
            Errc::busy,
            fmt::format("ring {} is in use by a live process: stop it, or force the removal "
                        "(--force; in Python, force=True)",
                        ring_of(object)));
    }
    return std::move(*lock);
}

// Unlinks the ring's name, then the objects beside it: objects that exist before cannot be of a
// later ring, and no object of this ring stays if it is made after the ring's name is gone.
Result<void> unlink_ring(int fd, const std::string& object) {
    std::vector<CompanionName> before = companions_of(object);
    struct stat status{};
    // Another process was faster: there may be a new ring of that name.
    if (fstat(fd, &status) != 0 || status.st_nlink == 0) before.clear();
    const auto id = id_of(fd);
    if (auto gone = unlink_object(fd, object); !gone) return gone;
    FAULT_POINT("remove.after_unlink");
    for (const CompanionName& name : before) shm_unlink(name.own.c_str());
    for (const CompanionName& name : companions_of(object)) {
        if (id == name.ring_id) shm_unlink(name.own.c_str());
    }
    return {};
}

// Removes the objects beside a ring of this name that is gone. False: there were none.
bool remove_left(const std::string& object) {
    bool found = false;
    for (const std::string& name : stale_companions()) {
        if (name.starts_with(object + "~")) found |= shm_unlink(name.c_str()) == 0;
    }
    return found;
}

}  // namespace

Result<void> Segment::remove(std::string_view name, bool force) {
    auto object = object_name(name);
    if (!object) return std::unexpected(object.error());
    auto shm = open_object(*object);
    if (!shm) {
        if (shm.error().code == Errc::not_found && remove_left(*object)) return {};
        return std::unexpected(explain(shm.error(), *object));
    }
    const int fd = shm->fd();
    if (auto owner = check_owner(fd, *object); !owner) return std::unexpected(owner.error());
    auto lock = lock_for_removal(fd, *object, force);
    if (!lock) return std::unexpected(lock.error());
    FAULT_POINT("remove.before_unlink");
    if (auto file = unlink_overflow(fd, *object); !file && !force) return file;
    auto gone = unlink_ring(fd, *object);
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
    if (auto gone = unlink_ring(segment->fd(), object); !gone) {
        return std::unexpected(gone.error());
    }
    return true;
}

}  // namespace rollring
