// Slots as the publisher maps them, found from outside: through /proc/self/maps.

#include <fstream>
#include <sstream>

#include "channel.hpp"

namespace rollring::test {

void flip_bit_in_slots(const std::vector<std::byte>& bytes) {
    std::ifstream maps("/proc/self/maps");
    int flipped = 0;
    for (std::string line; std::getline(maps, line);) {
        if (line.find("memfd:rollring.weights") == std::string::npos) continue;
        if (line.find(" rw") == std::string::npos) continue;
        std::istringstream fields(line);
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        char dash = 0;
        fields >> std::hex >> begin >> dash >> end;
        for (std::uintptr_t at = begin; at + bytes.size() <= end; at += 512) {
            auto* slot = reinterpret_cast<std::byte*>(at);
            if (std::memcmp(slot, bytes.data(), bytes.size()) != 0) continue;
            slot[bytes.size() / 2] ^= std::byte{4};
            flipped++;
        }
    }
    REQUIRE(flipped == 1);
}

}  // namespace rollring::test
