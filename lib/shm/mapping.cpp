#include "mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/permissions.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cerrno>
#include <utility>

namespace bip = boost::interprocess;

namespace rollring {
namespace {

// Any descriptor, in the form that Boost expects.
struct Mappable {
    bip::mapping_handle_t handle;
    [[nodiscard]] bip::mapping_handle_t get_mapping_handle() const { return handle; }
};

}  // namespace

struct Mapping::Region {
    bip::mapped_region region;
};
Mapping::Mapping() = default;
Mapping::Mapping(Mapping&&) noexcept = default;
Mapping& Mapping::operator=(Mapping&&) noexcept = default;
Mapping::~Mapping() = default;

OrErrno<Mapping> Mapping::of(int fd, std::uint64_t offset, std::uint64_t bytes, bool writable) {
    try {
        Mapping mapping;
        mapping.region_ = std::make_unique<Region>(Region{bip::mapped_region(
            Mappable{{.handle = fd, .is_xsi = false}}, writable ? bip::read_write : bip::read_only,
            static_cast<bip::offset_t>(offset), bytes)});
        mapping.data_ = static_cast<std::byte*>(mapping.region_->region.get_address());
        mapping.bytes_ = bytes;
        return mapping;
    } catch (const bip::interprocess_exception& refusal) {
        return std::unexpected(refusal.get_native_error());
    }
}

void Mapping::populate(std::uint64_t offset, std::uint64_t bytes, bool to_write) const {
    // Linux 5.14; Boost does not have this advice.
    constexpr int populate_read = 22;
    constexpr int populate_write = 23;
    madvise(data_ + offset, bytes, to_write ? populate_write : populate_read);
}

struct SharedObject::Handle {
    bip::shared_memory_object shm;
};
SharedObject::SharedObject() = default;
SharedObject::SharedObject(SharedObject&&) noexcept = default;
SharedObject& SharedObject::operator=(SharedObject&&) noexcept = default;
SharedObject::~SharedObject() = default;

OrErrno<SharedObject> SharedObject::open(const std::string& name, Access access) {
    try {
        SharedObject opened;
        opened.handle_ = std::make_unique<Handle>(Handle{bip::shared_memory_object(
            bip::open_only, name.c_str() + 1,
            access == Access::read_only ? bip::read_only : bip::read_write)});
        return opened;
    } catch (const bip::interprocess_exception& refusal) {
        return std::unexpected(refusal.get_native_error());
    }
}

OrErrno<SharedObject> SharedObject::make(const std::string& name) {
    try {
        SharedObject made;
        made.handle_ = std::make_unique<Handle>(Handle{bip::shared_memory_object(
            bip::create_only, name.c_str() + 1, bip::read_write, bip::permissions(0600))});
        return made;
    } catch (const bip::interprocess_exception& refusal) {
        return std::unexpected(refusal.get_native_error());
    }
}

int SharedObject::fd() const {
    return handle_->shm.get_mapping_handle().handle;
}

// On many kernels any signal undoes posix_fallocate on a tmpfs, and a large lane might never be
// done between two ticks of a profiler. So after the first signal it continues in pieces, and
// finished pieces stay. Without a signal it is one call, because the kernel then undoes a request
// that does not fit as a whole.
int detail::allocate(int fd, std::uint64_t offset, std::uint64_t bytes) {
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

}  // namespace rollring
