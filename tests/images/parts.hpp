#pragma once
// Four processes that are stepped, and the invariants that each of them is held to.

#include <string>
#include <vector>

#include "stepper.hpp"
#include "survivor.hpp"

namespace rollring::test {

struct Stepped {
    std::uint64_t boundaries = 0;
    std::uint64_t images = 0;
    std::uint64_t contexts = 0;
};

// Each goes on until it has seen so many instruction boundaries.
Stepped step_producer(std::uint64_t seed, std::uint64_t boundaries);
Stepped step_consumer(std::uint64_t seed, std::uint64_t boundaries);
Stepped step_trainer(std::uint64_t seed, std::uint64_t boundaries);
Stepped step_reader(std::uint64_t seed, std::uint64_t boundaries);

// FD RING
int stepped_producer_role(const std::vector<std::string>& arguments);
int stepped_consumer_role(const std::vector<std::string>& arguments);
int stepped_trainer_role(const std::vector<std::string>& arguments);
int stepped_reader_role(const std::vector<std::string>& arguments);

inline std::uint64_t packed(Id id) {
    return id.first << 32 | id.second;
}
inline Id unpacked(std::uint64_t word) {
    return {word >> 32, word & 0xffffffff};
}
template <class Ids>
void put(Orders& orders, const Ids& ids) {
    std::uint64_t count = 0;
    for (const Id& id : ids) orders.numbers[count++] = packed(id);
    orders.count = count;
}
inline std::vector<Id> got(const Orders& orders) {
    std::vector<Id> ids;
    const std::uint64_t count = orders.count.load();
    ids.reserve(count);
    for (std::uint64_t i = 0; i < count; i++) {
        ids.push_back(unpacked(orders.numbers[i].load()));
    }
    return ids;
}

// In this number of contexts a part meets every state that it is meant for, with any seed.
constexpr std::uint64_t contexts_enough = 240;

// Recovers every image of one order, and checks that nothing that has come goes again.
class Course {
  public:
    Course(Survivor& survivor, const Promise& promise) : survivor_(survivor), promise_(promise) {}

    void see(std::span<const std::byte> image) {
        const Found found = survivor_.recover(image, promise_, true);
        // A half-done release can be met either way.
        require(promise_.leaving.empty() || survivor_.recover(image, promise_, false) == found,
                "two survivors find different things");
        require(found.arrived >= last_.arrived, "a record that had come is gone");
        require(found.gone || !last_.gone, "records that were gone are back");
        last_ = found;
    }
    // After the last instruction.
    [[nodiscard]] const Found& end() const { return last_; }

  private:
    Survivor& survivor_;
    const Promise& promise_;
    Found last_;
};

}  // namespace rollring::test
