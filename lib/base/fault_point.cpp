#include "fault_point.hpp"

#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>

#ifdef ROLLRING_FAULT_POINTS
namespace rollring {
namespace {

struct Plan {
    std::string_view name;
    std::string_view action;
    long hit = 1;
};

Plan read_plan() {
    const char* text = std::getenv("ROLLRING_FAULT");
    if (text == nullptr) return {};
    const std::string_view all = text;
    const auto first = all.find(':');
    if (first == std::string_view::npos) return {};
    const auto second = all.find(':', first + 1);
    Plan plan{all.substr(0, first), all.substr(first + 1, second - first - 1), 1};
    if (second != std::string_view::npos) {
        std::from_chars(all.data() + second + 1, all.data() + all.size(), plan.hit);
    }
    return plan;
}

}  // namespace

void fault_point(const char* name) {
    static const Plan plan = read_plan();
    static long hits = 0;
    if (plan.name != name || ++hits != plan.hit) return;
    if (plan.action == "kill") raise(SIGKILL);
    if (plan.action == "stop") raise(SIGSTOP);
    if (plan.action == "exit") _exit(86);
}

}  // namespace rollring
#endif
