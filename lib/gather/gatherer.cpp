// A gatherer over the GPUs of this build, or over the CPU.

#include <utility>

#include "device_gather.hpp"
#include "gpus.hpp"
#include "liveness.hpp"

namespace rollring {

class Gatherer::Impl {
  public:
    [[nodiscard]] Result<void> check_process() const { return maker_.check("gatherer"); }

    std::unique_ptr<gathering::DeviceGather> gpu;  // null: the host, which is done at once

  private:
    MakerProcess maker_;
};

Gatherer::Gatherer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gatherer::Gatherer(Gatherer&&) noexcept = default;
Gatherer& Gatherer::operator=(Gatherer&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
Gatherer::~Gatherer() {
    // A child's copy is left as it is: the GPU's state does not survive a fork.
    if (impl_ && !impl_->check_process()) static_cast<void>(impl_.release());
}

Result<Gatherer> Gatherer::open(Device device) {
    auto impl = std::make_unique<Impl>();
    if (device.is_gpu()) {
        auto gpu = device::gpus().open_gather(device);
        if (!gpu) return std::unexpected(gpu.error());
        impl->gpu = std::make_unique<gathering::DeviceGather>(std::move(*gpu));
    }
    return Gatherer(std::move(impl));
}

Result<void> Gatherer::gather(const Sequences& batch, const Schema& schema,
                              std::span<const GatherColumn> columns, const Layout& layout,
                              Stream stream) {
    if (auto ours = impl_->check_process(); !ours) return ours;
    if (impl_->gpu) return impl_->gpu->gather(batch, schema, columns, layout, stream);
    return rollring::gather(batch, schema, columns, layout);
}

Result<void> Gatherer::prepare(const Sequences& batch) {
    if (auto ours = impl_->check_process(); !ours) return ours;
    if (!impl_->gpu) return {};
    return impl_->gpu->prepare(batch);
}

Result<std::uint64_t> Gatherer::mark(Stream stream) {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    if (!impl_->gpu) return 0;
    return impl_->gpu->device().mark(stream);
}

Result<bool> Gatherer::reached(std::uint64_t mark) const {
    if (auto ours = impl_->check_process(); !ours) return std::unexpected(ours.error());
    if (!impl_->gpu) return true;
    return impl_->gpu->device().reached(mark);
}

Result<void> Gatherer::wait(std::uint64_t mark, Deadline deadline) const {
    if (auto ours = impl_->check_process(); !ours) return ours;
    if (!impl_->gpu) return {};
    return impl_->gpu->device().wait(mark, deadline);
}

GatherStat Gatherer::stat() const {
    return impl_->gpu && impl_->check_process() ? impl_->gpu->stat() : GatherStat{};
}

}  // namespace rollring
