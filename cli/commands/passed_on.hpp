#pragma once
// The commands of `rollring` that other programs carry out, with their lines in its help.
// `rollring` becomes the other program, with the same arguments, and users need not know.

#include "cli/commands/command.hpp"

namespace rollring::cli {

struct PassedOn {
    const char* name;
    const char* summary;
    const char* program;  // in the folder of `rollring`
};

// The command in `rollring`, which has no option of it.
Command pass_on(CLI::App& app, const PassedOn& line);
template <const PassedOn& line>
Command pass_on(CLI::App& app) {
    return pass_on(app, line);
}

inline constexpr const char* inspect_program = "rollring-inspect";
inline constexpr const char* recording_program = "rollring-recording";
inline constexpr const char* serve_program = "rollring-serve";

inline constexpr PassedOn ls_line{"ls", "List the rings of this user", inspect_program};
inline constexpr PassedOn stat_line{"stat", "Show the lanes of a ring", inspect_program};
inline constexpr PassedOn doctor_line{"doctor", "Diagnose and clean up stale rings",
                                      inspect_program};
inline constexpr PassedOn groups_line{"groups", "Show incomplete and pending groups",
                                      inspect_program};
inline constexpr PassedOn weights_line{"weights", "Show the weight channel of a ring",
                                       inspect_program};
inline constexpr PassedOn record_line{"record", "Record the groups that pass through a ring",
                                      recording_program};
inline constexpr PassedOn replay_line{"replay", "Send the batches of a recording into a ring",
                                      recording_program};
inline constexpr PassedOn ledger_line{"ledger", "Show the contents of a ledger", recording_program};
inline constexpr PassedOn restore_line{"restore", "Send the records of a ledger into a new ring",
                                       recording_program};
inline constexpr PassedOn metrics_line{"metrics", "Export metrics of rings to Prometheus",
                                       serve_program};
inline constexpr PassedOn serve_atropos_line{
    "serve-atropos", "Run an Atropos-compatible API server on a ring", serve_program};

}  // namespace rollring::cli
