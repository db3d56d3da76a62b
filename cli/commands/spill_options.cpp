#include "cli/commands/spill_options.hpp"

namespace rollring::cli {

void add_spill_options(CLI::App* app, SpillOptions& options, bool described) {
    const auto text = [&](const char* description) {
        return std::string(described ? description : "See `rollring create`");
    };
    add_bytes(app, "--spill-bytes", options.spill_bytes,
              text("Maximum memory for the records of incomplete groups; limits how\n"
                   "many groups are open; reserved as needed; 0: none"))
        ->default_str("the memory that the lanes leave, at most 128GiB");
    app->add_option("--overflow", options.overflow_dir,
                    text("Directory on a disk; if the run would stop for lack of memory,\n"
                         "such records go into a file there"))
        ->type_name("DIR");
    add_bytes(app, "--overflow-bytes", options.overflow_bytes,
              text("Maximum size of that file; 1/500 of it is reserved in\n"
                   "/dev/shm"))
        ->default_str("4 x --spill-bytes, at most 64GiB");
}

void apply(const SpillOptions& options, RingOptions& made) {
    if (options.spill_bytes != bytes_not_given) made.spill_bytes = options.spill_bytes;
    if (options.overflow_bytes != bytes_not_given) made.overflow_bytes = options.overflow_bytes;
    made.overflow_dir = options.overflow_dir;
}

}  // namespace rollring::cli
