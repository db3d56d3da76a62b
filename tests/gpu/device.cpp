#include "device.hpp"

#include <string>

namespace rollring::test {

void need(CUresult result, std::string_view what) {
    if (result != CUDA_SUCCESS) throw Failure(cuda::cuda_error(result, what).to_string());
}

const std::shared_ptr<const cuda::Gpu>& gpu() {
    static const std::shared_ptr<const cuda::Gpu> opened = need(cuda::Gpu::open(Device::cuda(0)));
    return opened;
}

const cuda::Driver& api() {
    return gpu()->api();
}

DeviceBytes::DeviceBytes(std::size_t bytes)
    : bytes_(bytes), buffer_(need(cuda::DeviceBuffer::make(gpu(), bytes))) {}

DeviceBytes::DeviceBytes(std::span<const std::byte> bytes)
    : bytes_(bytes.size()), buffer_(need(cuda::DeviceBuffer::holding(gpu(), bytes))) {}

void DeviceBytes::set(std::span<const std::byte> bytes) const {
    if (bytes.size() > bytes_) throw Failure("more bytes than the device buffer has");
    to_device(data(), bytes);
}

std::vector<std::byte> DeviceBytes::get() const {
    return from_device(data(), bytes_);
}

void to_device(const void* to, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const cuda::Context::Scope scope(gpu()->context());
    CUstream stream = gpu()->stream({});
    need(api().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                             reinterpret_cast<CUdeviceptr>(bytes.data()), bytes.size(), stream),
         "copy to the device");
    need(api().cuStreamSynchronize(stream), "wait for a copy to the device");
}

std::vector<std::byte> from_device(const void* from, std::size_t bytes) {
    std::vector<std::byte> copy(bytes);
    if (bytes == 0) return copy;
    const cuda::Context::Scope scope(gpu()->context());
    CUstream stream = gpu()->stream({});
    need(api().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(copy.data()),
                             reinterpret_cast<CUdeviceptr>(from), bytes, stream),
         "copy from the device");
    need(api().cuStreamSynchronize(stream), "wait for a copy from the device");
    return copy;
}

std::size_t free_device_bytes() {
    const cuda::Context::Scope scope(gpu()->context());
    std::size_t free = 0;
    std::size_t total = 0;
    need(api().cuMemGetInfo(&free, &total), "ask for free memory");
    return free;
}

}  // namespace rollring::test
