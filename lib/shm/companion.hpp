#pragma once
// An object beside a ring, which an extra makes for it when it needs one:
//
//   /rollring.<uid>.<ring>~<ring id>.<kind>
//
// No ring's name contains '~'. The ring's id keeps the object from any other ring of that name, so
// that the object of a ring that is gone is never used. It is made as a ring is, and removed with
// its ring; a process that holds one of its life bytes uses the ring. The next ring of that name
// removes the leftovers of a killed remover, and so does remove_leftovers().
//
// Its kind defines its contents, apart from the header page, which no process maps.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "named_object.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "segment.hpp"

namespace rollring {

// At 0x000 of the object. Everything but `phase`, a Phase, is fixed before `phase` becomes ready.
struct CompanionHeader {
    std::uint64_t magic;  // of its kind
    std::uint32_t version;
    std::uint32_t header_bytes;  // sizeof(CompanionHeader)
    std::uint64_t object_bytes;
    std::uint64_t ring_id;
    std::uint64_t sizes[2];  // all offsets of its kind follow from these
    std::uint64_t check;     // xxh3 of all the above
    std::atomic<std::uint32_t> phase;
    std::uint8_t reserved[4];
};
static_assert(sizeof(CompanionHeader) == 64 && offsetof(CompanionHeader, check) == 48);
static_assert(std::has_unique_object_representations_v<CompanionHeader>);

struct CompanionKind {
    std::string_view name;  // behind the ring's id
    std::string_view text;  // "the requests"
    std::uint64_t magic;
    std::uint32_t version;    // of its layout
    std::string_view remedy;  // the options that ask for less
};

// The sizes of a new object.
struct CompanionPlan {
    std::uint64_t sizes[2];
    std::uint64_t object_bytes;
    std::uint64_t fixed_bytes;  // reserved when it is made
};

class Companion : public NamedObject {
  public:
    // Any number of processes may race: the first one makes it. Errc::closed: the ring was removed
    // meanwhile. Call Segment::stays() and linked() with a life byte in hand.
    static Result<Companion> open_or_make(const Segment& ring, const CompanionKind& kind,
                                          const CompanionPlan& plan, Deadline deadline);
    // For onlookers. Errc::not_found also if it is not finished.
    static Result<Companion> look(const Segment& ring, const CompanionKind& kind,
                                  Access access = Access::read_only);

    [[nodiscard]] const CompanionHeader& header() const { return image_.get(); }  // a checked copy

  private:
    struct Image {
        alignas(8) std::byte bytes[sizeof(CompanionHeader)]{};

        [[nodiscard]] const CompanionHeader& get() const {
            return *reinterpret_cast<const CompanionHeader*>(bytes);
        }
        [[nodiscard]] bool ready(const CompanionKind& kind) const;
    };
    class KindMaker;
    Companion(NamedObject named, const Image& image)
        : NamedObject(std::move(named)), image_(image) {}
    static Result<Companion> open(const Segment& ring, const CompanionKind& kind, Access access);
    Image image_;
};

// Files of /dev/shm, of this user, that belong to rings that are gone.
std::vector<std::string> stale_companions();

namespace detail {

struct CompanionName {
    std::string object;  // of its ring
    std::uint64_t ring_id;
    std::string own;
};
// The objects of the ring with this object name, former rings included. Empty: of all rings.
std::vector<CompanionName> companions_of(const std::string& object);
// Whether a live process has opened such an object of this ring; without an id, of any ring of this
// name.
bool has_live_companion(const std::string& object, std::optional<std::uint64_t> ring_id);
// The memory that a ring's objects hold now.
std::uint64_t companion_bytes(const Segment& ring);
// Removes the objects of former rings of the same name.
void remove_stale_companions(const Segment& ring);

}  // namespace detail
}  // namespace rollring
