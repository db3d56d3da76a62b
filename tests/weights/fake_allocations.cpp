#include "fake_allocations.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "support/process.hpp"

namespace rollring::test {
namespace {

using namespace device;

struct Book {
    struct Line {
        Allocation allocation;
        bool shareable;
    };
    std::mutex mutex;
    std::map<const std::byte*, Line> own;
    std::map<std::byte*, Mapping> opened;
    std::uint64_t last_id = 0;

    // Requires the mutex.
    Line* around(const std::byte* address) {
        auto behind = own.upper_bound(address);
        if (behind == own.begin()) return nullptr;
        Line& line = std::prev(behind)->second;
        const auto at = static_cast<std::uint64_t>(address - line.allocation.begin);
        return at < line.allocation.bytes ? &line : nullptr;
    }
};

Book& book() {
    static Book all;
    return all;
}

// Another process opens it by this, as long as its owner lives.
struct FakeHandle {
    std::int64_t pid;
    std::int64_t fd;
};

class FakeAllocations : public Allocations {
  public:
    Result<Allocation> find(const std::byte* address) override {
        const std::scoped_lock lock(book().mutex);
        const Book::Line* line = book().around(address);
        if (line == nullptr || !line->shareable) {
            return refused(Errc::unsupported, "its memory has no handle");
        }
        return line->allocation;
    }
    std::optional<std::uint64_t> id_at(const std::byte* begin) override {
        const std::scoped_lock lock(book().mutex);
        const Book::Line* line = book().around(begin);
        if (line == nullptr) return {};
        return line->allocation.id;
    }
    Result<std::byte*> open(const AllocationHandle& given, std::uint64_t bytes) override {
        FakeHandle handle{};
        std::memcpy(&handle, given.data(), sizeof handle);
        const std::string path = fmt::format("/proc/{}/fd/{}", handle.pid, handle.fd);
        const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!file) return refused(Errc::device_error, "no such handle");
        struct stat facts{};
        if (fstat(file.get(), &facts) != 0 || static_cast<std::uint64_t>(facts.st_size) < bytes) {
            return refused(Errc::bad_manifest, "the handle is for fewer bytes");
        }
        auto mapping = Mapping::of(file.get(), 0, bytes, false);
        if (!mapping) return refused(Errc::device_error, "cannot map");
        std::byte* const at = mapping->data();
        const std::scoped_lock lock(book().mutex);
        book().opened[at] = std::move(*mapping);
        return at;
    }
    void close(std::byte* begin) override {
        const std::scoped_lock lock(book().mutex);
        book().opened.erase(begin);
    }
    std::uint64_t bytes_most() override { return std::uint64_t{1} << 30; }
};

}  // namespace

FakeAllocation::FakeAllocation(std::uint64_t bytes, bool shareable)
    : bytes_(bytes), shareable_(shareable) {
    auto made = Sealed::make("fake-gpu", bytes);
    require(made.has_value(), "no memory for a fake GPU");
    memory_ = std::move(*made);
    auto mapped = memory_.map(0, bytes, true);
    require(mapped.has_value(), "a fake GPU's memory cannot be mapped");
    mapping_ = std::move(*mapped);
    make_anew();
}

FakeAllocation::~FakeAllocation() {
    free_it();
}

void FakeAllocation::make_anew() {
    const std::scoped_lock lock(book().mutex);
    Allocation made{.begin = data(), .bytes = bytes_, .id = ++book().last_id};
    const FakeHandle handle{getpid(), memory_.fd()};
    std::memcpy(made.handle.data(), &handle, sizeof handle);
    book().own[data()] = {made, shareable_};
}

void FakeAllocation::free_it() {
    const std::scoped_lock lock(book().mutex);
    book().own.erase(data());
}

std::shared_ptr<Allocations> fake_allocations() {
    return std::make_shared<FakeAllocations>();
}

int open_allocations() {
    const std::scoped_lock lock(book().mutex);
    return static_cast<int>(book().opened.size());
}

}  // namespace rollring::test
