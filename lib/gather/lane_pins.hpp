#pragma once
// The lanes of a ring, registered with a GPU where they lie: each once, in the background, as soon
// as a batch has records in it.
//
// A lane's pages stay the same until its producer is gone and the consumer gives them back to the
// system. The GPU would go on to read the old pages, which do not belong to the ring any more. So a
// lane is registered for one generation, and an earlier registration is released before anything is
// gathered. No records of a batch lie in a lane whose pages are given back, so none of them is ever
// read through an old registration.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gather_device.hpp"
#include "rollring/batch.hpp"

namespace rollring::gathering {

class LanePins {
  public:
    // The device outlives this.
    explicit LanePins(device::GatherDevice& device) : device_(&device) {}
    LanePins(const LanePins&) = delete;
    ~LanePins();

    // To be called before each gather: releases registrations of lanes that are gone; for another
    // ring than the last, all of them.
    void look(const std::shared_ptr<const MappedLanes>& lanes);
    struct Registered {
        const std::byte* begin;
        const std::byte* end;
        std::uint64_t shift;  // from an address of the host to one of the device
    };
    // The lane that the byte lies in, as look() found it. Null: the GPU cannot read it (yet), and
    // it is wanted from now on.
    const Registered* lane_with(const std::byte* at) {
        for (const Registered& lane : registered_) {
            if (at >= lane.begin && at < lane.end) return &lane;
        }
        want(at);
        return nullptr;
    }
    // Why it cannot, for people.
    [[nodiscard]] std::string why_not(const std::byte* at) const;
    // Registers all lanes in use, and waits for it; the first error of a lane.
    Result<void> register_used();

    [[nodiscard]] std::uint64_t registered_bytes() const;

  private:
    enum class State { unknown, wanted, registering, registered, refused };
    struct Lane {
        MappedLane mapped{};
        State state = State::unknown;
        std::uint64_t generation = 0;  // that is registered, or was refused
        std::uint64_t address = 0;     // the device's
        std::string problem;
    };
    void drop_all();
    void drop(Lane& lane);
    void want(Lane& lane);
    void want(const std::byte* at);
    void work(const std::stop_token& stop);
    Lane* lane_of(const std::byte* at);
    [[nodiscard]] const Lane* lane_of(const std::byte* at) const {
        return const_cast<LanePins*>(this)->lane_of(at);
    }

    device::GatherDevice* device_;
    std::shared_ptr<const MappedLanes> lanes_;
    mutable std::mutex mutex_;
    std::condition_variable_any changed_;
    std::vector<Lane> all_;               // as they lie in memory
    std::vector<Registered> registered_;  // for lane_with(), which takes no lock
    std::jthread worker_;                 // while lanes were ever wanted
};

}  // namespace rollring::gathering
