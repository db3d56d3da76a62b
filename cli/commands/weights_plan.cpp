#include "cli/commands/weights_plan.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <system_error>
#include <tuple>

#include "cli/commands/command.hpp"
#include "cli/formats/json_tree.hpp"
#include "cli/terminal/colour.hpp"
#include "cli/terminal/table.hpp"
#include "rollring/ring.hpp"
#include "rollring/weight_plan.hpp"

namespace rollring::cli {
namespace {

namespace fs = std::filesystem;

// Ranks of which all placements are tried.
constexpr std::size_t placed_most = 8;

Result<WeightLayout> read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return refused(errno == ENOENT ? Errc::not_found : Errc::system,
                       fmt::format("cannot open {}: {}", path.string(),
                                   std::generic_category().message(errno)));
    }
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    auto layout = WeightLayout::from_bytes(std::as_bytes(std::span(bytes)));
    if (layout) return layout;
    return refused(layout.error().code,
                   fmt::format("{} has no layout: {}", path.string(), layout.error().message));
}

Result<WeightLayout> read_layout(const fs::path& path) {
    std::error_code wrong;
    if (!fs::is_directory(path, wrong)) return read_file(path);
    std::vector<fs::path> files;
    for (const auto& one : fs::directory_iterator(path, wrong)) {
        if (one.is_regular_file(wrong)) files.push_back(one.path());
    }
    if (wrong || files.empty()) {
        return refused(Errc::not_found, fmt::format("the folder {} has no layout: write the bytes "
                                                    "of each rank's layout to a file of it",
                                                    path.string()));
    }
    std::ranges::sort(files);
    WeightLayout all;
    for (const fs::path& one : files) {
        const auto layout = read_file(one);
        if (!layout) return std::unexpected(layout.error());
        if (auto added = all.add(*layout); !added) {
            return refused(added.error().code,
                           fmt::format("{}: {}", one.string(), added.error().message));
        }
    }
    return all;
}

std::uint32_t ranks_of(const WeightLayout& layout) {
    std::uint32_t ranks = 0;
    for (const LayoutMemory& one : layout.memories()) ranks = std::max(ranks, one.rank + 1);
    return ranks;
}

std::vector<std::uint32_t> in_order(std::uint32_t ranks) {
    std::vector<std::uint32_t> devices(ranks);
    std::iota(devices.begin(), devices.end(), 0U);
    return devices;
}

// For each rank of the engine the bytes from each device of the trainer.
using BytesTo = std::vector<std::map<std::uint32_t, std::uint64_t>>;

BytesTo bytes_to(const WeightPlan& plan, std::span<const std::uint32_t> devices,
                 std::uint32_t engine_ranks) {
    BytesTo bytes(engine_ranks);
    for (const PlanTraffic& one : plan.traffic()) {
        bytes[one.to_rank][devices[one.from_rank]] += one.bytes;
    }
    return bytes;
}

struct Placement {
    std::vector<std::uint32_t> engine_devices;
    std::uint64_t remote_bytes;
};

// The engine's ranks on the same devices in another order, if fewer bytes go between devices then.
std::optional<Placement> better(const WeightLayout& from, const WeightLayout& to,
                                const WeightPlan& plan, const PlanOptions& placed) {
    std::vector<std::uint32_t> order = placed.to_devices;
    if (order.size() > placed_most) return std::nullopt;
    const BytesTo bytes =
        bytes_to(plan, placed.from_devices, static_cast<std::uint32_t>(order.size()));
    const auto local = [&](std::span<const std::uint32_t> devices) {
        std::uint64_t sum = 0;
        for (std::size_t rank = 0; rank < devices.size(); rank++) {
            const auto found = bytes[rank].find(devices[rank]);
            if (found != bytes[rank].end()) sum += found->second;
        }
        return sum;
    };
    std::ranges::sort(order);
    std::vector<std::uint32_t> best = order;
    while (std::ranges::next_permutation(order).found) {
        if (local(order) > local(best)) best = order;
    }
    // Replicas of a box are chosen by the placement, so that the plan is made again.
    const auto other =
        WeightPlan::make(from, to, {.from_devices = placed.from_devices, .to_devices = best});
    if (!other || other->remote_bytes() >= plan.remote_bytes()) return std::nullopt;
    return Placement{.engine_devices = std::move(best), .remote_bytes = other->remote_bytes()};
}

// Those with the most bytes between devices first, then the largest.
std::vector<PlanTensor> largest(const WeightPlan& plan, std::size_t most) {
    std::vector<PlanTensor> tensors(plan.tensors().begin(), plan.tensors().end());
    std::ranges::sort(tensors, [](const PlanTensor& a, const PlanTensor& b) {
        return std::tuple(b.remote_bytes, b.local_bytes, a.tensor) <
               std::tuple(a.remote_bytes, a.local_bytes, b.tensor);
    });
    if (tensors.size() > most) tensors.resize(most);
    return tensors;
}

Json plan_json(const WeightPlan& plan, const WeightLayout& engine, std::size_t tensors,
               const std::optional<Placement>& placement) {
    Json traffic = Json::array();
    for (const PlanTraffic& one : plan.traffic()) {
        traffic.push_back({{"rank", one.from_rank},
                           {"engine_rank", one.to_rank},
                           {"local", one.local},
                           {"bytes", one.bytes},
                           {"copies", one.copies}});
    }
    Json named = Json::array();
    for (const PlanTensor& one : largest(plan, tensors)) {
        named.push_back({{"name", engine.tensors()[one.tensor].name},
                         {"local_bytes", one.local_bytes},
                         {"remote_bytes", one.remote_bytes}});
    }
    Json json = {{"copies", plan.copies()},
                 {"local_bytes", plan.local_bytes()},
                 {"remote_bytes", plan.remote_bytes()},
                 {"padding_elements", plan.padding_elements()},
                 {"traffic", std::move(traffic)},
                 {"tensors", std::move(named)},
                 {"better_placement", nullptr}};
    if (placement) {
        json["better_placement"] = {{"engine_devices", placement->engine_devices},
                                    {"remote_bytes", placement->remote_bytes}};
    }
    return json;
}

std::string traffic_table(const WeightPlan& plan, std::size_t width) {
    using enum Table::Align;
    Table table({{.title = "  trainer rank"},
                 {.title = "engine rank"},
                 {.title = "bytes"},
                 {.title = "copies"},
                 {.title = "way", .align = left}});
    for (const PlanTraffic& one : plan.traffic()) {
        table.add({std::to_string(one.from_rank), std::to_string(one.to_rank),
                   bytes_text(one.bytes), std::to_string(one.copies),
                   one.local ? "on one device" : "between devices"});
    }
    return table.text(width, coloured(STDOUT_FILENO));
}

std::string tensor_table(const WeightPlan& plan, const WeightLayout& engine, std::size_t most,
                         std::size_t width) {
    using enum Table::Align;
    Table table({{.title = "  tensor", .align = left, .least = 16},
                 {.title = "between devices"},
                 {.title = "on one device"}});
    for (const PlanTensor& one : largest(plan, most)) {
        table.add({"  " + printable(engine.tensors()[one.tensor].name),
                   bytes_text(one.remote_bytes), bytes_text(one.local_bytes)});
    }
    return table.text(width, coloured(STDOUT_FILENO));
}

std::string plan_text(const WeightPlan& plan, const WeightLayout& engine,
                      const PlanQuestion& question, const std::optional<Placement>& placement) {
    const std::size_t width = width_of(STDOUT_FILENO);
    std::string text =
        fmt::format("{}: {} between devices, {} on one device; {} of padding in the engine\n",
                    plan.copies() == 1 ? "1 copy" : count_text(plan.copies()) + " copies",
                    bytes_text(plan.remote_bytes()), bytes_text(plan.local_bytes()),
                    counted(plan.padding_elements(), "element"));
    text += traffic_table(plan, width);
    if (question.tensors != 0 && !plan.tensors().empty()) {
        text += "\n" + tensor_table(plan, engine, question.tensors, width);
    }
    if (placement) {
        text += wrapped(fmt::format("\nWith the engine's ranks on devices {}, {} would go between "
                                    "devices (--engine-devices).\n",
                                    fmt::join(placement->engine_devices, ","),
                                    bytes_text(placement->remote_bytes)),
                        width);
    }
    return text;
}

// Numbers with commas between them.
CLI::Option* add_devices(CLI::App* app, const std::string& name,
                         std::vector<std::uint32_t>& devices, const std::string& help) {
    return app
        ->add_option_function<std::string>(
            name,
            [name, &devices](const std::string& text) {
                devices.clear();
                const char* at = text.data();
                const char* const end = at + text.size();
                while (true) {
                    std::uint32_t device = 0;
                    const auto [next, wrong] = std::from_chars(at, end, device);
                    const bool last = next == end;
                    if (wrong != std::errc() || (!last && *next != ',')) {
                        throw CLI::ValidationError(
                            name, "'" + text + "' is not a list of numbers such as 0,1,2,3");
                    }
                    devices.push_back(device);
                    if (last) return;
                    at = next + 1;
                }
            },
            help)
        ->type_name("LIST");
}

}  // namespace

CLI::Option* add_plan(CLI::App* app, PlanQuestion& question) {
    CLI::Option* const plan =
        app->add_option("--plan", question.layouts,
                        "Show the bytes that move from a trainer's layout to an engine's")
            ->expected(2, 2)
            ->type_name("TRAINER ENGINE");
    add_devices(app, "--devices", question.devices,
                "Device of each rank of the trainer, as 0,1; default: rank r on device r")
        ->needs(plan);
    add_devices(app, "--engine-devices", question.engine_devices,
                "The same for the ranks of the engine")
        ->needs(plan);
    app->add_option("--tensors", question.tensors, "Tensors that are named")
        ->type_name("N")
        ->capture_default_str()
        ->needs(plan);
    return plan;
}

int show_plan(const PlanQuestion& question) {
    const auto from = read_layout(question.layouts.at(0));
    if (!from) return fail(from.error());
    const auto to = read_layout(question.layouts.at(1));
    if (!to) return fail(to.error());
    PlanOptions placed{.from_devices = question.devices, .to_devices = question.engine_devices};
    const auto plan = WeightPlan::make(*from, *to, placed);
    if (!plan) return fail(plan.error());
    if (placed.from_devices.empty()) placed.from_devices = in_order(ranks_of(*from));
    if (placed.to_devices.empty()) placed.to_devices = in_order(ranks_of(*to));
    const auto placement = better(*from, *to, *plan, placed);
    if (question.json) {
        print_json(plan_json(*plan, *to, question.tensors, placement));
    } else {
        show(plan_text(*plan, *to, question, placement), false);
    }
    return exit_ok;
}

}  // namespace rollring::cli
