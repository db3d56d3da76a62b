#pragma once
// One run per fault: a victim that strikes itself, live peers, and the invariants that must hold
// afterwards.

#include <functional>
#include <string>
#include <vector>

#include "support/load.hpp"

namespace rollring::test {

struct Fault {
    std::string point;
    std::string action;  // kill, stop or exit
    int hit;

    [[nodiscard]] std::string plan() const { return fmt::format("{}:{}:{}", point, action, hit); }
};

// Each returns whether the victim was struck, and throws a Failure if a promise is broken.
bool create_run(const Fault& fault, Dice& dice);
bool remove_run(const Fault& fault, Dice& dice);
bool producer_run(const Fault& fault, Dice& dice);
bool consumer_run(const Fault& fault, Dice& dice);
bool stash_run(const Fault& fault, Dice& dice);
bool admit_run(const Fault& fault, Dice& dice);
bool bound_run(const Fault& fault, Dice& dice);
bool request_run(const Fault& fault, Dice& dice);
bool request_object_run(const Fault& fault, Dice& dice);
bool request_remade_run(const Fault& fault, Dice& dice);
bool request_removal_run(const Fault& fault, Dice& dice);
bool share_run(const Fault& fault, Dice& dice);
bool store_run(const Fault& fault, Dice& dice);

// How a victim ended: struck by its own fault, or not at all.
bool was_struck(const Fault& fault, int status);
// Until the victim has been struck, has ended, or `over()`; for as long as patience() at most.
void await_strike(pid_t victim, const std::function<bool()>& over = [] { return false; });
// After a wait for the victim: one that stands still goes on, one that has ended is collected, and
// `victim` is 0 then. `no`: it is still running, or has ended unstruck.
enum class Struck { no, stopped, ended };
Struck end_strike(const Fault& fault, pid_t& victim);

// --opener RING GROUPS: opens so many groups, one member each.
int opener_role(const std::vector<std::string>& arguments);

// The work of the processes that these start; empty for the parent.
std::function<int()> fault_role(const std::vector<std::string>& arguments);

}  // namespace rollring::test
