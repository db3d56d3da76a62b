#pragma once
// The lanes of a ring, registered with a GPU in place: each once, in the background, as soon as a
// batch has records in it.
//
// A lane's pages stay the same until its producer is gone and the consumer gives them back to the
// system. The GPU would continue to read the pages that it knows, which no longer belong to the
// ring. So a lane is registered for one generation, and the registration of an earlier generation
// ends before anything is gathered. No record of a batch lies in a lane whose pages are given back,
// so none is ever read through an old registration.

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
    // The device must outlive this object.
    explicit LanePins(device::GatherDevice& device) : device_(&device) {}
    LanePins(const LanePins&) = delete;
    ~LanePins();

    // Call it before each gather: ends the registrations of lanes whose pages are gone; with
    // another ring than the last one, all registrations.
    void look(const std::shared_ptr<const MappedLanes>& lanes);
    struct Registered {
        const std::byte* begin;
        const std::byte* end;
        std::uint64_t shift;  // from host address to device address
    };
    // The lane of this byte, as look() found it. Null: the GPU cannot read it (yet), and the lane
    // is wanted from now on.
    const Registered* lane_with(const std::byte* at) {
        for (const Registered& lane : registered_) {
            if (at >= lane.begin && at < lane.end) return &lane;
        }
        want(at);
        return nullptr;
    }
    // The reason why the GPU cannot, for people.
    [[nodiscard]] std::string why_not(const std::byte* at) const;
    // Registers all lanes in use, and waits for it; the first error of a lane.
    Result<void> register_used();

    [[nodiscard]] std::uint64_t registered_bytes() const;

  private:
    enum class State { unknown, wanted, registering, registered, refused };
    struct Lane {
        MappedLane mapped{};
        State state = State::unknown;
        std::uint64_t generation = 0;  // registered or refused
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
    std::vector<Lane> all_;               // in the order of their addresses
    std::vector<Registered> registered_;  // for lane_with(), which takes no lock
    std::jthread worker_;                 // once a lane was wanted
};

}  // namespace rollring::gathering
