#pragma once
// An object beside a ring, which an extra makes for it when it needs one:
//
//   /rollring.<uid>.<ring>~<ring id>.<kind>
//
// '~' is in no ring's name. The ring's id keeps the object from any other ring of that name, so
// that one of a ring that is gone is never used. It is made as a ring is, and goes with its ring:
// the remover of the ring removes it too, and a process with one of its life bytes uses the ring.
// The leftovers of a killed remover go with the next ring of that name, or by remove_leftovers().
//
// Its kind defines its contents, apart from the header page, which is never mapped.

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

// 0x000 of the object. All but `phase`, a Phase, is fixed before that becomes ready.
struct CompanionHeader {
    std::uint64_t magic;  // of its kind
    std::uint32_t version;
    std::uint32_t header_bytes;  // sizeof(CompanionHeader)
    std::uint64_t object_bytes;
    std::uint64_t ring_id;
    std::uint64_t sizes[2];  // which its kind computes all places from
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
    std::string_view remedy;  // which options ask for less
};

// The sizes of a new one.
struct CompanionPlan {
    std::uint64_t sizes[2];
    std::uint64_t object_bytes;
    std::uint64_t fixed_bytes;  // reserved when it is made
};

class Companion : public NamedObject {
  public:
    // Any number of processes may race: the first one makes it. Errc::closed: the ring was removed
    // meanwhile. Segment::stays() and linked() are to be asked with a life byte in hand.
    static Result<Companion> open_or_make(const Segment& ring, const CompanionKind& kind,
                                          const CompanionPlan& plan, Deadline deadline);
    // For a look from outside. Errc::not_found, also where it is not finished.
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

// Files of /dev/shm, of this user, beside rings that are gone.
std::vector<std::string> stale_companions();

namespace detail {

struct CompanionName {
    std::string object;  // of its ring
    std::uint64_t ring_id;
    std::string own;
};
// Those of the ring with this object, of former rings too. Empty: of all rings.
std::vector<CompanionName> companions_of(const std::string& object);
// Whether any process lives that has opened one of this ring; an unknown ring's are all.
bool has_live_companion(const std::string& object, std::optional<std::uint64_t> ring_id);
// The memory that they hold now.
std::uint64_t companion_bytes(const Segment& ring);
// Those of former rings of its name.
void remove_stale_companions(const Segment& ring);

}  // namespace detail
}  // namespace rollring
