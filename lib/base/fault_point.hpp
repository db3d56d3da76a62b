#pragma once
// FAULT_POINT("commit.before"): a named point at which a test may stop or kill the process, or make
// it exit.
// Empty unless built with -Dfault_points=true; such a build is never installed.

#ifdef ROLLRING_FAULT_POINTS
namespace rollring {
// Acts as the environment says: ROLLRING_FAULT=<name>:<kill|stop|exit>[:<hit, from 1>].
void fault_point(const char* name);
}  // namespace rollring
#define FAULT_POINT(name) ::rollring::fault_point(name)
#else
#define FAULT_POINT(name) static_cast<void>(0)
#endif
