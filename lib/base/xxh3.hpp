#pragma once

// XXH3, compiled into the file that uses it: rollring needs no libxxhash where it runs.
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>
