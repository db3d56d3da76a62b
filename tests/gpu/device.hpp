#pragma once
// The first GPU, and bytes on it, for tests: whatever fails here ends the test with its reason.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "difference.hpp"
#include "gpu.hpp"

namespace rollring::test {

inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The value, or a Failure with the error.
template <class T>
T need(Result<T> result) {
    if (!result) throw Failure(result.error().to_string());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}
void need(CUresult result, std::string_view what);

const std::shared_ptr<const cuda::Gpu>& gpu();  // opened once
const cuda::Driver& api();

// For work that a healthy GPU does at once.
inline Deadline gpu_patience() {
    return Deadline::after_ms(60'000);
}

inline Result<device::Fit> compare_part(device::Difference& difference, std::size_t part,
                                        const std::byte* slot, Stream stream, Deadline deadline) {
    return difference.compare(part, {&slot, 1}, stream, deadline);
}

// Device memory.
class DeviceBytes {
  public:
    explicit DeviceBytes(std::size_t bytes);
    explicit DeviceBytes(std::span<const std::byte> bytes);

    [[nodiscard]] std::byte* data() const { return std::bit_cast<std::byte*>(address()); }
    [[nodiscard]] CUdeviceptr address() const { return buffer_.address(); }
    [[nodiscard]] std::size_t size() const { return bytes_; }
    void set(std::span<const std::byte> bytes) const;
    [[nodiscard]] std::vector<std::byte> get() const;

  private:
    std::size_t bytes_;
    cuda::DeviceBuffer buffer_;
};

// Between the host and an address of the device, waiting for it.
void to_device(const void* to, std::span<const std::byte> bytes);
std::vector<std::byte> from_device(const void* from, std::size_t bytes);

std::size_t free_device_bytes();

}  // namespace rollring::test
