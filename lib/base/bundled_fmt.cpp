// The functions of libfmt.so, for builds with the option bundled_fmt.
#define FMT_HEADER_ONLY
#include <fmt/format.h>
