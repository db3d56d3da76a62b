#pragma once
// Gathers with a GPU: the layout's runs become a table. Lanes that the GPU may read are read in
// place, and others through staging memory.

#include <memory>
#include <span>

#include "column_plan.hpp"
#include "lane_pins.hpp"

namespace rollring::gathering {

class DeviceGather {
  public:
    explicit DeviceGather(std::unique_ptr<device::GatherDevice> device)
        : device_(std::move(device)), pins_(*device_) {}

    Result<void> gather(const Sequences& batch, const Schema& schema,
                        std::span<const GatherColumn> columns, const Layout& layout, Stream stream);
    Result<void> prepare(const Sequences& batch);
    [[nodiscard]] device::GatherDevice& device() const { return *device_; }
    [[nodiscard]] GatherStat stat() const;

  private:
    class Locator;
    Result<void> run_tables(const Sequences& batch, std::span<const ColumnPlan> plans,
                            Stream stream);

    std::unique_ptr<device::GatherDevice> device_;
    LanePins pins_;        // destroyed before the device
    Placement placement_;  // kept for its memory, as is the table
    device::TileTable table_;
    std::uint64_t read_bytes_ = 0;
    std::uint64_t staged_bytes_ = 0;
    std::string why_staged_;
};

}  // namespace rollring::gathering
