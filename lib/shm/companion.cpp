#include "companion.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "bounds.hpp"
#include "fault_point.hpp"
#include "make_once.hpp"
#include "segment_object.hpp"
#include "xxh3.hpp"

namespace rollring {
using namespace detail;

namespace {

constexpr char mark = '~';
constexpr std::size_t id_digits = 16;

std::string name_of(const Segment& ring, const CompanionKind& kind) {
    return fmt::format("{}{}{:016x}.{}", ring.name(), mark, ring.header().ring_id, kind.name);
}

std::optional<CompanionName> parsed(std::string own) {
    const std::size_t at = own.rfind(mark);
    if (at == std::string::npos || own.size() < at + 1 + id_digits) return std::nullopt;
    std::uint64_t id = 0;
    const char* first = own.data() + at + 1;
    const auto [end, error] = std::from_chars(first, first + id_digits, id, 16);
    if (error != std::errc{} || end != first + id_digits) return std::nullopt;
    return CompanionName{own.substr(0, at), id, std::move(own)};
}

std::uint64_t check_of(const CompanionHeader& header) {
    return XXH3_64bits(&header, offsetof(CompanionHeader, check));
}

}  // namespace

bool Companion::Image::ready(const CompanionKind& kind) const {
    return get().magic == kind.magic &&
           peek(get().phase) == static_cast<std::uint32_t>(Phase::ready);
}

class Companion::KindMaker : public Maker {
  public:
    KindMaker(const Segment& ring, const CompanionKind& kind, const CompanionPlan& plan)
        : ring_(ring), kind_(kind), plan_(plan) {
        auto& header = *reinterpret_cast<CompanionHeader*>(image_.bytes);
        header.magic = kind.magic;
        header.version = kind.version;
        header.header_bytes = sizeof(CompanionHeader);
        header.object_bytes = plan.object_bytes;
        header.ring_id = ring.header().ring_id;
        std::ranges::copy(plan.sizes, header.sizes);
        header.check = check_of(header);
    }

    [[nodiscard]] Result<bool> finished(int fd) const override {
        Image image;
        if (read_at(fd, 0, image.bytes, sizeof image.bytes)) return image.ready(kind_);
        if (errno != 0) return unreadable(name_of(ring_, kind_));
        return false;
    }
    [[nodiscard]] Result<void> clear(int /*fd*/) const override { return {}; }
    [[nodiscard]] Result<void> build(int fd) override {
        auto laid = lay_out(fd, plan_.object_bytes, plan_.fixed_bytes,
                            fmt::format("{} of ring {}", kind_.text, ring_.ring()), kind_.remedy);
        if (!laid) return laid;
        const auto page = Mapping::of(fd, 0, page_bytes, true);
        if (!page)
            return failed(Errc::system, page.error(),
                          "cannot map the new " + name_of(ring_, kind_));
        std::memcpy(page->data(), image_.bytes, offsetof(CompanionHeader, phase));
        FAULT_POINT("companion.before_ready");
        store_release(page->at<CompanionHeader>(0).phase, static_cast<std::uint32_t>(Phase::ready));
        return {};
    }

  private:
    const Segment& ring_;
    const CompanionKind& kind_;
    const CompanionPlan& plan_;
    Image image_;
};

// Errc::not_found: there is none. Errc::not_ready: it is not finished.
Result<Companion> Companion::open(const Segment& ring, const CompanionKind& kind, Access access) {
    const std::string object = name_of(ring, kind);
    auto shm = open_object(object, access);
    if (!shm) return std::unexpected(shm.error());
    if (auto ours = check_owner(shm->fd(), object); !ours) return std::unexpected(ours.error());
    Image image;
    const auto size =
        finished_size(shm->fd(), object, image, [&](const Image& one) { return one.ready(kind); });
    if (!size) return std::unexpected(size.error());
    const auto damaged = [&] {
        return refused(Errc::not_a_ring,
                       fmt::format("{} is damaged: remove the ring with 'rollring rm'", object));
    };
    const CompanionHeader& header = image.get();
    if (header.magic != 0 && header.magic != kind.magic) return damaged();
    if (!*size) {
        return refused(Errc::not_ready,
                       fmt::format("{} of ring {} are not finished", kind.text, ring.ring()));
    }
    if (header.version != kind.version || header.header_bytes != sizeof(CompanionHeader)) {
        return refused(Errc::abi_mismatch,
                       fmt::format("{} has version {}, this program {}: run one version of "
                                   "rollring on both sides",
                                   object, header.version, kind.version));
    }
    if (header.check != check_of(header) || header.ring_id != ring.header().ring_id ||
        header.object_bytes != **size) {
        return damaged();
    }
    return Companion(NamedObject(object, std::move(*shm)), image);
}

Result<Companion> Companion::look(const Segment& ring, const CompanionKind& kind, Access access) {
    auto found = open(ring, kind, access);
    if (!found && found.error().code == Errc::not_ready) found.error().code = Errc::not_found;
    return found;
}

Result<Companion> Companion::open_or_make(const Segment& ring, const CompanionKind& kind,
                                          const CompanionPlan& plan, Deadline deadline) {
    const std::string object = name_of(ring, kind);
    if (const auto bound = bound_of_length(plan.object_bytes)) {
        return failed(Errc::not_enough_shared_memory, EFBIG,
                      shortage(*bound, object, plan.object_bytes, kind.remedy));
    }
    for (;; pause_before_retry()) {
        auto found = open(ring, kind, Access::read_write);
        const bool absent = !found && (found.error().code == Errc::not_found ||
                                       found.error().code == Errc::not_ready);
        if (!absent) return found;
        KindMaker maker(ring, kind, plan);
        auto made = make_once(object, maker, deadline);
        if (!made) return std::unexpected(made.error());
        if (made->shm) {
            remove_stale_companions(ring);
            // The ring's remover may have searched for objects beside it before this one existed.
            if (!ring.linked()) {
                shm_unlink(object.c_str());
                return refused(Errc::closed, fmt::format("ring {} was removed", ring.ring()));
            }
        } else if (made->forming) {
            return refused(Errc::not_ready,
                           fmt::format("{} of ring {} are being made by another process", kind.text,
                                       ring.ring()));
        }
    }
}

std::vector<CompanionName> detail::companions_of(const std::string& object) {
    std::vector<CompanionName> found;
    for (std::string& file : files_of_user()) {
        auto name = parsed("/" + std::move(file));
        if (name && (object.empty() || name->object == object)) found.push_back(std::move(*name));
    }
    return found;
}

bool detail::has_live_companion(const std::string& object, std::optional<std::uint64_t> ring_id) {
    for (const CompanionName& name : companions_of(object)) {
        if (ring_id && name.ring_id != *ring_id) continue;
        const auto shm = open_object(name.own, Access::read_only);
        // An object that cannot be queried is not proven dead.
        if (shm ? anybody_alive(shm->fd()) : shm.error().code != Errc::not_found) return true;
    }
    return false;
}

std::uint64_t detail::companion_bytes(const Segment& ring) {
    std::uint64_t bytes = 0;
    for (const CompanionName& name : companions_of(ring.name())) {
        if (name.ring_id != ring.header().ring_id) continue;
        auto shm = open_object(name.own, Access::read_only);
        if (shm) bytes += NamedObject(name.own, std::move(*shm)).resident_bytes();
    }
    return bytes;
}

// A ring that still has its name had it during the whole search, so an object with another ID
// belongs to an earlier ring.
void detail::remove_stale_companions(const Segment& ring) {
    const std::vector<CompanionName> names = companions_of(ring.name());
    if (!ring.linked()) return;
    for (const CompanionName& name : names) {
        if (name.ring_id != ring.header().ring_id) shm_unlink(name.own.c_str());
    }
}

std::vector<std::string> stale_companions() {
    std::vector<std::string> stale;
    // Objects first, then rings: a ring exists before its objects do.
    for (const CompanionName& name : companions_of({})) {
        const auto ring = Segment::attach(ring_of(name.object), Deadline::now(), Access::read_only);
        const bool gone =
            ring ? ring->header().ring_id != name.ring_id : ring.error().code == Errc::not_found;
        if (gone) stale.push_back(name.own);
    }
    return stale;
}

}  // namespace rollring
