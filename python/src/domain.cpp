#include "bindings.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "owned.hpp"
#include "rollring/extras/memory_domain.hpp"

namespace rollring::python {
namespace {

// Lives until its last region is freed: torch may do that long after Python has dropped the domain.
// The GIL is never requested while its lock is held, because torch allocates with and without the
// GIL.
struct SharedDomain : Owned<MemoryDomain> {
    SharedDomain() : Owned("this memory domain") {}

    int gpu = 0;
    std::string why;  // the last allocation that failed
};

// The domain of each address that torch frees.
class Placements {
  public:
    // Never destroyed: torch frees while the process ends, in an unknown order.
    static Placements& all() {
        static auto* const made = new Placements();
        return *made;
    }
    void add(void* region, std::shared_ptr<SharedDomain> domain) {
        const std::scoped_lock lock(mutex_);
        owners_[region] = std::move(domain);
    }
    std::shared_ptr<SharedDomain> take(void* region) {
        const std::scoped_lock lock(mutex_);
        auto found = owners_.extract(region);
        return found ? std::move(found.mapped()) : nullptr;
    }

  private:
    std::mutex mutex_;
    std::unordered_map<void*, std::shared_ptr<SharedDomain>> owners_;
};

struct Region {
    std::shared_ptr<SharedDomain> domain;
    std::string tag;
};

// The regions for this thread's allocations, the innermost last.
std::vector<Region>& regions() {
    thread_local std::vector<Region> open;
    return open;
}

// Null becomes torch's OutOfMemoryError.
void* allocate(std::uint64_t bytes, int gpu) {
    if (regions().empty()) return nullptr;
    const Region& region = regions().back();
    SharedDomain& shared = *region.domain;
    void* memory = nullptr;
    {
        const std::scoped_lock lock(shared.turns);
        if (gpu != shared.gpu) {
            shared.why = "the domain's memory lies on GPU " + std::to_string(shared.gpu) +
                         ", and memory of GPU " + std::to_string(gpu) + " was asked for";
            return nullptr;
        }
        auto got = shared.object->allocate(region.tag, bytes);
        if (!got) {
            shared.why = got.error().to_string();
            return nullptr;
        }
        memory = *got;
    }
    Placements::all().add(memory, region.domain);
    return memory;
}

void give_back(void* memory) {
    const auto shared = Placements::all().take(memory);
    if (shared == nullptr || shared->turns.inherited()) return;
    const std::scoped_lock lock(shared->turns);
    if (auto freed = shared->object->free(memory); !freed) shared->why = freed.error().to_string();
}

nb::dict told(const DomainReport& report) {
    nb::dict made;
    made["device_bytes"] = report.device_bytes;
    made["copied_bytes"] = report.copied_bytes;
    made["seconds"] = static_cast<double>(report.wall_ns) / 1e9;
    return made;
}

class PyDomain {
    template <class Use>
    auto used(Use use) {
        if (shared_->turns.inherited()) {
            raise("forked",
                  "this memory domain belongs to the parent process: CUDA works only in spawned "
                  "processes");
        }
        const Released released;
        const std::scoped_lock lock(shared_->turns);
        return use(*shared_->object);
    }

  public:
    PyDomain(int gpu, std::uint64_t chunk_bytes) {
        auto opened = [&] {
            const Released released;
            return MemoryDomain::open(Device::cuda(gpu), {.chunk_bytes = chunk_bytes});
        }();
        shared_->gpu = gpu;
        shared_->hold(value_or_raise(std::move(opened)));
    }
    // Until leave(), this thread's allocations from torch's pool have this tag.
    void enter(const std::string& tag) {
        if (tag.empty() || tag.size() > 63) {
            raise("invalid_argument",
                  "a tag has 1 to 63 bytes, not " + std::to_string(tag.size()) + ": '" + tag + "'");
        }
        for (const TagStat& one : stats()) {
            if (one.tag != tag || one.resident) continue;
            raise("already_released",
                  "the memory of '" + tag + "' is released: resume it before more is allocated");
        }
        regions().push_back({shared_, tag});
    }
    // A generator that another thread ends leaves no region in that thread.
    static void leave() {
        if (!regions().empty()) regions().pop_back();
    }

    nb::dict release(const std::vector<std::string>& kept,
                     const std::vector<std::string>& dropped) {
        return told(value_or_raise(used([&](MemoryDomain& domain) {
            std::vector<TagRelease> all;
            all.reserve(kept.size() + dropped.size());
            for (const std::string& tag : kept) all.push_back({tag, Contents::keep});
            for (const std::string& tag : dropped) all.push_back({tag, Contents::drop});
            return domain.release(all);
        })));
    }
    nb::dict resume(const std::vector<std::string>& tags) {
        return told(value_or_raise(used([&](MemoryDomain& domain) {
            const std::vector<std::string_view> all(tags.begin(), tags.end());
            return domain.resume(all);
        })));
    }
    void adopt(const std::string& tag, std::uintptr_t address, std::uint64_t bytes,
               std::uintptr_t handle) {
        value_or_raise(used([&](MemoryDomain& domain) {
            return domain.adopt(tag, reinterpret_cast<void*>(address), bytes,
                                reinterpret_cast<std::uint64_t*>(handle));
        }));
    }
    void disown(std::uintptr_t address) {
        value_or_raise(used(
            [&](MemoryDomain& domain) { return domain.free(reinterpret_cast<void*>(address)); }));
    }
    // 0: nothing is kept.
    std::uintptr_t kept(std::uintptr_t address, std::uint64_t bytes) {
        return used([&](MemoryDomain& domain) {
            return reinterpret_cast<std::uintptr_t>(
                domain.kept(reinterpret_cast<const void*>(address), bytes));
        });
    }
    std::uint64_t trim_host() {
        return used([](MemoryDomain& domain) { return domain.trim_host(); });
    }
    nb::dict tags() {
        nb::dict made;
        for (const TagStat& one : stats()) {
            nb::dict tag;
            tag["bytes"] = one.bytes;
            tag["resident"] = one.resident;
            tag["host_bytes"] = one.host_bytes;
            made[one.tag.c_str()] = tag;
        }
        return made;
    }
    // The reason of the last failed allocation; returned once.
    std::string why() {
        return used([&](MemoryDomain&) { return std::exchange(shared_->why, {}); });
    }

  private:
    std::vector<TagStat> stats() {
        return used([](MemoryDomain& domain) { return domain.tags(); });
    }

    std::shared_ptr<SharedDomain> shared_ = std::make_shared<SharedDomain>();
};

}  // namespace

void bind_domain(nb::module_& module) {
    nb::class_<PyDomain>(module, "MemoryDomain")
        .def(nb::init<int, std::uint64_t>())
        .def("enter", &PyDomain::enter)
        .def_static("leave", &PyDomain::leave)
        .def("release", &PyDomain::release)
        .def("resume", &PyDomain::resume)
        .def("adopt", &PyDomain::adopt)
        .def("disown", &PyDomain::disown)
        .def("kept", &PyDomain::kept)
        .def("trim_host", &PyDomain::trim_host)
        .def("tags", &PyDomain::tags)
        .def("why", &PyDomain::why);
}

}  // namespace rollring::python

// The functions that torch.cuda.memory.CUDAPluggableAllocator looks up by name, with its
// signatures.
extern "C" {
[[gnu::visibility("default")]] void* rollring_torch_allocate(ssize_t bytes, int gpu, void*) {
    return rollring::python::allocate(static_cast<std::uint64_t>(bytes), gpu);
}
[[gnu::visibility("default")]] void rollring_torch_free(void* memory, ssize_t, int, void*) {
    rollring::python::give_back(memory);
}
}
