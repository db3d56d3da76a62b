// GPUs and kinds of payload memory as text.

#include "rollring/weight_tensor.hpp"
#include "rollring/weights.hpp"

namespace rollring {

std::string_view name(PayloadMemory memory) {
    switch (memory) {
        case PayloadMemory::automatic:
            return "automatic";
        case PayloadMemory::vmm:
            return "vmm";
        case PayloadMemory::legacy_ipc:
            return "legacy_ipc";
        case PayloadMemory::host:
            return "host";
        case PayloadMemory::direct:
            return "direct";
    }
    return "unknown";
}

std::string GpuUuid::to_string() const {
    if (!is_gpu()) return "host";
    std::string text = "GPU-";
    for (std::size_t i = 0; i < bytes.size(); i++) {
        constexpr std::string_view digits = "0123456789abcdef";
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

}  // namespace rollring
